"""Direct CPU kernels against PyTorch (oneDNN) and TVM's stock composite on ResNet-50's layers.

    python -m benchmarks.cpu_kernels [--threads N] [--batch N] [--kinds wgrad,...] [--layouts NHWC]
                                     [--layers 3x3] [--json FILE]

All run in one process on the same number of threads, alternating, and the best of some rounds
counts: other work on the machine disturbs all alike.  With one thread it is that thread's CPU time
that is taken, which other work disturbs less.  Every result is checked in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax
from tvm.script import relax as R

from benchmarks.layers import problems
from legalize import cpu
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.problems import random_operands, relative_error, tolerance

Timed = Callable[[], Any]


def best(functions: Sequence[Timed], rounds: int) -> list[float]:
    """Shortest time of each in seconds; they take turns."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = clock()
            function()
            times[i] = min(times[i], clock() - start)
    return times


def torch_calls(
    problem: ConvProblem, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]
) -> list[Timed]:
    """PyTorch's function of the same problem, on contiguous and on channels_last tensors."""
    tensors = {
        role: torch.from_numpy(value).permute(
            *(problem.layout(role).index(x) for x in ("OIHW" if role == "weight" else "NCHW"))
        )
        for role, value in zip(problem.roles[:2], (a, b), strict=True)
    }
    padding = problem.padding[:2]
    calls: list[Timed] = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = {role: t.contiguous(memory_format=memory_format) for role, t in tensors.items()}
        if problem.kind is ConvKind.FPROP:

            def fprop(x: dict[str, torch.Tensor] = x) -> torch.Tensor:
                return torch.nn.functional.conv2d(
                    x["data"], x["weight"], None, problem.strides, padding
                )

            calls.append(fprop)
            continue
        dgrad = problem.kind is ConvKind.DGRAD
        missing = problem.roles[2]
        x[missing] = torch.empty(problem.canonical_shape(missing)).contiguous(
            memory_format=memory_format
        )

        def backward(x: dict[str, torch.Tensor] = x, dgrad: bool = dgrad) -> torch.Tensor:
            return torch.ops.aten.convolution_backward(
                x["grad"], x["data"], x["weight"], None, list(problem.strides), list(padding),
                [1, 1], False, [0, 0], 1, [dgrad, not dgrad, False],
            )[0 if dgrad else 1]  # fmt: skip

        calls.append(backward)
    return calls


def to_user(problem: ConvProblem, result: torch.Tensor) -> np.ndarray[Any, Any]:
    role = problem.roles[2]
    canonical = "OIHW" if role == "weight" else "NCHW"
    order = [canonical.index(x) for x in problem.layout(role)]
    return np.ascontiguousarray(result.permute(*order).double().numpy())


def measure(problem: ConvProblem, rounds: int, target: tvm.target.Target) -> dict[str, Any]:
    """One row of the table."""
    a, b = random_operands(problem, np.random.default_rng(0))
    start = time.perf_counter()
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    compiled = time.perf_counter() - start
    operands = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
    out = tvm.runtime.tensor(np.full(problem.shape(problem.roles[2]), np.nan, "float32"))
    theirs = torch_calls(problem, a, b)

    def ours() -> None:
        kernel(*operands, out)

    ours()
    # Two implementations in float32 against each other: twice the rounding of one.
    error = relative_error(out.numpy(), to_user(problem, theirs[0]()))
    first, *others = best([ours, *theirs], rounds)
    return {
        "problem": problem.repro(),
        "ok": error <= 3 * tolerance(problem),
        "error": error,
        "compile_s": compiled,
        "ms": first * 1e3,
        "torch_ms": min(others) * 1e3,
        "gflops": problem.flop / first / 1e9,
        "torch_gflops": problem.flop / min(others) / 1e9,
        "ratio": min(others) / first,
    }


