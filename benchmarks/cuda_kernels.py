"""The generated CUDA kernels against PyTorch (cuDNN with benchmark) on ResNet-50's layers.

    python -m benchmarks.cuda_kernels [--batch N] [--dtypes float32,float16] [--json FILE]

Both run in one process by turns, timed with device events around several calls; inputs are random.
Each result is checked against PyTorch in float64 on the device.  PyTorch gets the better of
contiguous and channels_last; TF32 is off, since our float32 sums are float32.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
import tvm
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_timing import timed
from legalize.cuda import prim_func
from relay_wgrad import output
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu.runner import choose_compiler
from tests.support.layers import problems

ROUNDS, CALLS = 5, 10


def tensor_in(problem: ConvProblem, role: str, value: torch.Tensor) -> torch.Tensor:
    """A canonical tensor in the problem's layout, contiguous."""
    letters = "OIHW" if role == "weight" else "NCHW"
    axes = [letters.index(x) for x in problem.layout(role)]
    return value.permute(axes).contiguous()


def canonical(problem: ConvProblem, role: str, value: torch.Tensor) -> torch.Tensor:
    letters = "OIHW" if role == "weight" else "NCHW"
    return value.permute([problem.layout(role).index(x) for x in letters])


def by_torch(problem: ConvProblem, t: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """PyTorch's call of the problem on canonical tensors."""
    args = (problem.strides, problem.padding[:2], problem.dilation)
    if problem.kind is ConvKind.FPROP:
        return lambda: torch.nn.functional.conv2d(t["data"], t["weight"], None, *args)
    mask = (problem.kind is ConvKind.DGRAD, problem.kind is ConvKind.WGRAD, False)
    index = mask.index(True)
    operation = torch.ops.aten.convolution_backward
    return lambda: operation(
        t["grad"], t["data"], t["weight"], None, *args, False, (0, 0), problem.groups, mask
    )[index]


def measure(problem: ConvProblem, kernel: Any) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(0)
    dtype = getattr(torch, problem.data_dtype)
    full = {
        role: torch.randn(problem.canonical_shape(role), device="cuda", generator=generator)
        .to(dtype)
        for role in ("data", "weight", "grad")
    }  # fmt: skip
    first, second, result = problem.roles
    wide = by_torch(problem, {role: value.double() for role, value in full.items()})()
    out = tensor_in(problem, result, torch.full_like(full[result], math.nan))
    operands = [tensor_in(problem, role, full[role]) for role in (first, second)]
    mine = [tvm.runtime.from_dlpack(x) for x in (*operands, out)]
    calls: list[Callable[[], Any]] = [lambda: kernel(*mine)]
    for memory_format in (torch.contiguous_format, torch.channels_last):
        tensors = {r: v.contiguous(memory_format=memory_format) for r, v in full.items()}
        calls.append(by_torch(problem, tensors))
    for call in calls:
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    error = float((canonical(problem, result, out).double() - wide).norm() / wide.norm())
    times = [[timed([call], CALLS, idle=0) for call in calls] for _ in range(ROUNDS)]
    ours = statistics.median(t[0] for t in times)
    theirs = min(statistics.median(t[i] for t in times) for i in (1, 2))
    return {"problem": problem.repro(), "error": error, "seconds": ours, "torch": theirs,
            "tflops": problem.flop / ours / 1e12, "torch_tflops": problem.flop / theirs / 1e12,
            "ratio": ours / theirs}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtypes", default="float32,float16")
    parser.add_argument("--layouts", default="NCHW,NHWC")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    choose_compiler()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    device, kinds = tvm.cuda(0), [kind.value for kind in ConvKind]
    target = tvm.target.Target.from_device(device)
    suite = [
        p
        for dtype in args.dtypes.split(",")
        for p in problems(args.batch, kinds, args.layouts.split(","), dtype)
    ]
    functions = {
        f"f{i}": prim_func(p, target).with_attr("global_symbol", f"f{i}")
        for i, p in enumerate(suite)
    }
    module = tvm.compile(tvm.IRModule(functions), target=target)
    stream = torch.cuda.current_stream().cuda_stream
    if stream:  # both must be on one stream for the events to mean anything
        raise SystemExit("expected PyTorch on the default stream")
    rows = [measure(p, module[f"f{i}"]) for i, p in enumerate(suite)]
    table = Table("problem", "TFLOP/s", "PyTorch", "time ratio", "rel. error")
    for row in rows:
        table.add_row(
            row["problem"], f"{row['tflops']:.1f}", f"{row['torch_tflops']:.1f}",
            f"{row['ratio']:.2f}", f"{row['error']:.1e}",
        )  # fmt: skip
    Console(width=170).print(table)
    for dtype in args.dtypes.split(","):
        means = []
        for kind in kinds:
            ratios = [
                row["ratio"]
                for row, p in zip(rows, suite, strict=True)
                if p.kind.value == kind and p.data_dtype == dtype
            ]
            means.append(f"{kind}={statistics.geometric_mean(ratios):.2f}")
        worst = max(
            row["ratio"] for row, p in zip(rows, suite, strict=True) if p.data_dtype == dtype
        )
        print(f"{dtype} geomean_ratio {' '.join(means)} worst={worst:.2f}")
    if args.json:
        about = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
                 "cudnn": torch.backends.cudnn.version(), "tvm": tvm.__version__,
                 "cuda": torch.version.cuda, "batch": args.batch}  # fmt: skip
        output.write_json(args.json, {"about": about, "rows": rows})


if __name__ == "__main__":
    main()
