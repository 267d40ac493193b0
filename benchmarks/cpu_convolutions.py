"""The CPU kernels against PyTorch (oneDNN) on the convolutions of known networks, and of volumes.

For each layer and each of fprop, dgrad and wgrad: our time, PyTorch's (the better of contiguous and
channels_last tensors), their ratio (below 1: ours is faster), GFLOP/s, and the fraction of two
ceilings measured in the same run: the rate of float32's multiply-adds in registers, and the
bandwidth of a copy.  The larger fraction is that of the roofline, `roof`: what bounds the layer.
The sides are processes that take turns with the same number of threads, the shortest time of some
rounds counts, of one thread by processor time, and every timed result is checked.

--quick: the layers of each suite that take a twentieth of its work or more, those that take most
first and the suites in turn, fewer rounds, and no row is begun after four minutes.  Where others
use the machine a time may be a disturbed call's: a row whose times no second turn has confirmed
says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple

import numpy as np
import torch
import tvm

from benchmarks.cpu_timing import LONGEST, best, configure, ready, workers
from benchmarks.gpu_timing import by_torch
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize import cpu
from legalize.cpu.roofline import ceilings
from relay_wgrad.cores import usable_cores
from relay_wgrad.layouts import ACTIVATIONS, KERNELS, permutation
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.layers import DTYPES, LAYOUTS, SUITES, Layer, suite
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


def layers(name: str, batch: int, dtype: str, layout: str) -> list[Layer]:
    """Of a suite; volumes have a batch of their own, and are in float32."""
    if name != VOLUMES:
        return suite(name, batch, dtype, layout, LAYOUTS)
    last = " layout=NDHWC/ODHWI/NDHWC" if layout == "NHWC" else ""
    return [Layer(line, 1, ConvProblem.parse(f"fprop {line}{last}")) for line in _VOLUMES]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for threads in args.threads:
        found = [one for name in args.suite for one in _cases(name, args, int(threads))]
        if args.quick:
            args.time_budget = min(args.time_budget, QUICK)
            found.sort(key=lambda one: one[0])
        for _, case in found:
            yield case


def _cases(suite: str, args: argparse.Namespace, threads: int) -> Iterator[tuple[int, Case]]:
    """(how many layers of the suite come before it, a case)."""
    found: list[tuple[Layer, ConvProblem, float]] = []
    total = 0.0
    for layout in args.layouts:
        for layer in layers(suite, args.batch, args.dtype, layout):
            work = layer.count * layer.problem.flop
            total += work
            found += [(layer, problem, work) for problem in layer.problems(args.kinds)]
    works = sorted({work for *_, work in found}, reverse=True)
    for layer, problem, work in found:
        if not args.quick or work >= total / 20:
            key = {"suite": suite, "problem": problem.repro(),
                   "threads": threads or len(usable_cores())}  # fmt: skip
            key |= {"winograd": True} if args.winograd else {}
            yield works.index(work), Case(key, (layer, problem))


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    """The sides' processes are of one number of threads; those of another take their place."""
    scope, sides, most, now = ExitStack(), [], Row(), 0
    how = (3, 2.0) if args.quick else (args.rounds, LONGEST)

    def one(case: Case) -> Row:
        nonlocal sides, most, now
        threads = case.key["threads"]
        if now != threads:
            scope.close()
            sides = scope.enter_context(workers(2))
            for side in sides:
                if (found := side(configure, threads)) != threads:
                    raise ValueError(f"{threads} threads, but {found} cores")
            most = sides[0](_ceilings, threads)
        layer, problem = case.what
        given = problem.repro(), layer.transposed
        now = 0  # after a process that dies there are new ones
        row = sides[0](ours, *given, args.winograd)
        sides[1](theirs, *given)
        times = best(sides, *how, threads=threads)
        now = threads
        mine, *others = times.seconds
        gflops, gbytes = problem.flop / mine / 1e9, problem.bytes / mine / 1e9
        return {
            "layer": layer.name, "count": layer.count, "kind": problem.kind.value,
            "layout": problem.data_layout, "batch": problem.n, "dtype": args.dtype,
            **times.row, **row, "ms": mine * 1e3, "torch_ms": min(others) * 1e3,
            "ratio": mine / min(others), "gflops": gflops,
            "torch_gflops": problem.flop / min(others) / 1e9, "gbytes": gbytes, **most,
            "fma_share": gflops / most["fma_gflops"], "copy_share": gbytes / most["copy_gbytes"],
        }  # fmt: skip

    return one


