"""Places in a Relay text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """From (line, column) up to (end_line, end_column), the end excluded; all count from 1.

    `origin` is the place that the text itself names for the node, in the `span=` of its comment:
    a place in some earlier text.  It is what a printer writes again.
    """

    source: str
    line: int
    column: int
    end_line: int
    end_column: int
    origin: Span | None = None

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"
