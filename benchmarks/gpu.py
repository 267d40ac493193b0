"""Convolutions on a GPU: the generated code for vendors' libraries against PyTorch.

    python -m benchmarks.gpu [--suites resnet50,vgg16,…] [--kinds …] [--dtypes …] [--json FILE]

Each distinct convolution of the suites (`tests.support.layers`) is run as fprop, dgrad and wgrad in
each dtype: by our generated cuDNN code with plans chosen by timing, and by PyTorch with
`torch.backends.cudnn.benchmark`, on the same NHWC (channels_last) memory, in one process.  tf32 and
f32 are both float32 tensors, with and without leave to round operands to tf32, on both sides.
`--backends cutlass` runs the CUTLASS kernels that the model chooses, `wgmma` has Hopper's among
them, and `tuned` takes the fastest of those that tuning tries; they need nvcc, and the last two the
headers of nvidia-cutlass.  `direct` runs our own kernels (`cuda_direct`) where there are any.  With
several backends, `best` is the fastest of them for each problem that more than one took, and the
lines `chosen` are of the fastest for every problem: what `benchmark=True` of the functions for
PyTorch and `select="measured"` get.  "floor" is the larger of the product's and the copy's time.

How it is timed: device events around several calls that were enqueued while the device idled, so
that launching is no part of it; five rounds in which both take turns; medians.  Inputs are random,
and several sets take turns where one would stay in the cache.  What a call costs the host is
measured apart, once, on a tiny convolution.

How it is checked: every result of ours starts as NaN, and is compared as a whole with PyTorch's and
in part with float64 (two images, or for wgrad a few filters over all images).  A row that fails or
is wrong is shown with the reason and is in no mean; the exit status is then 1.

The batch is the largest power of two up to --batch with at most 8 GiB in the three tensors, fewer
than 2^31 elements in each, and no more than a few milliseconds of arithmetic (which only tf32 and
f32 reach); each row says what it was.  --resume takes finished rows from the --json file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import gpu_report
from benchmarks.gpu_cases import (
    BACKENDS,
    MODES,
    PLANS,
    Case,
    build,
    cases,
    common,
    pin,
    plan_of,
    tiny,
)
from tests.support.layers import SUITES

# Of PyTorch's cache, between cases: plans of ours must find memory for their workspaces.
MOST_RESERVED = 32 << 30
QUICK = {"suites": ["keras", "dcgan"], "dtypes": ["f16", "tf32"], "batch": 64}


def choice(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A comma-separated option's parser."""

    def parse(text: str) -> list[str]:
        words = list(dict.fromkeys(word for word in text.split(",") if word))
        unknown = [word for word in words if word not in known]
        if unknown or not words:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or 'nothing'}: expected some of {','.join(known)}"
            )
        return words

    return parse


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    kinds = ("fprop", "dgrad", "wgrad")
    for name, known in (
        ("suites", tuple(SUITES)), ("kinds", kinds), ("dtypes", tuple(MODES)),
        ("backends", tuple(BACKENDS)),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=choice(known), default=None, metavar="A,B,…",
                            help=f"some of {','.join(known)};"
                            f" default: {'cudnn' if name == 'backends' else 'all'}")  # fmt: skip
    parser.add_argument("--common", action="store_true",
                        help="only what all of the backends take")  # fmt: skip
    parser.add_argument("--batch", type=int, default=None, help="default: 256")
    parser.add_argument("--candidates", type=int, default=8, metavar="N",
                        help="that `tuned` tries for a problem; default: 8")  # fmt: skip
    parser.add_argument("--quick", action="store_true",
                        help="keras and dcgan, f16 and tf32, batch 64, unless said")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything, also while it runs")
    parser.add_argument("--resume", action="store_true", help="keep the rows that --json holds")
    parser.add_argument("--time-budget", type=float, default=480.0, metavar="SECONDS",
                        help="then stop, and say what is left out; default: 480")  # fmt: skip
    args = parser.parse_args(argv)
    full = {"suites": list(SUITES), "kinds": list(kinds), "dtypes": list(MODES),
            "backends": ["cudnn"], "batch": 256}  # fmt: skip
    for name, value in (full | QUICK if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.batch < 1:
        parser.error(f"--batch must be at least 1, got {args.batch}")
    if args.resume and args.json is None:
        parser.error("--resume needs --json")
    return args


def about() -> dict[str, Any]:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(), "sm": f"{major}{minor}", "driver": driver(),
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
    }  # fmt: skip


