"""Convolutions of three dimensions on a CPU, beside PyTorch's: fprop, dgrad, wgrad in ms.

    python -m benchmarks.cpu_volumes [--threads N]

The fastest of some runs each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm

from legalize import cpu
from relay_wgrad.cores import configure_threads
from relay_wgrad.operands import random_operands
from relay_wgrad.problem import ConvKind, ConvProblem

# What nnU-Net and video networks are made of, smaller than theirs.
PROBLEMS = (
    "{} n=1 c=32 d=32 h=48 w=48 k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "{} n=2 c=64 d=16 h=24 w=24 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "{} n=2 c=64 d=16 h=24 w=24 k=128 t=3 r=3 s=3 stride=2,2,2 pad=1,1,1,1,1,1",
    "{} n=2 c=256 d=8 h=8 w=8 k=256 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "{} n=2 c=64 d=16 h=24 w=24 k=128 t=1 r=1 s=1",
    "{} n=2 c=64 d=16 h=28 w=28 k=64 t=3 r=1 s=1 pad=1,0,0,1,0,0",
)
LAST = " layout=NDHWC/ODHWI/NDHWC"


def best(run: Callable[[], Any], seconds: float = 0.6) -> float:
    """Milliseconds of the fastest run."""
    run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def ours(problem: ConvProblem, target: Any) -> float:
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    a, b = (tvm.runtime.tensor(x) for x in random_operands(problem, np.random.default_rng(0)))
    out = tvm.runtime.tensor(np.empty(problem.shape(problem.roles[2]), "float32"))
    return best(lambda: kernel(a, b, out))


def pytorch(problem: ConvProblem) -> float:
    p = problem
    x, w, y = (torch.randn(p.canonical_shape(role)) for role in ("data", "weight", "grad"))
    how = (list(p.strides), list(p.padding[:3]), list(p.dilation))
    if p.kind is ConvKind.FPROP:
        return best(lambda: torch.nn.functional.conv3d(x, w, None, *how))
    mask = [p.kind is ConvKind.DGRAD, p.kind is ConvKind.WGRAD, False]
    backward = torch.ops.aten.convolution_backward
    return best(lambda: backward(y, x, w, None, *how, False, [0] * 3, 1, mask))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=configure_threads())
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    target = cpu.host_target()
    print(f"{threads} threads, {target}; ms, GFLOP/s of ours")
    print(f"{'':92} NCDHW  NDHWC PyTorch")
    for line in PROBLEMS:
        for kind in ConvKind:
            problem = ConvProblem.parse(line.format(kind.value))
            first = ours(problem, target)
            last = ours(ConvProblem.parse(line.format(kind.value) + LAST), target)
            theirs = pytorch(problem)
            rate = problem.flop / first / 1e6
            print(f"{line.format(kind.value):92}{first:6.1f} {last:6.1f} {theirs:7.1f}{rate:6.0f}")


if __name__ == "__main__":
    main()
