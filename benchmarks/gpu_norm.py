"""Batch normalization in training on a GPU: our kernels against PyTorch's, and memory's rate.

    python -m benchmarks.gpu_norm [--network resnet50] [--batch 256,64] [--modes bf16,f16,f32]
                                  [--budget 55]

The normalizations of ResNet-50, each with what follows it: a ReLU, a sum with what went around the
block (or with that one's normalization), the stem's max pooling; or EfficientNet-B0's that a SiLU
follows; channels last.  A pass is one read or one write of a tensor: with ReLU 3 forward and 5
backward, with an addition 4 and 6.  TB/s are bytes over time, beside those of a copy in the same
run.  Times are device events, medians, of inputs that take turns where they would stay in the
cache; the host is ahead.  Errors are relative norms against float64.  What the budget (in seconds)
leaves unmeasured is named.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_norm_shapes import (
    DTYPES,
    EPSILON,
    MOMENTUM,
    NETWORKS,
    Case,
    Tensors,
    cases,
    relative,
    wanted,
)
from benchmarks.gpu_timing import L2_BYTES, timed
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.norm import generate, inputs
from relay_wgrad import output

Call = Callable[[], Any]
ROUNDS = 3
ENOUGH = 2e-3  # seconds of calls in a round
IDLE = 300_000  # clocks of waiting for each call: what PyTorch's host takes for a backward pass
# Largest relative errors: a rounding of the result, or of float32 sums.
LIMITS = {"bf16": 4e-3, "f16": 5e-4, "f32": 1e-5, "f64": 1e-13}


def load(calls: list[Any], folder: Path, generate: Any, inputs: Any) -> Any:
    """The functions of a family's calls, with kernels for the GPU that is there."""
    import tvm_ffi

    major, minor = torch.cuda.get_device_capability()
    source, library = folder / "calls.cc", folder / "calls.so"
    text = generate(calls, 10 * major + minor)
    source.write_text(text, encoding="utf-8")
    subprocess.run(library_command(source, library, inputs=inputs(text)), check=True)
    return tvm_ffi.load_module(str(library))


def median(calls: list[Call], idle: int = IDLE) -> float:
    """Seconds of a call."""
    timed(calls, 2, idle)
    count = max(3, min(60, math.ceil(ENOUGH / max(timed(calls, 2, idle), 1e-7))))
    return statistics.median(timed(calls, count, idle) for _ in range(ROUNDS))


def copy_rate() -> float:
    """Bytes per second of a large copy, read and written."""
    a = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    return 2 * a.numel() / median([lambda: b.copy_(a)])


# ---- PyTorch's ---------------------------------------------------------------------------------


def theirs(t: Tensors) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """The same in PyTorch: a function of x, parameters and residual, and its arguments."""
    case = t.case

    def block(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, *more: Any) -> torch.Tensor:
        out = F.batch_norm(x, mean, var, gamma, beta, True, MOMENTUM, EPSILON)
        if case.two:
            x2, gamma2, beta2, mean2, var2 = more
            out = out + F.batch_norm(x2, mean2, var2, gamma2, beta2, True, MOMENTUM, EPSILON)
        elif more:
            out = out + more[0]
        out = getattr(F, case.activation)(out) if case.activation else out
        return F.max_pool2d(out, 3, 2, 1) if case.pooled else out

    def image(value: torch.Tensor) -> torch.Tensor:
        return value.permute(0, 3, 1, 2).detach().requires_grad_()

    args = []
    for which in ("", "2") if case.two else ("",):
        parameters = [getattr(t, name + which).detach().clone() for name in ("gamma", "beta")]
        running = [getattr(t, f"running_{name}{which}").clone() for name in ("mean", "var")]
        args += [image(getattr(t, "x" + which)), *(p.requires_grad_() for p in parameters)]
        args += running
    if t.residual is not None:
        args.append(image(t.residual))
    return block, args


def torch_times(sets: list[Tensors], compiled: bool) -> dict[str, float]:
    """Milliseconds of PyTorch: forward, and backward, which reads what forward kept."""
    forward, backward = [], []
    function: Any = None
    for t in sets:
        block, args = theirs(t)
        if function is None or not compiled:
            function = torch.compile(block, dynamic=False) if compiled else block
        grad = t.dy.permute(0, 3, 1, 2)
        out = function(*args)
        needs = [a for a in args if a.requires_grad]
        forward.append(lambda f=function, args=args: f(*args))
        backward.append(
            lambda out=out, needs=needs, grad=grad: torch.autograd.grad(
                out, needs, grad, retain_graph=True
            )
        )
    return {"forward": 1e3 * median(forward), "backward": 1e3 * median(backward)}


# ---- a case ------------------------------------------------------------------------------------


