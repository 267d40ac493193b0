"""The CPU kernels against PyTorch (oneDNN) on the convolutions of known networks, and of volumes.

Float32.  For each layer and each of fprop, dgrad and wgrad: our time, PyTorch's (the better of
contiguous and channels_last tensors), their ratio (below 1: ours is faster), GFLOP/s, and the
fraction of two ceilings measured in the same run: the rate of multiply-adds in registers, and the
bandwidth of a copy.  All take turns in one process with the same number of threads, the shortest
time of some rounds counts, and every timed result is checked.

--quick: the layers of each suite that take a twentieth of its work or more, those that take most
first and the suites in turn, fewer rounds, and no row is begun after four minutes.  Where others
use the machine a time may be a disturbed call's: a row whose times no second turn has confirmed
says so.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm

import relay_wgrad
from benchmarks.cpu_timing import LONGEST, best
from benchmarks.gpu_timing import by_torch
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize import cpu
from legalize.cpu.roofline import ceilings
from relay_wgrad.cores import configure_threads
from relay_wgrad.layouts import ACTIVATIONS, KERNELS, permutation
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.layers import LAYOUTS, SUITES, Layer, suite
from tests.support.problems import poisoned, random_operands, relative_error, tolerance

# Two kernels' sums against each other, and Winograd's transforms, which lose a digit.
_SLACK, _WINOGRAD = 3, 1e-5
KINDS = tuple(kind.value for kind in ConvKind)
VOLUMES = "volumes"
# What nnU-Net and video networks are made of, smaller than theirs.
_VOLUMES = (
    "n=1 c=32 d=32 h=48 w=48 k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "n=2 c=64 d=16 h=24 w=24 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "n=2 c=64 d=16 h=24 w=24 k=128 t=3 r=3 s=3 stride=2,2,2 pad=1,1,1,1,1,1",
    "n=2 c=256 d=8 h=8 w=8 k=256 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "n=2 c=64 d=16 h=24 w=24 k=128 t=1 r=1 s=1",
    "n=2 c=64 d=16 h=28 w=28 k=64 t=3 r=1 s=1 pad=1,0,0,1,0,0",
    "n=2 c=64 d=16 h=24 w=24 k=128 t=2 r=2 s=2 stride=2,2,2",
    "n=2 c=64 d=16 h=24 w=24 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=64",
)

QUICK = 4.0  # minutes
# (rounds, seconds that they may take, target) -> a row.
Measured = Callable[[int, float, tvm.target.Target], Row]


def layers(name: str, batch: int, layout: str) -> list[Layer]:
    """Of a suite; volumes have a batch of their own."""
    if name != VOLUMES:
        return suite(name, batch, "f32", layout, LAYOUTS)
    last = " layout=NDHWC/ODHWI/NDHWC" if layout == "NHWC" else ""
    return [Layer(line, 1, ConvProblem.parse(f"fprop {line}{last}")) for line in _VOLUMES]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    if args.threads:
        os.environ["TVM_NUM_THREADS"] = str(args.threads)
    threads = configure_threads()
    found = [one for name in args.suite for one in _cases(name, args, threads)]
    if args.quick:
        args.time_budget = min(args.time_budget, QUICK)
        found.sort(key=lambda one: one[0])
    for _, case in found:
        yield case


def _cases(suite: str, args: argparse.Namespace, threads: int) -> Iterator[tuple[int, Case]]:
    """(how many layers of the suite come before it, a case)."""
    found: list[tuple[str, float, Measured]] = []
    total = 0.0
    for layout in args.layouts:
        for layer in layers(suite, args.batch, layout):
            work = layer.count * layer.problem.flop
            total += work
            found += [(problem.repro(), work, partial(measure, layer, problem))
                      for problem in layer.problems(args.kinds)]  # fmt: skip
    works = sorted({work for _, work, _ in found}, reverse=True)
    for text, work, call in found:
        if not args.quick or work >= total / 20:
            yield (
                works.index(work),
                Case({"suite": suite, "problem": text, "threads": threads}, call),
            )


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    threads = cases[0].key["threads"]
    torch.set_num_threads(threads)
    target = cpu.host_target(threads)
    most = ceilings(target, threads)
    args.found |= {"target": str(target), "fma_gflops": most.flops / 1e9,
                   "copy_gbytes": most.bytes / 1e9}  # fmt: skip

    def one(case: Case) -> Row:
        row = case.what(*((3, 2.0) if args.quick else (args.rounds, LONGEST)), target)
        return row | {
            "ratio": row["ms"] / row["torch_ms"],
            "fma_share": row["gflops"] / args.found["fma_gflops"],
            "copy_share": row["gbytes"] / args.found["copy_gbytes"],
        }

    return one


def measure(
    layer: Layer, problem: ConvProblem, rounds: int, longest: float, target: tvm.target.Target
) -> Row:
    """Times of one problem of a layer, ours and PyTorch's; a reason if the results disagree."""
    a, b = random_operands(problem, np.random.default_rng(0))
    result = problem.roles[2]
    start = time.perf_counter()
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    compiled = time.perf_counter() - start
    operands = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
    out = tvm.runtime.tensor(poisoned(problem))
    kernel(*operands, out)
    arrays = {
        **dict(zip(problem.roles[:2], (a, b), strict=True)),
        result: np.empty_like(out.numpy()),
    }
    theirs = []
    last = torch.channels_last if a.ndim == 4 else torch.channels_last_3d
    for memory_format in (torch.contiguous_format, last):
        tensors = {
            role: torch.from_numpy(_canonical(problem, role, x)).contiguous(
                memory_format=memory_format
            )
            for role, x in arrays.items()
        }
        theirs.append(by_torch(problem, tensors, layer.transposed))
    want = theirs[0]().contiguous().numpy()
    error = relative_error(_canonical(problem, result, out.numpy()), want.astype(np.float64))
    (ours, *others), is_confirmed = best([lambda: kernel(*operands, out), *theirs], rounds, longest)
    most = _SLACK * tolerance(problem) + _WINOGRAD
    return {
        "layer": layer.name, "count": layer.count, "kind": problem.kind.value,
        "layout": problem.data_layout, "batch": problem.n, "compile_s": compiled,
        "confirmed": is_confirmed,
        **({} if error <= most else {"reason": f"wrong: error {error:.1e}, at most {most:.1e}"}),
        "error": error, "ms": ours * 1e3, "torch_ms": min(others) * 1e3,
        "gflops": problem.flop / ours / 1e9, "torch_gflops": problem.flop / min(others) / 1e9,
        "gbytes": problem.bytes / ours / 1e9,
    }  # fmt: skip


