"""Convolutions and networks inside `jax.jit`: `lax`'s, this package's, and PyTorch's.

A convolution's row is the value and both gradients of the mean square of its result, after as many
layers as it says; shapes are those that people reported as slow.  A network's is a training step of
flax or equinox, by `optimize` around its loss.  Each side is a process of its own; programs are
made one after another, and their calls are timed in turns, so that what else the machine does is
nobody's own; `host_ms` is the part of a call in which the host is at it.  Gradients are compared
with PyTorch's in float64, in relative norm.

A network has two processes a side, as XLA's choices differ from one to another, unless it is asked
for one (--once); this package's second (`ours again`) has what the first one kept.  `first_s` are
seconds from a program's making (of a network: from the model's) to its first result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.child import Worker
from benchmarks.jax_sides import CONVOLUTIONS, NETWORKS, answer
from benchmarks.runner import Benchmark, Case, Option, Row, Rows

SIDES = ("ours", "torch", "lax")  # XLA may take minutes


SUITES = {"convolutions": CONVOLUTIONS, "networks": NETWORKS}


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for suite in args.suite:
        for name, what in SUITES[suite].items():
            if args.only and name not in args.only:
                continue
            sides = args.sides
            if suite == "networks":
                first = [side for side in sides if side != "torch"]
                again = [] if args.once else [f"{side} again" for side in reversed(first)]
                sides = [*first, *again]
            for side in sides:
                yield Case({"row": name, "side": side}, what)


def run(rows: Rows, cases: Sequence[Case], args: argparse.Namespace) -> None:
    """Measures what is left, a row with all of its sides."""
    of_rows: dict[str, list[Case]] = {}
    for case in cases:
        of_rows.setdefault(case.key["row"], []).append(case)
    with contextlib.ExitStack() as ends:
        running = _Sides(args.folder, ends)
        for name, mine in of_rows.items():
            if rows.seconds_left <= 0:
                break
            sides = [case.key["side"] for case in mine]
            if name in CONVOLUTIONS:
                of_side = running.kept(sides)
            else:  # a training has its process, whose first step is its own
                running.end()
                of_side = running.new(sides)
            for case, found in zip(mine, _measured(name, of_side, args, rows), strict=True):
                rows.keep(case, {"what": case.what.what, **found})


class _Sides:
    """Processes, by side."""

    def __init__(self, folder: Path, ends: contextlib.ExitStack) -> None:
        self._folder, self._ends, self._count = folder, ends, 0
        self._kept: dict[str, Worker] = {}

    def _made(self, cache: str) -> Worker:
        self._count += 1
        made = Worker({"RELAY_WGRAD_CACHE": str(self._folder / cache),
                       "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})  # fmt: skip
        self._ends.callback(made.end)
        return made

    def kept(self, sides: Sequence[str]) -> dict[str, Worker]:
        """Processes that do one row after another."""
        for side in sides:
            if side not in self._kept or self._kept[side].has_ended:
                self._kept[side] = self._made("cache")
        return {side: self._kept[side] for side in sides}

    def new(self, sides: Sequence[str]) -> dict[str, Worker]:
        """Processes of one row, which share a cache that is empty at first."""
        cache = f"cache{self._count}"
        return {side: self._made(cache) for side in sides}

    def end(self) -> None:
        for side in self._kept.values():
            side.end()


def _measured(
    name: str, of_side: dict[str, Worker], args: argparse.Namespace, rows: Rows
) -> list[Row]:
    """A row of each side."""
    found: dict[str, Row] = {}

    def ask(side: str, seconds: float, *what: str) -> Row:
        return dict(of_side[side](answer, side.partition(" ")[0], *what, seconds=max(seconds, 0.0)))

    steps = ("begin",), ("build", name, str(args.batch))
    for what in steps:  # no side builds while another begins
        for side in of_side:
            if "reason" not in found.setdefault(side, {}):
                try:
                    found[side] = ask(side, min(args.longest, rows.seconds_left), *what)
                except RuntimeError as error:
                    found[side] = {"reason": str(error)}
    alive = [side for side in of_side if "reason" not in found[side]]
    times: dict[str, list[Row]] = {side: [] for side in alive}
    try:
        for _ in range(args.rounds):
            for side in alive:
                times[side].append(ask(side, args.longest, "time"))
        for side in alive:
            found[side] |= {what: min(row[what] for row in times[side]) for what in times[side][0]}
            found[side]["rounds"] = [row["ms"] for row in times[side]]
        if "torch" in alive:
            for side in alive:
                path = str(args.folder / f"{name}-{side}.npz")
                ask(side, args.longest, "results", path)
                found[side] |= ask("torch", args.longest, "compare", path)
    except RuntimeError as error:
        for side in alive:
            found[side].setdefault("reason", str(error))
    print(time.strftime("%X"), name, json.dumps({s: f.get("ms") for s, f in found.items()}),
          file=sys.stderr, flush=True)  # fmt: skip
    return [found[side] for side in of_side]


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    """Of this package's time to those of the others."""
    of_rows: dict[str, dict[str, float]] = {}
    for row in rows:
        if "ms" in row:
            of_rows.setdefault(row["row"], {})[row["side"]] = row["ms"]
    for name, ms in of_rows.items():
        beside = [f"{ms['ours'] / ms[s]:.3f} of {s}'s" for s in ("lax", "torch")
                  if s in ms and "ours" in ms]  # fmt: skip
        if beside:
            yield f"{name}: {', '.join(beside)}"


BENCHMARK = Benchmark(
    cases, run=run, suites=SUITES, summary=ratios,
    options={
        "only": Option((), "rows by name"),
        "sides": Option(SIDES, "whose", SIDES),
        "rounds": Option(4, "of times, in turns; the least counts"),
        "batch": Option(0, "images of a network; its own, if 0"),
        "once": Option(False, "one process a side of a network, not two"),
        "longest": Option(120.0, "seconds that a program's making may take"),
    },
    columns=(
        ("row",), ("side",), ("ms", None, ".3f"), ("host ms", "host_ms", ".3f"),
        ("first s", "first_s", ".1f"), ("error", None, ".1e"), ("loss", None, ".5f"),
        ("became", "records"), ("reason",),
    ),
)  # fmt: skip
