"""Processes that get ready side by side, and are measured one by one.

A worker has its case and a pipe, into which it sends None when it is ready; it waits for an answer
and sends its row, or an error's text in place of either.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.parent import end_with_parent
from benchmarks.runner import Case, Row, Rows

Worker = Callable[..., None]


def in_groups(rows: Rows, cases: Sequence[Case], worker: Worker, jobs: int) -> None:
    """So many cases at a time, while there is time: all get ready, then each is measured."""
    for at in range(0, len(cases), jobs):
        if rows.seconds_left <= 0:
            return
        group = [(case, Run(worker, case.what)) for case in cases[at : at + jobs]]
        for _, process in group:
            process.ready(rows.seconds_left)
        for case, process in group:
            found = process.row(rows.seconds_left)
            if "reason" not in found or rows.seconds_left > 0:  # else the budget ended it
                rows.keep(case, found)


class Run:
    """A process of a row."""

    def __init__(self, worker: Worker, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=_with_parent, args=(worker, *args, other), daemon=True
        )
        self.process.start()
        other.close()
        self.first: Any = ""

    def received(self, seconds: float) -> Any:
        """What it sends, an error's text where it has none or time is up."""
        if not self.pipe.poll(None if seconds == float("inf") else max(0.0, seconds)):
            return "time is up"
        try:
            return self.pipe.recv()
        except EOFError:
            return f"the process ended with {self.process.exitcode}"

    def ready(self, seconds: float) -> None:
        """Returns when it is ready, or has ended."""
        self.first = self.received(seconds)

    def row(self, seconds: float) -> Row:
        """Its figures, or the reason why there are none."""
        found = self.first
        if found is None:
            self.pipe.send(None)
            found = self.received(seconds)
        self.process.kill()
        self.process.join()
        return found if isinstance(found, dict) else {"reason": str(found)}


def _with_parent(worker: Worker, *args: Any) -> None:
    end_with_parent()
    worker(*args)
