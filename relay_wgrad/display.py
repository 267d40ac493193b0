"""What commands show: progress on standard error where that is a terminal, tables, problems."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import timing
from .problem import ConvProblem

_COUNTED = re.compile(r"(.+): kernel ([0-9]+) of ([0-9]+).*")


class Display:
    """Progress on standard error where that is a terminal, results on standard output."""

    def __init__(self, quiet: bool) -> None:
        self.out = Console()
        err = Console(stderr=True)
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=err,
            disable=quiet or not err.is_terminal,
        )

    def notes(self, texts: Sequence[str]) -> None:
        """Prints each on a line."""
        for text in texts:
            self.out.print(text, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def part(self, what: str, total: int | None = None) -> Iterator[Any]:
        """A bar while the part runs; gives a function that moves it by one of `total`.

        What that is given is shown behind the part's name.
        """
        task = self.progress.add_task(what, total=total)
        yield lambda note="": self.progress.update(task, advance=1, description=what + note)
        self.progress.update(task, total=total or 1, completed=total or 1)

    @contextlib.contextmanager
    def parts(self) -> Iterator[Callable[[str], None]]:
        """Gives a function that ends one part and begins the next, named by its argument.

        Of a text that counts, `compiling: kernel 3 of 67, …`, what is before the colon is the part.
        """
        with contextlib.ExitStack() as now:
            begun = ""

            def begin(what: str) -> None:
                nonlocal begun
                counted = _COUNTED.fullmatch(what)
                name = counted[1] if counted else what
                if name != begun or not counted:
                    now.close()
                    now.enter_context(self.part(name))
                    begun = name
                if counted:
                    self.progress.update(
                        self.progress.task_ids[-1], description=what,
                        completed=int(counted[2]), total=int(counted[3]),
                    )  # fmt: skip

            yield begin


def print_whole(table: Table, out: Console) -> None:
    """Prints a table; one wider than the terminal would be cut, so it gets the width it needs."""
    needed = Console(width=10_000).measure(table).maximum
    Console(file=out.file, width=max(out.width, needed)).print(table)


def columns(title: str, *names: str, left: int) -> Table:
    """An empty table; its first `left` columns are text, the others numbers."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=True)
    return table


def short(p: ConvProblem) -> str:
    """`8×64×56×56 → 64 3×3`, with what is not the default."""
    sizes = "×".join(map(str, (p.n, p.c, *p.spatial)))
    text = f"{sizes} → {p.k} {'×'.join(map(str, p.taps))}"
    if set(p.strides) != {1}:
        text += f" s{p.strides[0]}" if len(set(p.strides)) == 1 else f" s{p.strides}"
    if any(p.padding):
        text += f" p{p.padding[0]}" if len(set(p.padding)) == 1 else f" p{p.padding}"
    if set(p.dilation) != {1}:
        text += f" d{p.dilation[0]}" if len(set(p.dilation)) == 1 else f" d{p.dilation}"
    return text + (f" g{p.groups}" if p.groups > 1 else "")


def duration(seconds: float) -> str:
    """`0.60 s`, `12.3 ms`, `45 µs`: three digits or so, whatever the size."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 0.1:
            return f"{seconds * scale:.2f} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def milliseconds(seconds: float) -> str:
    """For a column whose head is "ms": `0.0123`, `5.86`."""
    return f"{seconds * 1e3:.{2 if seconds >= 1e-4 else 4}f}"


def work(flop: float) -> str:
    """`3.2 GFLOP`, `12.5 MFLOP`, `4.0 kFLOP`, `18 FLOP`."""
    for unit, scale in (("GFLOP", 1e9), ("MFLOP", 1e6)):
        if flop >= 0.1 * scale:
            return f"{flop / scale:.1f} {unit}"
    return f"{flop / 1e3:.1f} kFLOP" if flop >= 100 else f"{flop:.0f} FLOP"


def memory(size: int) -> str:
    """`1.50 GiB`, `12.5 MiB`, `4.0 KiB`."""
    for unit, scale, digits in (("GiB", 2**30, 2), ("MiB", 2**20, 1)):
        if size >= scale:
            return f"{size / scale:.{digits}f} {unit}"
    return f"{size / 2**10:.1f} KiB"


def warn(scatter: float) -> None:
    """Says on standard error if times scatter so much that the machine must have been busy."""
    if text := timing.warning(scatter):
        print(f"warning: {text}", file=sys.stderr)
