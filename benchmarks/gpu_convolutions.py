"""Convolutions on a GPU: generated code for vendors' libraries, and our kernels, beside PyTorch.

Each distinct convolution of the suites (`tests.support.layers`) is run as fprop, dgrad and wgrad in
each dtype: by our code, and by PyTorch with `torch.backends.cudnn.benchmark`, on the same NHWC
(channels_last) memory, in one process.  tf32 and f32 are both float32 tensors, with and without
leave to round operands to tf32, on both sides.

--backends: `cudnn` with plans chosen by timing; `cutlass` runs the CUTLASS kernels that the model
chooses, `wgmma` has Hopper's among them, and `tuned` takes the fastest of those that tuning tries;
they need nvcc, and the last two the headers of nvidia-cutlass.  `direct` runs our own kernels
(`cuda_direct`) where there are any, `generated` what TVM makes of `legalize.cuda`, in f32 and f16.
The lines `chosen` are of the fastest for every problem: what `benchmark=True` of the functions for
PyTorch and `select="measured"` get.  "floor" is the larger of the product's and the copy's time.

How it is timed: device events around several calls that were enqueued while the device idled, so
that launching is no part of it; five rounds in which both take turns; medians.  Inputs are random,
and several sets take turns where one would stay in the cache.  What a call costs the host is
measured apart, once, on a tiny convolution.

How it is checked: every result of ours starts as NaN, and is compared as a whole with PyTorch's and
in part with float64 (two images, or for wgrad a few filters over all images).

The batch is the largest power of two up to --batch with at most 8 GiB in the three tensors, fewer
than 2^31 elements in each, and no more than a few milliseconds of arithmetic (which only tf32 and
f32 reach).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi

from benchmarks import gpu_cases
from benchmarks.gpu_cases import BACKENDS, MODES, PLANS, build, common, pin, plan_of, tiny
from benchmarks.runner import Benchmark, Case, Measure, Option, Row, means
from legalize.cuda import prim_func
from relay_wgrad.problem import ConvProblem
from tests.support.gpu.runner import choose_compiler
from tests.support.layers import SUITES

KINDS = ("fprop", "dgrad", "wgrad")
MOST_RESERVED = 32 << 30  # of PyTorch's cache: plans must find memory for their workspaces
LARGE = 20e6  # bytes: of a problem whose time is the memory's, not the launch's


def cases(args: argparse.Namespace) -> list[Case]:
    wanted = gpu_cases.cases(args.suite, args.kinds, args.dtypes, args.batch, args.backends)
    if args.common:
        wanted = common(wanted, args.backends)
    return [
        Case({"problem": case.problem.repro(), "mode": case.mode, "transposed": case.transposed,
              "backend": case.backend}, case)
        for case in wanted
    ]  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    import torch

    from benchmarks import gpu_timing

    small, mine = tiny(), [case.what for case in cases]
    pin(mine, args.candidates, lambda *_: None)
    own = [case for case in mine if case.backend == "generated"]
    functions: dict[str, Any] = _generated(own) if own else {}
    paths = build([small, *(case for case in mine if case.backend != "generated")], args.folder)
    libraries = {path: tvm_ffi.load_module(str(path)) for path in set(paths.values())}
    functions |= {symbol: libraries[path][symbol] for symbol, path in paths.items()}
    floors = gpu_timing.floors(args.dtypes)
    args.found |= {"floors": floors, "host_us": gpu_timing.host_us(small, functions["tiny"])}

    def one(case: Case) -> Row:
        it = case.what
        if torch.cuda.memory_reserved() > MOST_RESERVED:
            torch.cuda.empty_cache()
        seed = int(it.symbol.removeprefix("case"))
        row = facts(it) | gpu_timing.measure(it, functions[it.symbol], seed)
        if it.symbol in paths:
            row["plan"] = plan_of(it, str(libraries[paths[it.symbol]][PLANS[it.vendor]]()))
        return derived(row, floors)

    return one


def _generated(mine: Sequence[gpu_cases.Case]) -> dict[str, Any]:
    """TVM's kernels by their symbols, compiled together."""
    choose_compiler()
    target = tvm.target.Target.from_device(tvm.cuda(0))
    functions = {
        case.symbol: prim_func(case.problem, target).with_attr("global_symbol", case.symbol)
        for case in mine
    }
    module = tvm.compile(tvm.IRModule(functions), target=target)
    kernels = {symbol: module[symbol] for symbol in functions}
    return {
        symbol: lambda *tensors, kernel=kernel: kernel(*map(tvm.runtime.from_dlpack, tensors))
        for symbol, kernel in kernels.items()
    }


