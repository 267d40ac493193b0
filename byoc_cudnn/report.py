"""`Report`: one entry for each call of the convolution family, offloaded or not and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Entry:
    """One call.

    `function` and `node` : the names of its function and of its variable; `op` : the op's short
    name; `problem` : `ConvProblem.repro()` of the program's own call, "" where it has none;
    `backend`, `row` : where it goes, "" where it stays; `adapted` : what was put around it so that
    it could go ("pad", "crop", "layout", joined by "+"); `reason` : why it stays, "" where it goes;
    `source` : its weight's name and its file and line, as far as they are known; `tried` : the
    rows that did not take it, each with its reason, and what may have followed but could not;
    `times` : milliseconds that a tuning record has for the call, by backend, the fastest first.
    """

    function: str
    node: str
    op: str
    problem: str
    backend: str = ""
    row: str = ""
    adapted: str = ""
    reason: str = ""
    source: str = ""
    tried: tuple[tuple[str, str], ...] = ()
    times: tuple[tuple[str, float], ...] = ()


_COLUMNS = ("function", "node", "op", "row", "adapted", "source", "problem", "times", "reason")
FASTER_HERE = "TVM's own kernel is the fastest that was measured"


class Report:
    """What became of every call of the convolution family in a module."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries: tuple[Entry, ...] = tuple(entries)

    @property
    def total(self) -> int:
        """The number of calls."""
        return len(self.entries)

    @property
    def offloaded(self) -> int:
        """The number of calls that a backend takes."""
        return sum(bool(entry.backend) for entry in self.entries)

    @property
    def share(self) -> float:
        """offloaded / total; 1 where there is nothing to offload."""
        return self.offloaded / self.total if self.total else 1.0

    @property
    def left(self) -> tuple[Entry, ...]:
        """The entries of calls that stay."""
        return tuple(entry for entry in self.entries if not entry.backend)

    @property
    def refused(self) -> tuple[Entry, ...]:
        """The entries of calls that stay though nothing faster was measured there."""
        return tuple(entry for entry in self.left if entry.reason != FASTER_HERE)

    def reasons(self) -> Counter[str]:
        """How many calls stay for each reason."""
        return Counter(entry.reason for entry in self.left)

    def rows(self) -> Counter[str]:
        """How many calls go to each row, as `backend.row`."""
        return Counter(f"{e.backend}.{e.row}" for e in self.entries if e.backend)

    def table(self) -> Table:
        """All entries as a `rich` table."""
        table = Table(*_COLUMNS, title=self._headline())
        for entry in self.entries:
            table.add_row(*map(escape, _cells(entry)))
        return table

    def to_json(self) -> str:
        """`{"total", "offloaded", "share", "entries"}`."""
        return json.dumps(
            {
                "total": self.total,
                "offloaded": self.offloaded,
                "share": self.share,
                "entries": [asdict(entry) for entry in self.entries],
            },
            indent=1,
        )

    def to_markdown(self) -> str:
        """All entries as a Markdown table, below one line of totals."""
        lines = [self._headline(), "", _row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
        lines += [_row(_cells(entry)) for entry in self.entries]
        return "\n".join(lines) + "\n"

    def _headline(self) -> str:
        return f"{self.offloaded} of {self.total} convolutions offloaded"

    def __str__(self) -> str:
        """Totals, rows and reasons, with the nodes that stay."""
        lines = [self._headline()]
        lines += [f"  {count:5d}  {name}" for name, count in sorted(self.rows().items())]
        for reason, count in self.reasons().most_common():
            nodes = [e.node for e in self.left if e.reason == reason]
            shown = ", ".join(nodes[:3]) + (", …" if len(nodes) > 3 else "")
            lines.append(f"  {count:5d}  left: {reason} ({shown})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Report: {self._headline()}>"


def _cells(entry: Entry) -> list[str]:
    row = f"{entry.backend}.{entry.row}" if entry.backend else ""
    return [
        entry.function, entry.node, entry.op, row, entry.adapted, entry.source, entry.problem,
        " ".join(f"{name} {ms:.3g} ms" for name, ms in entry.times), entry.reason,
    ]  # fmt: skip


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
