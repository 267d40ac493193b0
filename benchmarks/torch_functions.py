"""The PyTorch functions against PyTorch's own: a call's overhead, and an autoencoder's step.

    python -m benchmarks.torch_functions [--device cuda] [--json FILE]

Overhead: microseconds of the host for a convolution so small that its kernels take no time to speak
of, the functions taking turns; the lowest of several rounds.  Step: the layer of
`examples/autoencoder_torch.py` (a convolution by w_f, ReLU, a transposed convolution by w_b, one
`torch.autograd.Function`) with its three gradients, against the same layer of PyTorch's functions
under autograd, on the same tensors; device events on CUDA, wall time on the CPU; medians.
Gradients are compared in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import relay_wgrad.torch as rt
from examples.autoencoder_torch import PADDING, STRIDE, Autoencoder
from relay_wgrad import output

F = torch.nn.functional
ROUNDS, CALLS = 7, 200
# images, channels, codes' channels, side
LAYERS = ((256, 64, 128, 56), (64, 128, 256, 28))
LIMITS = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}

Step = Callable[[], Any]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def host_us(call: Step, device: str) -> float:
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    spent = time.perf_counter() - begin
    synchronize(device)
    return spent / CALLS * 1e6


def overhead(device: str) -> dict[str, dict[str, float]]:
    """Name of what is called -> whose -> microseconds."""
    x = torch.randn(1, 8, 8, 8, device=device)
    w = torch.randn(8, 8, 3, 3, device=device)
    leaves = [t.clone().requires_grad_() for t in (x, w)]
    v = torch.ones(1, 8, 6, 6, device=device)
    functions = {"ours": rt.convolution, "torch": F.conv2d}
    calls: dict[str, dict[str, Step]] = {
        "forward, no gradient": {n: lambda f=f: f(x, w) for n, f in functions.items()},
        "forward, recorded": {n: lambda f=f: f(*leaves) for n, f in functions.items()},
        "forward and backward()": {
            n: lambda f=f: f(*leaves).backward(v) for n, f in functions.items()
        },
        "forward and autograd.grad": {
            n: lambda f=f: torch.autograd.grad(f(*leaves), leaves, v) for n, f in functions.items()
        },
    }
    found: dict[str, dict[str, float]] = {}
    for what, both in calls.items():
        times: dict[str, list[float]] = {name: [] for name in both}
        for _ in range(ROUNDS):
            for name, call in both.items():
                times[name].append(host_us(call, device))
        found[what] = {name: min(values) for name, values in times.items()}
    return found


def once(call: Step, device: str) -> float:
    """Milliseconds of a step."""
    if device != "cuda":
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(5):
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 5


def step(device: str, dtype: torch.dtype, layer: tuple[int, ...]) -> dict[str, Any]:
    n, c, codes, side = layer
    n = n if device == "cuda" else max(1, n // 64)
    generator = torch.Generator(device).manual_seed(0)

    def tensor(*shape: int, scale: float = 1.0) -> torch.Tensor:
        made = scale * torch.randn(*shape, device=device, generator=generator)
        return made.to(dtype=dtype, memory_format=torch.channels_last).requires_grad_()

    x = tensor(n, c, side, side)
    w_f, w_b = (tensor(codes, c, 4, 4, scale=0.02) for _ in range(2))
    operands = (x, w_f, w_b)

    def plain(x: torch.Tensor, w_f: torch.Tensor, w_b: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(
            F.conv2d(x, w_f, None, STRIDE, PADDING).relu(), w_b, None, STRIDE, PADDING
        )

    with torch.no_grad():
        cotangent = torch.randn_like(plain(*operands))
    steps: dict[str, Step] = {
        "ours": lambda: torch.autograd.grad(Autoencoder.apply(*operands), operands, cotangent),
        "torch": lambda: torch.autograd.grad(plain(*operands), operands, cotangent),
    }
    ours, theirs = (call() for call in steps.values())
    error = max(
        float((a.double() - b.double()).norm() / b.double().norm())
        for a, b in zip(ours, theirs, strict=True)
    )
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, call in steps.items():
            times[name].append(once(call, device))
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {
        "layer": f"{n}×{c}×{side}² → {codes} 4×4 s2", "dtype": str(dtype)[len("torch.") :],
        "ms": middle["ours"], "torch_ms": middle["torch"], "difference": error,
        "right": error < LIMITS[dtype],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torch_functions", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = False  # the example's functions say so too
    torch.backends.cudnn.allow_tf32 = False
    device = args.device
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    result: dict[str, Any] = {"device": name, "torch": torch.__version__}
    result["overhead_us"] = overhead(device)
    dtypes = tuple(LIMITS) if device == "cuda" else (torch.float32,)
    result["steps"] = [step(device, dtype, layer) for layer in LAYERS for dtype in dtypes]
    console = Console(width=110, highlight=False)
    table = Table(title=f"microseconds of a call on {name}")
    for column in ("", "ours", "PyTorch"):
        table.add_column(column)
    for what, both in result["overhead_us"].items():
        table.add_row(what, f"{both['ours']:.1f}", f"{both['torch']:.1f}")
    console.print(table)
    table = Table(title="autoencoder, forward and three gradients, ms")
    for column in ("layer", "dtype", "ours", "PyTorch", "ratio", "difference"):
        table.add_column(column)
    for row in result["steps"]:
        table.add_row(
            row["layer"], row["dtype"], f"{row['ms']:.3f}", f"{row['torch_ms']:.3f}",
            f"{row['ms'] / row['torch_ms']:.3f}", f"{row['difference']:.1e}",
        )  # fmt: skip
    console.print(table)
    if args.json:
        output.write_json(args.json, result)
    return 0 if all(row["right"] for row in result["steps"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