def facts(case: gpu_cases.Case) -> Row:
    """A row before it is measured."""
    return {
        "name": case.name, "kind": case.kind, "mode": case.mode, "backend": case.backend,
        "uses": case.uses, "transposed": case.transposed, "batch": case.problem.n,
        "problem": case.problem.repro(), "flop": case.problem.flop, "bytes": case.problem.bytes,
    }  # fmt: skip


def derived(row: Row, floors: Row) -> Row:
    """The row with rates, and with its time's share of the floor: the least that it could take."""
    floor = max(row["flop"] / floors["peak"][row["mode"]], row["bytes"] / floors["bandwidth"])
    return {
        **row, "ratio": row["seconds"] / row["torch_seconds"], "floor_seconds": floor,
        "share": floor / row["seconds"], "tflops": row["flop"] / row["seconds"] / 1e12,
        "torch_tflops": row["flop"] / row["torch_seconds"] / 1e12,
    }  # fmt: skip


# ---- summaries -----------------------------------------------------------------------------------


def classes_of(row: Row) -> tuple[str, ...]:
    """What a row counts for beside its networks: all, and its convolution's class."""
    p = ConvProblem.parse(row["problem"])
    if p.groups > 1:
        return "all", "depthwise" if p.groups == p.c else "grouped"
    if min(p.c, p.k) <= 8:
        return "all", "few channels" if p.c <= 4 else "few filters"
    return "all", "dense"


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Of each problem the row of the fastest backend."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda r: r["seconds"]):
        found.setdefault((row["problem"], row["mode"], row["transposed"]), row)
    return list(found.values())


def chosen_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Of the fastest backend for each problem, by network and class, dtype, size and kind: means of
    the time ratio and of the floor's share."""
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in chosen(rows):
        for name in (*row["uses"], *classes_of(row)):
            for large in (False, True)[: 1 + (row["bytes"] >= LARGE)]:
                groups.setdefault((name, row["mode"], large), []).append(row)
    for (name, mode, large), own in sorted(groups.items()):
        size = f", {LARGE / 1e6:.0f} MB and more" if large else ""
        share = statistics.geometric_mean(row["share"] for row in own)
        kinds = "; ".join(means(own, ("kind",)))
        yield f"chosen {name} {mode}{size}: {share:.2f} of the floor; {kinds}"


def totals(rows: Sequence[Row]) -> Iterator[str]:
    """Milliseconds in one pass over each network, each layer as often as the network has it, and at
    the network's largest batch (time is taken to grow with the batch)."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        for name in row["uses"]:
            groups.setdefault((name, row["backend"], row["mode"], row["kind"]), []).append(row)
    for key, own in groups.items():
        batch = max(row["batch"] for row in own)
        times = [row["uses"][key[0]] * batch / row["batch"] for row in own]
        ours, theirs = (
            1e3 * sum(n * row[side] for n, row in zip(times, own, strict=True))
            for side in ("seconds", "torch_seconds")
        )
        yield f"one pass, {' '.join(key)}: {ours:.2f} ms, PyTorch {theirs:.2f}, {len(own)} layers"


BENCHMARK = Benchmark(
    cases, begin, suites=SUITES, by=("backend", "mode", "kind"),
    summary=lambda rows: (*totals(rows), *chosen_lines(rows)),
    options={
        "kinds": Option(KINDS, "", KINDS),
        "dtypes": Option(tuple(MODES), "", tuple(MODES)),
        "backends": Option(("cudnn",), "", tuple(BACKENDS)),
        "common": Option(False, "only what all of the backends take"),
        "batch": Option(256, "images, at most"),
        "candidates": Option(8, "that `tuned` tries for a problem"),
    },
    columns=(
        ("layer", "name"), ("kind",), ("dtype", "mode"), ("n", "batch"), ("backend",),
        ("µs", "seconds", ".1f", 1e6), ("PyTorch", "torch_seconds", ".1f", 1e6),
        ("ratio", None, ".2f"), ("TFLOP/s", "tflops", ".1f"), ("% of floor", "share", ".0f", 100),
        ("spread %", "spread", ".0f", 100), ("error", None, ".0e"),
        ("plan", lambda row: row["plan"][:24]), ("reason",),
    ),
)  # fmt: skip
