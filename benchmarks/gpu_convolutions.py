"""Convolutions on a GPU: generated code for vendors' libraries, and our kernels, beside PyTorch.

Each distinct convolution of the suites (`tests.support.layers`) is run as fprop, dgrad and wgrad in
each dtype: by our code, and by PyTorch with `torch.backends.cudnn.benchmark`, on the same NHWC
(channels_last) memory, in one process.  tf32 and f32 are both float32 tensors, with and without
leave to round operands to tf32, on both sides.

--backends: `cudnn` with plans chosen by timing; `cutlass` runs the CUTLASS kernels that the model
chooses, `wgmma` has Hopper's among them; they need nvcc, and the last one the headers of
nvidia-cutlass; `direct` runs our own kernels (`cuda_direct`) where there are any.  "floor" is the
larger of the product's and the copy's time.

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
from collections.abc import Iterator, Sequence

import tvm_ffi

from benchmarks import gpu_cases
from benchmarks.gpu_cases import BACKENDS, build
from benchmarks.modes import MODES
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.problem import ConvKind
from tests.support.layers import SUITES

KINDS = tuple(kind.value for kind in ConvKind)
MOST_RESERVED = 32 << 30  # of PyTorch's cache: plans must find memory for their workspaces


def cases(args: argparse.Namespace) -> list[Case]:
    return [
        Case({"problem": case.problem.repro(), "mode": case.mode, "transposed": case.transposed,
              "backend": case.backend}, case)
        for case in gpu_cases.cases(
            args.suite, args.kinds, args.dtypes, args.batch, args.backends
        )
    ]  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    import torch

    from benchmarks import gpu_timing

    paths = build([case.what for case in cases], args.folder)
    libraries = {path: tvm_ffi.load_module(str(path)) for path in set(paths.values())}
    functions = {symbol: libraries[path][symbol] for symbol, path in paths.items()}
    args.found["floors"] = floors = gpu_timing.floors(args.dtypes)

    def one(case: Case) -> Row:
        it = case.what
        if torch.cuda.memory_reserved() > MOST_RESERVED:
            torch.cuda.empty_cache()
        return derived(facts(it) | gpu_timing.measure(it, functions[it.symbol], 0), floors)

    return one


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
    summary=lambda rows: totals(rows),
    options={
        "kinds": Option(KINDS, "", KINDS),
        "dtypes": Option(tuple(MODES), "", tuple(MODES)),
        "backends": Option(("cudnn",), "", tuple(BACKENDS)),
        "batch": Option(256, "images, at most"),
    },
    columns=(
        ("layer", "name"), ("kind",), ("dtype", "mode"), ("n", "batch"), ("backend",),
        ("µs", "seconds", ".1f", 1e6), ("PyTorch", "torch_seconds", ".1f", 1e6),
        ("ratio", None, ".2f"), ("TFLOP/s", "tflops", ".1f"), ("% of floor", "share", ".0f", 100),
        ("spread %", "spread", ".0f", 100), ("error", None, ".0e"),
        ("reason",),
    ),
)  # fmt: skip