def composite(problem: ConvProblem, rounds: int, target: tvm.target.Target) -> dict[str, Any]:
    """The stock gradient of Relax's conv2d, compiled by the stock pipeline, for one image."""
    one = ConvProblem.parse(problem.repro().replace(f"n={problem.n} ", "n=1 "))
    g, x = (
        relax.Var(role, R.Tensor(one.canonical_shape(role), "float32")) for role in ("grad", "data")
    )
    bb = relax.BlockBuilder()
    with bb.function("main", [g, x]):
        # As upstream's gradient writes it: batch and channels change places, strides become
        # dilation; a slice drops what the stride does not reach.
        dw = relax.op.nn.conv2d(
            x, g, strides=one.dilation, padding=one.padding, dilation=one.strides,
            data_layout="CNHW", kernel_layout="IOHW", out_layout="CNHW",
        )  # fmt: skip
        dw = relax.op.strided_slice(dw, [2, 3], [0, 0], [one.r, one.s])
        bb.emit_func_output(bb.emit(dw))
    vm = relax.VirtualMachine(tvm.compile(bb.get(), target=target), tvm.cpu())
    a, b = random_operands(one, np.random.default_rng(0))
    operands = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
    want = to_user(one, torch_calls(one, a, b)[0]())
    error = relative_error(vm["main"](*operands).numpy(), want)
    (seconds,) = best([lambda: vm["main"](*operands)], rounds)
    return {
        "problem": one.repro(),
        "ok": error <= 3 * tolerance(one),
        "ms": seconds * 1e3,
        "gflops": one.flop / seconds / 1e9,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kinds", default="fprop,dgrad,wgrad")
    parser.add_argument("--layouts", default="NHWC,NCHW")
    parser.add_argument("--layers", default="", help="only layers with this kernel, such as 3x3")
    parser.add_argument("--no-composite", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    if args.threads:
        os.environ["TVM_NUM_THREADS"] = str(args.threads)
    threads = cpu.configure_threads()
    torch.set_num_threads(threads)
    target, console = cpu.host_target(), Console(width=90)
    table = Table(title=f"float32, batch {args.batch}, {threads} threads, {target.attrs['mcpu']}")
    for name in ("problem", "ms", "GFLOP/s", "PyTorch", "ours/PyTorch", "checked"):
        table.add_column(name, justify="left" if name == "problem" else "right")
    rows = []
    for problem in problems(args.batch, args.kinds.split(","), args.layouts.split(",")):
        if args.layers and f"{problem.r}x{problem.s}" != args.layers:
            continue
        row = measure(problem, args.rounds, target)
        rows.append(row)
        table.add_row(
            label(problem), f"{row['ms']:.2f}", f"{row['gflops']:.0f}",
            f"{row['torch_gflops']:.0f}", f"{row['ratio']:.2f}", "yes" if row["ok"] else "NO",
        )  # fmt: skip
    console.print(table)
    stock = []
    if not args.no_composite:
        table = Table(title="TVM's stock composite for wgrad, batch 1, NCHW")
        for name in ("problem", "ms", "GFLOP/s", "checked"):
            table.add_column(name, justify="left" if name == "problem" else "right")
        for problem in problems(1, ["wgrad"], ["NCHW"]):
            if problem.r == 3 and problem.strides == (1, 1):
                row = composite(problem, 2, target)
                stock.append(row)
                table.add_row(
                    label(problem), f"{row['ms']:.1f}", f"{row['gflops']:.2f}",
                    "yes" if row["ok"] else "NO",
                )  # fmt: skip
        console.print(table)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"threads": threads, "rows": rows, "composite": stock}, file, indent=1)
    return 0 if all(row["ok"] for row in rows + stock) else 1


def label(problem: ConvProblem) -> str:
    return (
        f"{problem.kind.value} {problem.data_layout} {problem.c}→{problem.k} {problem.h}²"
        f" {problem.r}x{problem.s} s{problem.strides[0]}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