def measure(case: Case, functions: Any) -> tuple[dict[str, Any], list[Tensors]]:
    sets = [Tensors(case, i) for i in range(max(1, math.ceil(L2_BYTES / case.tensor_bytes)))]
    found: dict[str, Any] = {}
    for t in sets:
        t.poison()
    for direction in ("forward", "backward"):
        call = case.call(direction)
        calls = [partial(functions[call.symbol], *t.args(call)) for t in sets]
        for one in calls:
            one()
        found[direction] = 1e3 * median(calls)
    want = wanted(sets[0])
    errors = {name: relative(getattr(sets[0], name), value) for name, value in want.items()}
    found["error"], found["worst"] = max((e, name) for name, e in errors.items())
    limit = LIMITS[case.mode]
    wrong = [f"{name} {e:.1e}" for name, e in errors.items() if not e <= limit]
    if wrong:
        found["reason"] = f"wrong: {', '.join(wrong)}, at most {limit:.0e}"
    return found, sets


def run(args: argparse.Namespace) -> dict[str, Any]:
    begin = time.perf_counter()
    batches = [int(b) for b in args.batch.split(",")]
    modes = args.modes.split(",")
    todo = [c for batch in batches for mode in modes for c in cases(batch, mode, args.network)]
    calls = {c.call(d).symbol: c.call(d) for c in todo for d in ("forward", "backward")}
    rows, left = [], []
    with tempfile.TemporaryDirectory() as folder:
        functions = load(list(calls.values()), Path(folder), generate, inputs)
        built, copy = time.perf_counter() - begin, copy_rate()
        for case in todo:
            if time.perf_counter() - begin > args.budget:
                left.append(case)
                continue
            row, sets = measure(case, functions)
            row["eager"] = torch_times(sets, compiled=False)
            wanted_too = case.mode in args.compiled.split(",") and case.batch == batches[0]
            if wanted_too and time.perf_counter() - begin < 0.7 * args.budget:
                torch._dynamo.reset()
                row["compile"] = torch_times(sets, compiled=True)
            for direction, size in zip(("forward", "backward"), case.moved, strict=True):
                row[f"{direction}_gb"] = size / 1e9
                row[f"{direction}_share"] = size / (row[direction] * 1e-3) / copy
            rows.append({**vars(case), **row})
            del sets
    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy": copy,
        "build_seconds": built, "rows": rows, "left": [str(c) for c in left],
        "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def totals(rows: list[dict[str, Any]], side: str) -> float:
    """Milliseconds of a network's normalizations; NaN where one was not measured."""
    total = 0.0
    for row in rows:
        times = row if side == "ours" else row.get(side)
        total += row["times"] * (times["forward"] + times["backward"] if times else math.nan)
    return total


def show(result: dict[str, Any]) -> None:
    console = Console(width=150, highlight=False)
    copy = result["copy"]
    table = Table(title=f"{result['device']}, a copy {copy / 1e12:.2f} TB/s; milliseconds")
    sides = ("TB/s", "of copy", "eager", "compile")
    first = ("batch", "mode", "×", "C", "side", "after")
    for name in (*first, "forward", *sides, "backward", *sides, "error"):
        table.add_column(name)
    for row in result["rows"]:
        times = []
        for d in ("forward", "backward"):
            share = row[f"{d}_share"]
            other = row["compile"][d] if "compile" in row else math.nan
            times += [f"{row[d]:.3f}", f"{share * copy / 1e12:.2f}", f"{share:.2f}",
                      f"{row['eager'][d]:.3f}", f"{other:.3f}"]  # fmt: skip
        table.add_row(
            str(row["batch"]), row["mode"], str(row["times"]), str(row["channels"]),
            str(row["side"]), row["after"], *times,
            row.get("reason", f"{row['error']:.1e} {row['worst']}"),
        )  # fmt: skip
    console.print(table)
    groups = dict.fromkeys((row["batch"], row["mode"]) for row in result["rows"])
    for batch, mode in groups:
        rows = [r for r in result["rows"] if (r["batch"], r["mode"]) == (batch, mode)]
        ours, eager, compiled = (totals(rows, side) for side in ("ours", "eager", "compile"))
        gb = sum(r["times"] * (r["forward_gb"] + r["backward_gb"]) for r in rows)
        console.print(
            f"batch {batch} {mode}: {len(rows)} rows, ours {ours:.2f} ms ({gb:.1f} GB,"
            f" {gb / ours:.2f} TB/s; at the copy's rate {gb * 1e12 / copy:.2f} ms),"
            f" eager {eager:.2f}, compile {compiled:.2f}"
        )
    console.print(f"built in {result['build_seconds']:.1f} s, {result['seconds']:.1f} s in all")
    for line in result["left"]:
        console.print(f"not measured: {line}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_norm", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--network", choices=NETWORKS, default="resnet50")
    parser.add_argument("--batch", default="256,64")
    parser.add_argument("--modes", default="bf16,f16,f32", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--compiled", default="bf16", help="modes with torch.compile too")
    parser.add_argument("--budget", type=float, default=55, help="seconds (default 55)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    result = run(args)
    show(result)
    if args.json:
        output.write_json(args.json, result)
    return 1 if any("reason" in row for row in result["rows"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