def driver() -> str:
    """The kernel driver's version, without running a program."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "unknown"
    return next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), "unknown")


def facts(case: Case) -> dict[str, Any]:
    """A row before it is measured."""
    return {
        "name": case.name, "kind": case.kind, "mode": case.mode, "backend": case.backend,
        "uses": case.uses, "transposed": case.transposed, "batch": case.problem.n,
        "problem": case.problem.repro(), "flop": case.problem.flop, "bytes": case.problem.bytes,
    }  # fmt: skip


def derived(row: dict[str, Any], floors: dict[str, Any]) -> dict[str, Any]:
    """The row with rates, and with its time's share of the floor: the least that it could take."""
    floor = max(row["flop"] / floors["peak"][row["mode"]], row["bytes"] / floors["bandwidth"])
    return {
        **row, "ratio": row["seconds"] / row["torch_seconds"], "floor_seconds": floor,
        "share": floor / row["seconds"], "tflops": row["flop"] / row["seconds"] / 1e12,
        "torch_tflops": row["flop"] / row["torch_seconds"] / 1e12,
    }  # fmt: skip


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["problem"], row["mode"], row["transposed"], row["backend"]


def finished(args: argparse.Namespace, here: dict[str, Any]) -> dict[Any, dict[str, Any]]:
    """Rows of an earlier run, by identity, that need no second one; only of the same machine."""
    if not args.resume or not args.json.exists():
        return {}
    earlier = json.loads(args.json.read_text(encoding="utf-8"))
    if any(earlier["about"].get(key) != value for key, value in here.items() if key != "date"):
        raise SystemExit(f"{args.json} is of another machine or other versions")
    return {identity(row): row for row in gpu_report.good(earlier["rows"])}


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Builds, measures, and keeps the file up to date."""
    import torch
    import tvm_ffi

    from benchmarks import gpu_timing

    begin = time.perf_counter()
    here = about()
    known = finished(args, here)
    wanted = cases(args.suites, args.kinds, args.dtypes, args.batch, args.backends)
    if args.common:
        wanted = common(wanted, args.backends)
    pending = [case for case in wanted if identity(facts(case)) not in known]
    with tempfile.TemporaryDirectory() as folder:
        # Plans are chosen afresh, unless the caller names a tuning record.
        os.environ.setdefault("RELAY_WGRAD_CACHE", folder)
        small = tiny()
        tuned = pin(pending, args.candidates, lambda *_: None)
        if tuned:
            console.print(f"{tuned} kernels tuned after {time.perf_counter() - begin:.0f} s")
        paths = build([small, *pending], Path(folder))
        loaded = {path: tvm_ffi.load_module(str(path)) for path in dict.fromkeys(paths.values())}
        modules = {symbol: loaded[path] for symbol, path in paths.items()}
        console.print(f"{len(wanted)} cases, {len(known)} known; code built after"
                      f" {time.perf_counter() - begin:.0f} s")  # fmt: skip
        floors = gpu_timing.floors(args.dtypes)
        result: dict[str, Any] = {
            "about": here, "floors": floors,
            "host_us": gpu_timing.host_us(small, modules[small.symbol][small.symbol]),
            "rows": [{**row, "uses": case.uses} for case in wanted
                     if (row := known.get(identity(facts(case))))],
            "left_out": [case.text for case in pending],
        }  # fmt: skip
        for seed, case in enumerate(pending):
            if time.perf_counter() - begin > args.time_budget:
                break
            row, module = facts(case), modules[case.symbol]
            try:
                row |= gpu_timing.measure(case, module[case.symbol], seed)
                row = derived(row, floors)
                row["plan"] = plan_of(case, str(module[PLANS[case.vendor]]()))
            except Exception as error:  # one failure must not cost the other rows
                row["reason"] = f"{type(error).__name__}: {error}"[:1000]
            result["rows"].append(row)
            result["left_out"].pop(0)
            if torch.cuda.memory_reserved() > MOST_RESERVED:
                torch.cuda.empty_cache()
            if seed % 25 == 24:
                console.print(progress(row, seed + 1, len(pending), time.perf_counter() - begin))
                if args.json:
                    gpu_report.save(args.json, result)
        result["seconds"] = time.perf_counter() - begin
    if args.json:
        gpu_report.save(args.json, result)
    return result


def progress(row: dict[str, Any], done: int, count: int, seconds: float) -> str:
    outcome = row.get("reason", "")[:60] or f"ratio {row['ratio']:.2f}"
    return f"{done}/{count} {seconds:.0f} s: {row['kind']} {row['name']} {row['mode']} {outcome}"


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        import torch
    except ImportError:
        print("benchmarks.gpu needs PyTorch for CUDA", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("benchmarks.gpu needs an NVIDIA GPU and PyTorch for CUDA", file=sys.stderr)
        return 2
    console = Console(width=130, highlight=False)
    result = run(args, console)
    gpu_report.show(console, args.suites, result)
    return 1 if len(gpu_report.good(result["rows"])) < len(result["rows"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
