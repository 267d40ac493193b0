"""Forward and backward of whole networks on a GPU: our compiled step beside PyTorch's.

A row is a network and a dtype, with the figures of each side: `ours`, and those of --against:
PyTorch's `eager`, `compile`, `graphs` and `contiguous` (torch.compile, with CUDA graphs, and of
tensors with the channels first), or `step`, `backend` and `convolutions` (`benchmarks.gpu_sides`).
Each side is a process of its own, or all of PyTorch's are one (--together: cuDNN tunes once).
Processes compile side by side (--jobs), and use the GPU one after another (`benchmarks.gpu_turns`),
or each of --gpus, a row's sides the same one.
A row whose sides differ in the loss or in the gradients' norm by a twentieth has no ratio.
The file is written after each side; with --resume a row that has not all sides is measured anew.

A model is one of torchvision's or timm's, `unet`, `unet3d`, `unet3d_instance` or `resenc_m` (of
volumes, 128³ if no --image says otherwise), or `onnx:` and a bundled one (`benchmarks.gpu_models`);
the suite `known` are those that kernels and rules were chosen by, `held` others.  The ratio is our
best time over PyTorch's best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_models import SUITES
from benchmarks.gpu_sides import ALONE, DTYPES, PYTORCH, SIDES, WITHIN, Row
from benchmarks.gpu_turns import ENDED, Turnstile, converse, interruptible
from benchmarks.runner import Benchmark, Case, Option, Rows

Told = Callable[[str, dict[str, Any]], None]
# (sides of one process, row, the row's number, seconds left, told of each side) -> its error
Measured = Callable[[Sequence[str], Row, int, float, Told], str | None]


@dataclass
class Processes:
    """Measures sides in processes.

    jobs : how many at a time, of the machine's cores.  longest : seconds that one may keep the GPU.
    gpus : rows are measured on so many, the first that this process sees.
    """

    device: str = "cuda"
    jobs: int = 1
    longest: float = math.inf
    gpus: int = 1

    def __post_init__(self) -> None:
        self._turnstile = Turnstile(self.gpus)

    def __call__(
        self, sides: Sequence[str], row: Row, number: int, seconds: float, told: Told
    ) -> str | None:
        cores = os.cpu_count() or 1
        environment = {
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(2, 2 * cores // self.jobs)),
            "OMP_NUM_THREADS": str(max(1, cores // self.jobs)),
            **os.environ,
        }
        if self.gpus > 1:
            seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self.gpus)))
            environment["CUDA_VISIBLE_DEVICES"] = seen.split(",")[self._turnstile.gpu_of(number)]
        command = [
            sys.executable, "-m", "benchmarks.gpu_sides", ",".join(sides),
            json.dumps(row._asdict()), "--device", self.device,
        ]  # fmt: skip
        return converse(
            command, number, self._turnstile, lambda said: told(said["side"], said["figures"]),
            time.monotonic() + seconds, self.longest, environment,
        )  # fmt: skip


def cases(args: argparse.Namespace) -> Iterator[Case]:
    suites = itertools.chain(*(SUITES[name] for name in args.suite))
    models = args.models or dict.fromkeys(suites)
    for dtype, batch, model in itertools.product(args.dtypes, args.batch, models):
        row = Row(model, int(batch), args.image or None, dtype)
        yield Case(row._asdict(), row)


def run(rows: Rows, cases: Sequence[Case], args: argparse.Namespace) -> None:
    jobs = args.jobs or (os.cpu_count() or 1)
    longest = args.longest_turn or math.inf
    with interruptible():
        measured(rows, cases, groups(args), Processes("cuda", jobs, longest, args.gpus), jobs)


def measured(
    rows: Rows, cases: Sequence[Case], groups: Sequence[Sequence[str]], measure: Measured, jobs: int
) -> None:
    """Measures all sides of each case, those of a group in one process, and keeps each at once."""
    writing = threading.Lock()
    found: list[dict[str, Any]] = [{} for _ in cases]

    def one(number: int, group: Sequence[str]) -> None:
        case, sides = cases[number], found[number]

        def told(side: str, figures: dict[str, Any]) -> None:
            with writing:
                sides[side] = figures
                rows.keep(case, row_of(sides))

        error: str | None = ENDED
        if rows.seconds_left > 0:
            error = measure(group, case.what, number, rows.seconds_left, told)
        for side in group:
            if side not in sides and error != ENDED:
                told(side, {"error": error or "it said nothing"})

    with ThreadPoolExecutor(jobs) as pool:
        tasks = [pool.submit(one, i, group) for i in range(len(cases)) for group in groups]
        for task in tasks:
            task.result()


def row_of(sides: dict[str, Any]) -> dict[str, Any]:
    """What a row says of its sides: ours over the best of PyTorch's, if their numbers are alike,
    and which failed."""
    row: dict[str, Any] = {"sides": sides}
    reasons = [f"{side}: {f['error']}" for side, f in sides.items() if "error" in f]
    apart = disagreements(sides)
    if not math.isnan(found := ratio(row)) and not apart:
        row["ratio"] = found
    if reasons := [*reasons, *apart]:
        row["reason"] = "; ".join(reasons)
    return row


def groups(args: argparse.Namespace) -> list[list[str]]:
    """The sides of each process: PyTorch's in one of theirs, if `together`."""
    sides = ["ours", *args.against]
    theirs = [side for side in sides if side in PYTORCH and side not in ALONE]
    if not args.together or not theirs:
        return [[side] for side in sides]
    return [*([side] for side in sides if side not in theirs), theirs]


