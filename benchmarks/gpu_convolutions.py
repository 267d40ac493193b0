"""Convolutions on a GPU: generated code for vendors' libraries, and our kernels, beside PyTorch.

Each distinct convolution of the suites (`tests.support.layers`) is run as fprop, dgrad and wgrad in
each dtype: by our code, and by PyTorch with `torch.backends.cudnn.benchmark`, on the same NHWC
(channels_last) memory, in one process.  tf32 and f32 are both float32 tensors, with and without
leave to round operands to tf32, on both sides.

--backends: `cudnn` with plans chosen by timing; `cutlass` runs the CUTLASS kernels that the model
chooses, `wgmma` has Hopper's among them; they need nvcc, and the last one the headers of
nvidia-cutlass.  `direct` runs our own kernels (`cuda_direct`) where there are any, --tries of them,
a row each with the time that the model predicts; `generated` what TVM makes of `legalize.cuda`, in
f32 and f16.  The lines `chosen` are of the fastest for every problem: what `benchmark=True` of the
functions for PyTorch and `select="measured"` get.  "floor" is the larger of the product's and the
copy's time.

How it is timed: device events around several calls that were enqueued while the device idled, so
that launching is no part of it; five rounds in which both take turns; medians.  Inputs are random,
and several sets take turns where one would stay in the cache.

How it is checked: every result of ours starts as NaN, and is compared as a whole with PyTorch's and
in part with float64 (two images, or for wgrad a few filters over all images).

The batch is the largest power of two up to --batch with at most 8 GiB in the three tensors, fewer
than 2^31 elements in each, and no more than a few milliseconds of arithmetic (which only tf32 and
f32 reach).
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import tvm
import tvm_ffi

from benchmarks import gpu_cases
from benchmarks.gpu_cases import BACKENDS, MODES, build
from benchmarks.runner import Benchmark, Case, Measure, Option, Row, means
from byoc_cudnn.backends.cuda_direct.depthwise import strip_of
from byoc_cudnn.backends.cuda_direct.model import Choice
from legalize.cuda import prim_func
from relay_wgrad.problem import ConvProblem
from tests.support.gpu.runner import choose_compiler
from tests.support.layers import SUITES

KINDS = ("fprop", "dgrad", "wgrad")
MOST_RESERVED = 32 << 30  # of PyTorch's cache: plans must find memory for their workspaces
LARGE = 20e6  # bytes: of a problem whose time is the memory's, not the launch's


def cases(args: argparse.Namespace) -> list[Case]:
    return [
        Case({"problem": case.problem.repro(), "mode": case.mode, "transposed": case.transposed,
              "backend": case.backend, "kernel": case.choice and case.choice.kernel.name}, case)
        for case in gpu_cases.cases(
            args.suite, args.kinds, args.dtypes, args.batch, args.backends, args.tries
        )
    ]  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    import torch

    from benchmarks import gpu_timing

    mine = [case.what for case in cases]
    own = [case for case in mine if case.backend == "generated"]
    functions: dict[str, Any] = _generated(own) if own else {}
    paths = build([case for case in mine if case.backend != "generated"], args.folder)
    libraries = {path: tvm_ffi.load_module(str(path)) for path in set(paths.values())}
    functions |= {symbol: libraries[path][symbol] for symbol, path in paths.items()}
    args.found["floors"] = floors = gpu_timing.floors(args.dtypes)

    def one(case: Case) -> Row:
        it = case.what
        if torch.cuda.memory_reserved() > MOST_RESERVED:
            torch.cuda.empty_cache()
        return derived(facts(it) | gpu_timing.measure(it, functions[it.symbol], 0), floors)

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
    """A row before it is measured; of our own kernels with what the model says."""
    choice = case.choice
    return {
        **({"predicted_us": choice.us, "work": _work(case.problem, choice)} if choice else {}),
        "name": case.name, "kind": case.kind, "mode": case.mode, "backend": case.backend,
        "uses": case.uses, "transposed": case.transposed, "batch": case.problem.n,
        "problem": case.problem.repro(), "flop": case.problem.flop, "bytes": case.problem.bytes,
    }  # fmt: skip


def _work(problem: ConvProblem, choice: Choice) -> dict[str, Any]:
    """What the model of depthwise kernels counts, to be fitted to other times."""
    if choice.kernel.family not in ("depthwise_rows", "depthwise_sums"):
        return {}
    return asdict(strip_of(problem, choice.kernel.numbers).work())


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


def model_lines(rows: Sequence[Row]) -> Iterator[str]:
    """How good the model of our own kernels is at times, and at the first of several."""
    tried: dict[tuple[str, str], list[Row]] = {}
    for row in (row for row in rows if "predicted_us" in row):
        tried.setdefault((row["problem"], row["mode"]), []).append(row)
    groups = tried.values()
    ratios = [row["predicted_us"] / row["seconds"] * 1e-6 for own in groups for row in own]
    lost = [min(own, key=lambda row: row["predicted_us"])["seconds"]
            / min(row["seconds"] for row in own) for own in groups if len(own) > 1]  # fmt: skip
    if ratios:
        rms = math.sqrt(statistics.fmean(math.log(x) ** 2 for x in ratios))
        mean = statistics.geometric_mean(ratios)
        yield f"the model's times are {mean:.2f} of these, rms {rms:.2f}"
    if lost:
        good = sum(x <= 1.05 for x in lost)
        yield f"its first is within 5 % of the best of {good} of {len(lost)}, worst {max(lost):.2f}"


BENCHMARK = Benchmark(
    cases, begin, suites=SUITES, by=("backend", "mode", "kind"),
    summary=lambda rows: (*totals(rows), *chosen_lines(rows), *model_lines(rows)),
    options={
        "kinds": Option(KINDS, "", KINDS),
        "dtypes": Option(tuple(MODES), "", tuple(MODES)),
        "backends": Option(("cudnn",), "", tuple(BACKENDS)),
        "batch": Option(256, "images, at most"),
        "tries": Option(1, "kernels of `direct` for a problem"),
    },
    columns=(
        ("layer", "name"), ("kind",), ("dtype", "mode"), ("n", "batch"), ("backend",),
        ("µs", "seconds", ".1f", 1e6), ("PyTorch", "torch_seconds", ".1f", 1e6),
        ("ratio", None, ".2f"), ("TFLOP/s", "tflops", ".1f"), ("% of floor", "share", ".0f", 100),
        ("spread %", "spread", ".0f", 100), ("error", None, ".0e"),
        ("kernel",), ("model, µs", "predicted_us", ".1f"), ("reason",),
    ),
)  # fmt: skip
