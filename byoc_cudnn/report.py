"""`Report`: one entry for each call of the convolution family, offloaded or not and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from rich import box
from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from relay_wgrad.display import short
from relay_wgrad.problem import ConvProblem
from relay_wgrad.transform.raising.report import RaiseEntry

PRODUCT = "matmul"
"""`Entry.op` of a matrix product, whose problem is that of the convolution that it becomes."""


@dataclass(frozen=True)
class Entry:
    """One call.

    `function` and `node` : the names of its function in the module given and of its variable, in
    Relay of its operator with a number; `op` : the op's short name; `problem` :
    `ConvProblem.repro()` of the program's own call, "" where it has none;
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
# Columns of the table: what equal calls have alike, the place of the first of them, their number.
_SUMMARY = (
    "function", "kind", "problem", "layout", "backend", "row", "adapted", "reason", "times",
    "first at", "×",
)  # fmt: skip
_SHARED = ("function", "layout", "backend")  # in the title where all have the same
_FOLDED = ("function", "reason", "times", "first at")  # where the terminal is too narrow
BY_CUBLAS = "cuBLAS's, or a part of attention, by what is there when the module is built"
FASTER_HERE = "TVM's own kernel is the fastest that was measured"
_GRADIENTS = {"wgrad": "weight gradient", "dgrad": "data gradient"}


class Report:
    """The decision on every call of the convolution family in a module.

    entries : one for each call.
    composites : gradients among them that are written with other operators (in composite form), as
        what `RaiseConvBackward` would make of them.  They were sent as the convolutions that they
        are written with, which are right and slow.
    """

    def __init__(self, entries: Sequence[Entry], composites: Sequence[RaiseEntry] = ()) -> None:
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.composites: tuple[RaiseEntry, ...] = tuple(composites)

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

    @property
    def hint(self) -> str:
        """What to do about `composites`; empty where there are none."""
        kinds = {_GRADIENTS[entry.kind] for entry in self.composites}
        count = len(self.composites)
        if not count:
            return ""
        kind = kinds.pop() if len(kinds) == 1 else "gradient"
        some = f"is a {kind}" if count == 1 else f"are {kind}s"
        return f"{count} of these {some} in composite form: run RaiseConvBackward first"

    def reasons(self) -> Counter[str]:
        """How many calls stay for each reason."""
        return Counter(entry.reason for entry in self.left)

    def rows(self) -> Counter[str]:
        """How many calls go to each row, as `backend.row`."""
        return Counter(f"{e.backend}.{e.row}" for e in self.entries if e.backend)

    def table(self, title: str = "") -> Table:
        """The decision on each convolution as a `rich` table, for reading.

        Equal ones are one line, with their number and the place of the first.  Columns without
        anything in them are left out; function, layout and backend are in the title where there is
        one alone.
        """
        groups: dict[tuple[str, ...], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(_summary(entry), []).append(entry)
        lines = [
            (*cells, found[0].source or found[0].node, str(len(found)))
            for cells, found in groups.items()
        ]
        values = {
            name: [value for value in dict.fromkeys(line[i] for line in lines) if value]
            for i, name in enumerate(_SUMMARY)
        }
        shared = [name for name in _SHARED if len(values[name]) == 1]
        shown = [name for name in _SUMMARY if values[name] and name not in shared]
        table = Table(
            title=escape(", ".join([title or self._headline(), *(values[n][0] for n in shared)])),
            caption=self.hint or None,
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for name in shown:
            justify: JustifyMethod = "right" if name == "×" else "left"
            table.add_column(name, justify=justify, no_wrap=name not in _FOLDED, overflow="fold")
        for line in lines:
            table.add_row(*(escape(line[_SUMMARY.index(name)]) for name in shown))
        return table

    def to_json(self) -> str:
        """`{"total", "offloaded", "share", "composites", "entries"}`."""
        return json.dumps(
            {
                "total": self.total,
                "offloaded": self.offloaded,
                "share": self.share,
                "composites": [asdict(entry) for entry in self.composites],
                "entries": [asdict(entry) for entry in self.entries],
            },
            indent=1,
        )

    def to_markdown(self) -> str:
        """All entries as a Markdown table, below one line of totals; no empty columns."""
        cells = [_cells(entry) for entry in self.entries]
        kept = [i for i in range(len(_COLUMNS)) if any(row[i] for row in cells) or not cells]
        lines = [self._headline(), "", *([self.hint, ""] if self.hint else [])]
        rows = [_COLUMNS, ["---"] * len(_COLUMNS), *cells]
        lines += [_row([row[i] for i in kept]) for row in rows]
        return "\n".join(lines) + "\n"

    def _headline(self) -> str:
        counts = [0, 0, 0, 0]
        for entry in self.entries:
            kind = 2 * (entry.op == PRODUCT)
            counts[kind] += bool(entry.backend)
            counts[kind + 1] += 1
        text = f"{counts[0]} of {counts[1]} convolutions"
        if counts[3]:
            text += f" and {counts[2]} of {counts[3]} matrix products"
        return f"{text} offloaded"

    def __str__(self) -> str:
        """Totals, rows and reasons, with the nodes that stay, and the hint if there is one."""
        lines = [self._headline()]
        lines += [f"  {count:5d}  {name}" for name, count in sorted(self.rows().items())]
        for reason, count in self.reasons().most_common():
            nodes = [e.node for e in self.left if e.reason == reason]
            shown = ", ".join(nodes[:3]) + (", …" if len(nodes) > 3 else "")
            lines.append(f"  {count:5d}  left: {reason} ({shown})")
        return "\n".join([*lines, *([self.hint] if self.hint else [])])

    def __repr__(self) -> str:
        return f"<Report: {self._headline()}>"


def _cells(entry: Entry) -> list[str]:
    row = f"{entry.backend}.{entry.row}" if entry.backend else ""
    return [
        entry.function, entry.node, entry.op, row, entry.adapted, entry.source, entry.problem,
        _times(entry), entry.reason,
    ]  # fmt: skip


def _summary(entry: Entry) -> tuple[str, ...]:
    """The table's columns but for the last two."""
    kind, problem, layout = entry.op, "", ""
    if entry.problem:
        kind, _, problem = entry.problem.partition(" ")
        with suppress(ValueError):  # sizes that only the run knows are no numbers
            parsed = ConvProblem.parse(entry.problem)
            dtypes = dict.fromkeys(entry.problem.rpartition("dtype=")[2].split("/"))
            problem = short(parsed)
            layout = f"{parsed.data_layout}/{parsed.kernel_layout} {'/'.join(dtypes)}"
    return (
        f"@{entry.function}", kind, problem, layout, entry.backend, entry.row or "stays",
        entry.adapted, entry.reason, _times(entry),
    )  # fmt: skip


def _times(entry: Entry) -> str:
    return " ".join(f"{name} {ms:.3g} ms" for name, ms in entry.times)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
