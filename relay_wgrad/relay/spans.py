"""Places in a Relay text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class SourceName:
    """A source's name, as a script gives one to `Span`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Span:
    """From (line, column) up to (end_line, end_column), the end excluded; all count from 1.

    `origin` is the place that the text itself names for the node, in the `span=` of its comment:
    a place in some earlier text.  It is what a printer writes again.  A span that a script makes,
    with a `SourceName`, is its own origin.
    """

    source: Any  # a string; a SourceName, as given, becomes its name
    line: int
    end_line: int
    column: int
    end_column: int
    origin: Span | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, SourceName):
            object.__setattr__(self, "source", self.source.name)
            if self.origin is None:
                object.__setattr__(self, "origin", replace(self))

    @property
    def source_name(self) -> SourceName | None:
        """The source's name, as Relay calls it."""
        return None if self.source is None else SourceName(self.source)

    def same_as(self, other: object) -> bool:
        """Whether the other is this very object."""
        return self is other

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"
