"""Convolutions and networks inside `jax.jit` on a GPU: `lax`'s, this package's, and PyTorch's.

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
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.child import ROOT
from benchmarks.runner import Benchmark, Case, Option, Row, Rows

SIDES = ("ours", "torch", "lax")  # XLA may take minutes


class Layers(NamedTuple):
    """Convolutions one after another, in PyTorch's arguments and canonical shapes.

    weight : of one layer; of a transposed convolution as PyTorch has it, with the inputs first.
    last : channels last.
    """

    what: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: str
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    extra: int = 0  # output_padding
    is_transposed: bool = False
    layers: int = 1
    last: bool = False


CONVOLUTIONS = {
    "depthwise2d": Layers(
        "256 channels, 28x28, 5x5, batch 32, bf16",
        (32, 256, 28, 28), (256, 1, 5, 5), "bfloat16", padding=2, groups=256, last=True,
    ),
    "depthwise1d": Layers(
        "12 layers, 512 channels, 1024 long, 5 taps, batch 32, f32",
        (32, 512, 1024), (512, 1, 5), "float32", padding=2, groups=512, layers=12,
    ),
    "dilated1d": Layers(
        "3 of them, dilation 4",
        (32, 512, 1024), (512, 1, 5), "float32", padding=8, dilation=4, groups=512, layers=3,
    ),
    "grouped2d": Layers(
        "32 groups of 8 channels, 56x56, batch 32, bf16",
        (32, 256, 56, 56), (256, 8, 3, 3), "bfloat16", padding=1, groups=32, last=True,
    ),
    "transposed3d": Layers(
        "64 to 1 channels, 64x64x32, 3x3x3, stride 2, batch 2, bf16",
        (2, 64, 64, 64, 32), (64, 1, 3, 3, 3), "bfloat16", stride=2, padding=1, extra=1,
        is_transposed=True,
    ),
    "dense2d": Layers(
        "128 channels, 28x28, 3x3, batch 32, bf16",
        (32, 128, 28, 28), (128, 128, 3, 3), "bfloat16", padding=1, last=True,
    ),
    "transposed1d": Layers(
        "512 to 1 channels, 256 long, 1024 taps, stride 256, batch 8, f32",
        (8, 512, 256), (512, 1, 1024), "float32", stride=256, is_transposed=True,
    ),
}  # fmt: skip


class Network(NamedTuple):
    """One of `tests.support.jax.networks`, n samples of a size."""

    what: str
    dtype: str
    n: int
    size: int
    sizes: dict[str, int]


NETWORKS = {
    "resnet18": Network(
        "flax's ResNet-18, batch 64 of 224x224, bf16", "bfloat16", 64, 224, {"width": 64}
    ),
    "wavenet": Network(
        "a WaveNet of flax's linen, 128 channels, 8 dilations, batch 8 of 4096, f32",
        "float32", 8, 4096, {"width": 128, "layers": 8},
    ),
    "unet": Network(
        "equinox's U-Net, 32 to 256 channels, batch 16 of 256x256, f32",
        "float32", 16, 256, {"width": 32, "depth": 3},
    ),
}  # fmt: skip
SUITES = {"convolutions": CONVOLUTIONS, "networks": NETWORKS}


class SideError(RuntimeError):
    """What a side's process says, or why it says nothing."""


class Side:
    """A side's process, that does one thing after another (`benchmarks.jax_sides`)."""

    def __init__(self, side: str, cache: Path, log: Path) -> None:
        self._log = log.open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.jax_sides", side], cwd=ROOT, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env={**os.environ, "RELAY_WGRAD_CACHE": str(cache),
                 "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        )  # fmt: skip

    def ask(self, seconds: float, **what: Any) -> Row:
        """The answer; raises SideError where there is none within so many seconds."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(what) + "\n")
            ready, _, _ = select.select([process.stdout], [], [], max(seconds, 0.0))
            if not ready:
                self.end()
                raise SideError(f"took more than {seconds:.0f} s")
            found = dict(json.loads(process.stdout.readline()))
        except (BrokenPipeError, ValueError) as error:
            self.end()
            self._log.seek(0)
            lines = self._log.read().strip().splitlines() or [str(error)]
            raise SideError(lines[-1][:300]) from error
        if "reason" in found:
            raise SideError(found["reason"])
        return found

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


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
        self._kept: dict[str, Side] = {}

    def _made(self, side: str, cache: str) -> Side:
        self._count += 1
        made = Side(side, self._folder / cache, self._folder / f"log{self._count}")
        self._ends.callback(made.end)
        return made

    def kept(self, sides: Sequence[str]) -> dict[str, Side]:
        """Processes that do one row after another."""
        for side in sides:
            if side not in self._kept or self._kept[side].has_ended:
                self._kept[side] = self._made(side, "cache")
        return {side: self._kept[side] for side in sides}

    def new(self, sides: Sequence[str]) -> dict[str, Side]:
        """Processes of one row, which share a cache that is empty at first."""
        cache = f"cache{self._count}"
        return {side: self._made(side.partition(" ")[0], cache) for side in sides}

    def end(self) -> None:
        for side in self._kept.values():
            side.end()


def _measured(
    name: str, of_side: dict[str, Side], args: argparse.Namespace, rows: Rows
) -> list[Row]:
    """A row of each side."""
    found: dict[str, Row] = {}
    for process in of_side.values():
        with contextlib.suppress(SideError):  # it says so again
            process.ask(args.longest, do="begin")  # before any builds: nothing else runs then
    for side, process in of_side.items():
        try:
            found[side] = process.ask(min(args.longest, rows.seconds_left), do="build", row=name)
        except SideError as error:
            found[side] = {"reason": str(error)}
    alive = [side for side in of_side if "reason" not in found[side]]
    times: dict[str, list[Row]] = {side: [] for side in alive}
    try:
        for _ in range(args.rounds):
            for side in alive:
                times[side].append(of_side[side].ask(args.longest, do="time"))
        for side in alive:
            found[side] |= {what: min(row[what] for row in times[side]) for what in times[side][0]}
            found[side]["rounds"] = [row["ms"] for row in times[side]]
        if "torch" in alive:
            for side in alive:
                path = str(args.folder / f"{name}-{side}.npz")
                of_side[side].ask(args.longest, do="results", path=path)
                found[side] |= of_side["torch"].ask(args.longest, do="compare", path=path)
    except SideError as error:
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
        "once": Option(False, "one process a side of a network, not two"),
        "longest": Option(120.0, "seconds that a program's making may take"),
    },
    columns=(
        ("row",), ("side",), ("ms", None, ".3f"), ("host ms", "host_ms", ".3f"),
        ("first s", "first_s", ".1f"), ("error", None, ".1e"), ("loss", None, ".5f"),
        ("became", "records"), ("reason",),
    ),
)  # fmt: skip
