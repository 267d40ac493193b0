"""Rows that a benchmark measures one after another and keeps in a file.

What `--json`, `--resume`, `--failed` and `--time-budget` mean is said here, and the one form of
such a file: facts of the run, and under "rows" a list with a dictionary for each row.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from relay_wgrad import output

Key = tuple[Any, ...]
Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the rows to FILE, after each of them")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    parser.add_argument("--failed", action="store_true", help="but for those with a reason")
    parser.add_argument("--time-budget", type=float, metavar="SECONDS", help="start no row after")


class Rows(dict[Key, Row]):
    """Rows by what tells them apart, `fields` of each, in the order of the keys that are asked."""

    def __init__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, fields: tuple[str, ...],
        facts: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Ends the program where the options do not fit each other."""
        super().__init__()
        if (args.resume or args.failed) and not args.json:
            parser.error("--resume and --failed need --json")
        self._path, self._fields, self._facts, self._again = args.json, fields, facts, args.failed
        self._until = math.inf if args.time_budget is None else time.monotonic() + args.time_budget
        if (args.resume or args.failed) and Path(args.json).exists():
            for row in json.loads(Path(args.json).read_text(encoding="utf-8"))["rows"]:
                self._put(row)

    def _put(self, row: Row) -> None:
        self[tuple(row[name] for name in self._fields)] = row

    @property
    def seconds_left(self) -> float:
        """Of the time budget."""
        return self._until - time.monotonic()

    def keep(self, *rows: Row) -> None:
        """Also in the file, so that a run which is cut short leaves a whole one."""
        for row in rows:
            self._put(row)
        if self._path:
            kept = [self[key] for key in sorted(self)]
            output.write_json(self._path, {**self._facts, "rows": kept})

    def measure(self, keys: Iterable[Key], measured: Callable[..., Row]) -> None:
        """`measured(*key)` of each key that is missing, while there is time."""
        for key in self._shown([key for key in keys if self.misses(key)]):
            if self.seconds_left <= 0:
                break
            self.keep(measured(*key))

    def misses(self, key: Key) -> bool:
        """Whether it has no row, or with `--failed` one that says why it failed."""
        return key not in self or (self._again and "reason" in self[key])

    def of(self, keys: Iterable[Key]) -> list[Row]:
        """The rows of these keys, without those that time did not allow."""
        return [self[key] for key in keys if key in self]

    def _shown(self, keys: list[Key]) -> Iterator[Key]:
        """With a bar on a terminal that names the row in progress."""
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                   TimeElapsedColumn())  # fmt: skip
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=len(keys))
            for key in keys:
                bar.update(task, description=" ".join(map(str, key)))
                yield key
                bar.advance(task)
