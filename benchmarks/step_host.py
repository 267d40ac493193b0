"""What the host does for a step: calls from PyTorch.

Of a `TrainingStep` of ResNet-50 the search for the program, and the comparison with what
`forward` has read in it; images are small: how many layers there are counts.  Of a convolution a
call without and with its gradients, ours and PyTorch's, so small that its kernels take no time to
speak of.  The least of many rounds, in processor time of the thread, on a GPU by the clock, which
it is ahead of.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import relay_wgrad
import relay_wgrad.torch as rt
from benchmarks.runner import Benchmark, Case, Measure, Option
from tests.support.torch import plain_networks

CALLS = 20
STEP = ("finding the program", "comparing")
CONVOLUTION = ("forward, no gradient", "forward, recorded", "forward and backward()",
               "forward and autograd.grad")  # fmt: skip
F = torch.nn.functional


def least(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Microseconds of one call."""
    call()
    found, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end:
        began = clock()
        for _ in range(CALLS):
            call()
        found = min(found, (clock() - began) / CALLS)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return 1e6 * found


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for what in STEP:
        yield Case({"what": what})
    for side in ("ours", "PyTorch's"):
        yield from (Case({"what": f"{what}, {side}"}) for what in CONVOLUTION)


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    torch.backends.cudnn.allow_tf32 = False
    clock = time.perf_counter if args.on_gpu else time.thread_time
    device = "cuda" if args.on_gpu else "cpu"
    calls: dict[str, Callable[[], Any]] = {}
    for side, function in (("ours", rt.convolution), ("PyTorch's", F.conv2d)):
        made = convolution(function, device)
        calls |= {f"{what}, {side}": call for what, call in zip(CONVOLUTION, made, strict=True)}
    names = {case.key["what"] for case in cases}
    if not names.isdisjoint(STEP):
        x = torch.randn(2, 3, 32, 32, device=device)
        step = rt.TrainingStep(plain_networks.ResNet50(width=4).to(device), x)
        program: Any = step._program((x,))
        calls |= zip(STEP, (lambda: step._program((x,)), program.depends.is_current), strict=True)
    return lambda case: {"us": least(calls[case.key["what"]], args.seconds, clock)}


def convolution(function: Any, device: str) -> list[Callable[[], Any]]:
    """Calls of it, as `CONVOLUTION` names them."""
    x, w = (torch.randn(shape, device=device) for shape in ((1, 8, 8, 8), (8, 8, 3, 3)))
    leaves = [t.clone().requires_grad_() for t in (x, w)]
    v = torch.ones(1, 8, 6, 6, device=device)
    return [
        lambda: function(x, w),
        lambda: function(*leaves),
        lambda: function(*leaves).backward(v),
        lambda: torch.autograd.grad(function(*leaves), leaves, v),
    ]


BENCHMARK = Benchmark(
    cases, begin, suites=("calls",), options={"seconds": Option(5.0, "for each time")},
    columns=(("what",), ("µs", "us", ".1f"), ("reason",)),
)  # fmt: skip