def _ceilings(threads: int) -> Row:
    flops, gbytes = astuple(ceilings(cpu.host_target(threads), threads))
    return {"fma_gflops": flops / 1e9, "copy_gbytes": gbytes / 1e9}


def ours(text: str, transposed: bool, winograd: bool) -> Row:
    """Makes a problem's kernel, and compares what it gives with PyTorch in float32."""
    problem = ConvProblem.parse(text)
    a, b = map(tvm.runtime.tensor, random_operands(problem, np.random.default_rng(0)))
    target = cpu.host_target(torch.get_num_threads(), allow_winograd=winograd)
    start = time.perf_counter()
    made = cpu.kernel(problem, target)
    kernel = tvm.compile(made.func, target=target)["main"]
    compiled = time.perf_counter() - start
    out = tvm.runtime.tensor(poisoned(problem))
    ready(lambda: kernel(a, b, out))
    kernel(a, b, out)
    got = _canonical(problem, problem.roles[2], out)
    want = by_torch(problem, _tensors(problem, torch.float32), transposed)()
    error = relative_error(got.float().numpy(), want.double().numpy())
    most = _SLACK * tolerance(problem) + _WINOGRAD
    wrong = {} if error <= most else {"reason": f"wrong: error {error:.1e}, at most {most:.1e}"}
    return {"kernel": made.name, "compile_s": compiled, "error": error, **wrong}


def theirs(text: str, transposed: bool) -> None:
    """Makes PyTorch's calls, of tensors in either order of memory."""
    problem = ConvProblem.parse(text)
    tensors = _tensors(problem, getattr(torch, problem.data_dtype))
    last = torch.channels_last if problem.rank == 2 else torch.channels_last_3d
    ready(*(
        by_torch(problem, {role: x.contiguous(memory_format=order) for role, x in tensors.items()},
                 transposed)
        for order in (torch.contiguous_format, last)
    ))  # fmt: skip


def _tensors(problem: ConvProblem, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    arrays = (*random_operands(problem, np.random.default_rng(0)), poisoned(problem))
    return {
        role: _canonical(problem, role, tvm.runtime.tensor(x)).to(dtype)
        for role, x in zip(problem.roles, arrays, strict=True)
    }


def _canonical(problem: ConvProblem, role: str, x: tvm.runtime.Tensor) -> torch.Tensor:
    letters = (KERNELS if role == "weight" else ACTIVATIONS)[problem.rank]
    return torch.from_dlpack(x).permute(permutation(problem.layout(role), letters))


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Of each suite all layers, as often as they occur."""
    for size in sorted({taps_of(row) for row in rows}):
        shares = [roofline_share(row) for row in rows if taps_of(row) == size]
        yield f"{size}: {min(shares):.2f} to {max(shares):.2f} of the roofline, {len(shares)} rows"
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


def taps_of(row: Row) -> str:
    """What layers are alike in: taps, strides, and whether they are depthwise."""
    problem = ConvProblem.parse(row["problem"])
    words = "x".join(map(str, problem.taps))
    words += " strided" if set(problem.strides) != {1} else ""
    return words + (" depthwise" if problem.is_depthwise else "")


def roofline_share(row: Row) -> float:
    """Of what the ceilings let a layer do: min(peak, FLOP of a byte * bandwidth)."""
    return float(max(row["fma_share"], row["copy_share"]))


BENCHMARK = Benchmark(
    cases, begin, suites=(*SUITES, VOLUMES), by=("kind",), summary=summary,
    options={
        "quick": Option(False, "what takes most of the work, in four minutes"),
        "kinds": Option(KINDS, "", KINDS),
        "layouts": Option(("NHWC",), "", tuple(LAYOUTS)),
        "batch": Option(8, "images"),
        "dtype": Option("f32", "", DTYPES),
        "winograd": Option(False, "with Winograd's kernels, as `Trainer` has them"),
        "threads": Option(("0",), "numbers of threads; 0: of cores"),
        "rounds": Option(5, "in which all take turns"),
    },
    columns=(
        ("layer",), ("kind",), ("layout",), ("threads",), ("kernel",), ("times", "count"),
        ("ms", None, ".2f"),
        ("PyTorch", "torch_ms", ".2f"), ("ratio", None, ".2f"), ("GFLOP/s", "gflops", ".0f"),
        ("FMA", "fma_share", ".2f"), ("mem", "copy_share", ".2f"),
        ("roof", roofline_share, ".2f"), ("error", None, ".0e"),
        ("confirmed", lambda row: None if row.get("confirmed", True) else "no"), ("reason",),
    ),
)  # fmt: skip
