"""What `RaiseConvBackward` found: an entry for each convolution that is or resembles a gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class RaiseEntry:
    """One convolution.

    `function` and `node` : the names of its function and of the variable that is the gradient now,
    or of the convolution's own where it stays; `kind` : "wgrad" or "dgrad"; `problem` :
    `ConvProblem.repro()` of the new call, "" where there is none; `reason` : why it stays, "" where
    it was raised.
    """

    function: str
    node: str
    kind: str
    problem: str = ""
    reason: str = ""

    @property
    def raised(self) -> bool:
        return not self.reason


class RaiseReport:
    """The gradients that were raised, and the near misses with their reasons.

    Forward convolutions are in neither.  Prints itself as a table with `rich`.
    """

    def __init__(self, entries: Sequence[RaiseEntry]) -> None:
        self.entries: tuple[RaiseEntry, ...] = tuple(entries)

    @property
    def raised(self) -> tuple[RaiseEntry, ...]:
        return tuple(entry for entry in self.entries if entry.raised)

    @property
    def left(self) -> tuple[RaiseEntry, ...]:
        """Near misses: what looked like a gradient and is not provably one."""
        return tuple(entry for entry in self.entries if not entry.raised)

    def kinds(self) -> Counter[str]:
        """How many of each kind were raised."""
        return Counter(entry.kind for entry in self.raised)

    def reasons(self) -> Counter[str]:
        """How many stay for each reason."""
        return Counter(entry.reason for entry in self.left)

    def table(self) -> Table:
        """All entries."""
        table = Table("function", "node", "kind", "problem or reason", title=str(self))
        for e in self.entries:
            cells = (e.function, e.node, e.kind, e.problem or e.reason)
            table.add_row(*map(escape, cells))
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds().items()))
        return f"raised {kinds or 'nothing'}; {len(self.left)} left"

    def __repr__(self) -> str:
        return f"<RaiseReport: {self}>"