def _canonical(problem: ConvProblem, role: str, array: np.ndarray[Any, Any]) -> Any:
    letters = (KERNELS if role == "weight" else ACTIVATIONS)[array.ndim - 2]
    return array.transpose(permutation(problem.layout(role), letters))


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Of each suite all layers, as often as they occur."""
    for name in dict.fromkeys(row["suite"] for row in rows):
        mine = [row for row in rows if row["suite"] == name]
        for kind in dict.fromkeys(row["kind"] for row in mine):
            ours, theirs = (
                sum(row[x] * row["count"] for row in mine if row["kind"] == kind)
                for x in ("ms", "torch_ms")
            )
            yield (
                f"{name} {kind}, these layers as often as they occur: {ours:.1f} ms, PyTorch"
                f" {theirs:.1f} ms, ratio {ours / theirs:.2f}"
            )


BENCHMARK = Benchmark(
    cases, begin, suites=(*SUITES, VOLUMES), by=("kind",), summary=summary,
    options={
        "quick": Option(False, "what takes most of the work, in four minutes"),
        "kinds": Option(KINDS, "", KINDS),
        "layouts": Option(("NHWC",), "", tuple(LAYOUTS)),
        "batch": Option(8, "images"),
        "threads": Option(0, "as many as cores, if 0"),
        "rounds": Option(5, "in which all take turns"),
    },
    columns=(
        ("layer",), ("kind",), ("layout",), ("times", "count"), ("ms", None, ".2f"),
        ("PyTorch", "torch_ms", ".2f"), ("ratio", None, ".2f"), ("GFLOP/s", "gflops", ".0f"),
        ("FMA", "fma_share", ".2f"), ("mem", "copy_share", ".2f"), ("error", None, ".0e"),
        ("confirmed", lambda row: None if row.get("confirmed", True) else "no"), ("reason",),
    ),
)  # fmt: skip
