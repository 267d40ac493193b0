"""The PyTorch functions against PyTorch's own: a call's overhead, and an autoencoder's step.

Overhead: microseconds of the host for a convolution so small that its kernels take no time to speak
of, the functions taking turns; the lowest of several rounds.  Step: the layer of
`examples/autoencoder_torch.py` (a convolution by w_f, ReLU, a transposed convolution by w_b, one
`torch.autograd.Function`) with its three gradients, against the same layer of PyTorch's functions
under autograd, on the same tensors; device events on a GPU, wall time on a CPU; medians.  Gradients
are compared in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import relay_wgrad.torch as rt
from benchmarks.gpu_timing import milliseconds
from benchmarks.runner import Benchmark, Case, Measure, Row
from examples.autoencoder_torch import PADDING, STRIDE, Autoencoder

F = torch.nn.functional
ROUNDS, CALLS = 7, 200
# images, channels, codes' channels, side
LAYERS = ((256, 64, 128, 56), (64, 128, 256, 28))
LIMITS = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
CALLS_OF_HOST = ("forward, no gradient", "forward, recorded", "forward and backward()",
                 "forward and autograd.grad")  # fmt: skip

Step = Callable[[], Any]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    device = "cuda" if args.on_gpu else "cpu"
    if "overhead" in args.suite:
        for what in CALLS_OF_HOST:
            yield Case({"what": what, "dtype": "float32"}, lambda w=what: overhead(w, device))
    if "step" in args.suite:
        for layer, dtype in itertools.product(LAYERS, LIMITS if args.on_gpu else ("float32",)):
            n, c, codes, side = layer
            n = n if args.on_gpu else max(1, n // 64)
            key = {"what": f"{n}×{c}×{side}² → {codes} 4×4 s2", "dtype": dtype}
            yield Case(key, lambda d=dtype, s=(n, c, codes, side): step(device, d, s))


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    torch.backends.cudnn.benchmark = False  # the example's functions say so too
    torch.backends.cudnn.allow_tf32 = False
    return lambda case: case.what()


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


def overhead(what: str, device: str) -> Row:
    """Milliseconds of the host for a call, ours and PyTorch's in turns."""
    x = torch.randn(1, 8, 8, 8, device=device)
    w = torch.randn(8, 8, 3, 3, device=device)
    leaves = [t.clone().requires_grad_() for t in (x, w)]
    v = torch.ones(1, 8, 6, 6, device=device)
    make: Callable[[Any], Step] = {
        "forward, no gradient": lambda f: lambda: f(x, w),
        "forward, recorded": lambda f: lambda: f(*leaves),
        "forward and backward()": lambda f: lambda: f(*leaves).backward(v),
        "forward and autograd.grad": lambda f: lambda: torch.autograd.grad(f(*leaves), leaves, v),
    }[what]
    calls = [make(f) for f in (rt.convolution, F.conv2d)]
    rounds = [[host_us(call, device) for call in calls] for _ in range(ROUNDS)]
    ours, theirs = (1e-3 * min(times) for times in zip(*rounds, strict=True))
    return {"ms": ours, "torch_ms": theirs, "ratio": ours / theirs}


def once(call: Step, device: str) -> float:
    """Milliseconds of a step."""
    if device == "cuda":
        return milliseconds([call], 5)
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def step(device: str, name: str, layer: tuple[int, ...]) -> Row:
    n, c, codes, side = layer
    dtype, generator = getattr(torch, name), torch.Generator(device).manual_seed(0)

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
    calls: list[Step] = [
        lambda: torch.autograd.grad(Autoencoder.apply(*operands), operands, cotangent),
        lambda: torch.autograd.grad(plain(*operands), operands, cotangent),
    ]
    pairs = zip(*(call() for call in calls), strict=True)
    far = max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)
    rounds = [[once(call, device) for call in calls] for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(times) for times in zip(*rounds, strict=True))
    wrong = {} if far < LIMITS[name] else {"reason": f"gradients differ by {far:.1e}"}
    return {"ms": ours, "torch_ms": theirs, "ratio": ours / theirs, "difference": far, **wrong}


BENCHMARK = Benchmark(
    cases, begin, suites=("overhead", "step"), by=("dtype",),
    columns=(("what",), ("dtype",), ("ms", None, ".4f"), ("PyTorch", "torch_ms", ".4f"),
             ("ratio", None, ".3f"), ("difference", None, ".1e"), ("reason",)),
)  # fmt: skip
