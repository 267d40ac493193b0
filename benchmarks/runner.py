"""One runner for all benchmarks: options, rows that are kept, a table, means of ratios.

A benchmark is data: its suites, its options, a function that makes the cases of these on any
machine, one that measures a case, and the columns of its table.  What `--json`, `--resume`,
`--time-budget` and `--dry` mean, and the one form of a file of results, are here:

    {"benchmark": …, "date": …, "machine": {…}, "versions": {…}, "commit": …, "options": {…},
     "rows": [{…}, …]}

A row is its case's key and what was measured; `reason` says why it failed, or is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from relay_wgrad import output

from .machine import facts

Row = dict[str, Any]
Column = tuple[Any, ...]
"""Of a table: (head, a row's key or a function of the row, a format, a factor); the key is the head
where there is no other, and "a.b" is a key within another's."""


_SHORT, _OFTEN = 100, 5.0  # rows of a file that is written after each; seconds, of a longer one
_ASIDE = {"jobs", "seconds", "gib", "longest_turn", "png"}  # options that change no row


class Case(NamedTuple):
    """What is measured once.

    key : tells it from others, in JSON; a part of its row.  what : is for who measures it.
    """

    key: Row
    what: Any = None

    @property
    def text(self) -> str:
        return " ".join(str(value) for value in self.key.values() if value is not None)


class Option(NamedTuple):
    """An option of a benchmark; its type is the default's.

    of : what it may be.  Where the default is a tuple, the option is some of these, joined by
    commas; any words where `of` is None.
    """

    default: Any
    help: str = ""
    of: Collection[str] | None = None


Measure = Callable[[Case], "Row | None"]
"""None: there was no time for it."""


@dataclass(frozen=True)
class Benchmark:
    """What is measured, and how a row is shown.

    cases : of the suites and options that are asked for; needs no GPU, and compiles nothing.
    begin : builds what the cases that are left have in common, and returns what measures one.
    run : measures the cases and keeps their rows, where they are not measured one after another.
    by : fields of a row, for each value of which the ratios have a mean of their own.
    finish : what else is made of the rows.
    is_whole : whether a kept row has all that the options ask for.
    """

    cases: Callable[[argparse.Namespace], Iterable[Case]]
    begin: Callable[[Sequence[Case], argparse.Namespace], Measure] | None = None
    columns: Sequence[Column] = ()
    suites: Collection[str] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    by: Sequence[str] = ()
    summary: Callable[[Sequence[Row]], Iterable[str]] = lambda rows: ()
    run: Callable[[Rows, Sequence[Case], argparse.Namespace], None] | None = None
    finish: Callable[[Sequence[Row], argparse.Namespace], None] | None = None
    is_whole: Callable[[Row, argparse.Namespace], bool] = lambda row, args: True


def parsed(
    benchmark: Benchmark, words: Sequence[str], prog: str, about: str, on_gpu: bool
) -> argparse.Namespace:
    """The options of a command line; ends the program where they do not fit each other."""
    parser = argparse.ArgumentParser(
        prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if benchmark.suites:
        _add(parser, "suite", Option(tuple(benchmark.suites), "what is measured", benchmark.suites))
    for name, option in benchmark.options.items():
        _add(parser, name, option)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, after each")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    parser.add_argument("--time-budget", type=float, metavar="MINUTES", default=math.inf,
                        help="start no row after")  # fmt: skip
    parser.add_argument("--dry", action="store_true", help="list the cases, and measure nothing")
    args = parser.parse_args(words)
    if args.resume and not args.json:
        parser.error("--resume needs --json")
    args.on_gpu, args.error = on_gpu, parser.error
    return args


def _add(parser: argparse.ArgumentParser, name: str, option: Option) -> None:
    flag, default, of = f"--{name.replace('_', '-')}", option.default, option.of
    if default is False:
        parser.add_argument(flag, action="store_true", help=option.help)
        return
    known = f"; some of {', '.join(of)}" if isinstance(default, tuple) and of else ""
    if isinstance(default, tuple):
        kind: Any = _some(of)
    else:
        kind = str if default is None else type(default)
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    if of and default == tuple(of):
        shown = "all"
    parser.add_argument(
        flag, type=kind, default=default, choices=None if isinstance(default, tuple) else of,
        metavar="A,B,…" if isinstance(default, tuple) else None,
        help=f"{option.help}{known}{'' if default is None else f' (default {shown})'}"
        .replace("%", "%%"),
    )  # fmt: skip


def _some(of: Collection[str] | None) -> Callable[[str], tuple[str, ...]]:
    """A parser of words that are joined by commas."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word for word in text.split(",") if word))
        unknown = [word for word in words if of is not None and word not in of]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: expected some of {', '.join(of or ())}"
            )
        return words

    return parse


class Rows:
    """Rows by the keys of their cases, and the file that they are kept in."""

    def __init__(
        self, args: argparse.Namespace, about: Row, cases: Sequence[Case],
        is_whole: Callable[[Row], bool] = lambda row: True,
    ) -> None:  # fmt: skip
        """Ends the program where the file is of another machine, other versions or options."""
        self._path, self._about, self._is_whole = args.json, about, is_whole
        self._names = list(cases[0].key) if cases else []
        self._until = time.monotonic() + 60 * args.time_budget
        self._lock, self._saved, self._is_new = threading.Lock(), -math.inf, False
        self._rows: dict[str, Row] = {}
        if args.resume and args.json.exists():
            found = json.loads(args.json.read_text(encoding="utf-8"))
            for what in ("machine", "versions", "options"):
                kept = found.get(what) or {}
                # A file may have options that are gone.
                if (kept | about[what] if what == "options" else about[what]) != kept:
                    args.error(f"{args.json}: other {what} than this run's")
            self._rows = {self._key(row): row for row in found["rows"]}

    def _key(self, row: Row) -> str:
        return json.dumps([row.get(name) for name in self._names])

    @property
    def seconds_left(self) -> float:
        """Of the time budget."""
        return self._until - time.monotonic()

    def of(self, case: Case) -> Row | None:
        """The row of a case."""
        return self._rows.get(self._key(case.key))

    def misses(self, case: Case) -> bool:
        """Whether it has no whole row."""
        row = self.of(case)
        return row is None or not self._is_whole(row)

    def save(self) -> None:
        """Writes the file, if there is one and it lacks a row."""
        if self._path and self._is_new:
            output.write_json(self._path, {**self._about, "rows": list(self._rows.values())})
            self._saved, self._is_new = time.monotonic(), False

    def keep(self, case: Case, found: Row) -> None:
        """Also in the file, so that a run which is cut short leaves a whole one.

        A long file is written each few seconds, and when the run ends.
        """
        with self._lock:
            row = {**case.key, **found, "date": str(date.today())}
            self._rows[self._key(case.key)] = json.loads(json.dumps(row))  # as its file has it
            self._is_new = True
            if len(self._rows) < _SHORT or time.monotonic() - self._saved > _OFTEN:
                self.save()


def measure_all(rows: Rows, cases: Sequence[Case], measure: Measure, jobs: int = 1) -> None:
    """Measures each case while there is time; what one raises is its reason."""

    def one(case: Case) -> None:
        if rows.seconds_left > 0:
            try:
                found: Row | None = measure(case)
            except Exception as error:  # of any kind: one failure must not cost the other rows
                found = {"reason": reason(error)}
            if found is not None:
                rows.keep(case, found)

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(cases))
        if jobs == 1:  # in this thread, whose CUDA stream and TVM's pool of threads are warm
            for case in cases:
                bar.update(task, description=escape(case.text[:60]))
                one(case)
                bar.advance(task)
            return
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(one, cases):
                bar.advance(task)


def reason(error: BaseException) -> str:
    """What a row says of an error: its kind and its first line."""
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}"[:400]


def run(benchmark: Benchmark, name: str, args: argparse.Namespace) -> int:
    """Measures, and shows; the exit status: 1 where a row has a reason."""
    cases = list(benchmark.cases(args))
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    if args.dry:
        for case in cases:
            console.print(case.text, markup=False)
        console.print(f"{len(cases)} cases")
        return 0
    args.found = {}  # what a benchmark adds to the file: ceilings that it measured
    about = {"benchmark": name, **facts(args.on_gpu), "options": _options(benchmark, cases, args)}
    rows = Rows(args, about, cases, lambda row: benchmark.is_whole(row, args))
    left = [case for case in cases if rows.misses(case)]
    with tempfile.TemporaryDirectory(prefix="relay-wgrad-benchmark-") as folder:
        args.folder = Path(folder)
        # Plans and kernels are chosen afresh, unless the caller names a cache.
        os.environ.setdefault("RELAY_WGRAD_CACHE", folder)
        try:
            if left and benchmark.run:
                benchmark.run(rows, left, args)
            if left and benchmark.begin:
                measure = benchmark.begin(left, args)
                about |= args.found
                measure_all(rows, left, measure, getattr(args, "jobs", 1))
        finally:
            rows.save()
        if os.environ["RELAY_WGRAD_CACHE"] == folder:
            del os.environ["RELAY_WGRAD_CACHE"]
    measured = [row for case in cases if (row := rows.of(case))]
    show(console, benchmark, name, about, measured)
    if benchmark.finish:
        benchmark.finish(measured, args)
    failed = sum("reason" in row for row in measured)
    whole = sum(benchmark.is_whole(row, args) for row in measured)
    console.print(f"{whole} of {len(cases)} rows, {failed} failed")
    if whole + failed < len(cases):
        console.print("the rest: again with --json FILE --resume")
    return int(failed > 0)


def _options(benchmark: Benchmark, cases: Sequence[Case], args: argparse.Namespace) -> Row:
    """Those that say how it is measured; others say which cases, how long and where to."""
    in_keys = {key for case in cases[:1] for key in case.key} | _ASIDE
    return {
        name: getattr(args, name)
        for name, option in benchmark.options.items()
        if name not in in_keys and not isinstance(option.default, tuple)
    }


def show(
    console: Console, benchmark: Benchmark, name: str, about: Row, rows: Sequence[Row]
) -> None:
    """The rows, what failed, and means; the end of long output is what is always seen."""
    table = Table(title=name, box=None, pad_edge=False)
    shown = [column for column in benchmark.columns if any(cell(row, column) for row in rows)]
    for head, *_ in shown:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*(escape(cell(row, column)) for column in shown))
    console.print(table)
    for row in rows:
        if "reason" in row:
            key = " ".join(str(v) for v in row.values() if isinstance(v, (str, int)))
            console.print(f"failed: {key[:300]}", markup=False)
    said = {**about["machine"], **about["versions"], "commit": about["commit"]}
    console.print(", ".join(f"{key} {value}" for key, value in said.items()), markup=False)
    good = [row for row in rows if "reason" not in row]
    for line in (*benchmark.summary(good), *means(good, benchmark.by)):
        console.print(line, markup=False)


def cell(row: Row, column: Column) -> str:
    """What a row shows in a column; nothing where it has no such key."""
    head, key, spec, factor = (*column, *(None, "", 1)[len(column) - 1 :])
    key = head if key is None else key
    if callable(key):
        try:
            value = key(row)
        except (KeyError, TypeError, ValueError):  # of a row that failed
            value = None
    else:
        value = row
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return format(value * factor, spec)


def means(rows: Sequence[Row], by: Sequence[str]) -> list[str]:
    """Geometric means of the ratios, and the worst, for each value of these fields and of all."""
    lines = []
    for name in by:
        for value in dict.fromkeys(row[name] for row in rows if "ratio" in row):
            own = [row["ratio"] for row in rows if row.get(name) == value and "ratio" in row]
            lines.append(f"{name} {value}: {_mean(own)}")
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return [*lines, f"all: {_mean(ratios)}"] if ratios else lines


def _mean(ratios: Sequence[float]) -> str:
    mean = statistics.geometric_mean(ratios)
    return f"{len(ratios)} rows, geometric mean {mean:.3f}, {min(ratios):.2f} to {max(ratios):.2f}"