def is_whole(row: dict[str, Any], args: argparse.Namespace) -> bool:
    """Whether it has all sides that are asked for."""
    return all("ms" in row["sides"].get(side, {}) for side in ("ours", *args.against))


def ratio(row: dict[str, Any]) -> float:
    """Our best time over the best of PyTorch's; NaN where one is missing."""
    found = {name: figures["ms"] for name, figures in row["sides"].items() if "ms" in figures}
    theirs = [found[name] for name in PYTORCH if name in found]
    return float(found["ours"] / min(theirs)) if theirs and "ours" in found else math.nan


def disagreements(sides: dict[str, Any], most: float = 0.05) -> list[str]:
    """In what a row's sides are further apart: the loss, the gradients' norm."""
    good, found = {n: f for n, f in sides.items() if "error" not in f}, []
    for what in ("loss", "norm"):
        values = [f[what] for f in good.values() if what in f]
        if values and not max(values) - min(values) <= most * max(map(abs, values)):
            said = ", ".join(f"{n} {f[what]:.4g}" for n, f in good.items())
            found.append(f"the sides differ in {what}: {said}")
    return found


def _shown(side: str) -> Callable[[dict[str, Any]], str]:
    """Milliseconds of a side, and MiB of the device."""

    def cell(row: dict[str, Any]) -> str:
        found = row["sides"][side]
        memory = f" ({found['memory'] / 2**20:.0f})" if "memory" in found else ""
        return found["error"][:60] if "error" in found else f"{found['ms']:.2f}{memory}"

    return cell


def _over_empty(side: str, what: str) -> Callable[[dict[str, Any]], float]:
    """The host's milliseconds of a side more than an empty function over its parameters takes."""

    def more(row: dict[str, Any]) -> float:
        found = row["sides"][side]
        return float(found[what] - found[f"empty_{what}"])

    return more


def _convolutions(row: dict[str, Any]) -> float:
    """Milliseconds of our step's convolutions."""
    kinds = row["sides"]["ours"]["split"]["kinds"]
    return float(sum(kinds.get(kind, 0.0) for kind in ("fprop", "dgrad", "wgrad")))


BENCHMARK = Benchmark(
    cases, run=run, suites=SUITES, by=("dtype",), is_whole=is_whole,
    options={
        "against": Option(("eager", "compile", "graphs"), "", SIDES[1:]),
        "models": Option((), "in place of the suites'"),
        "dtypes": Option(("f16", "bf16", "tf32"), "", DTYPES),
        "batch": Option(("128",), "images"),
        "image": Option(0, "the image's side; the model's own, if 0"),
        "together": Option(False, "PyTorch's sides in one process: cuDNN tunes once"),
        "jobs": Option(0, "processes that build at a time; as many as cores, if 0"),
        "longest_turn": Option(180.0, "seconds of one on the GPU"),
        "gpus": Option(1, "that rows are measured on, side by side"),
    },
    columns=(
        ("model",), ("dtype",), ("batch",), *((f"{s}, ms (MiB)", _shown(s)) for s in SIDES),
        ("ratio", None, ".2f"), ("host ms", "sides.ours.host_ms", ".2f"),
        *(
            (f"{side} − empty, {title}", _over_empty(side, what), ".2f")
            for title, what in (("host ms", "host_ms"), ("in a row", "row_host_ms"))
            for side in WITHIN
        ),
        ("convolutions", _convolutions, ".2f"),
    ),
)  # fmt: skip
