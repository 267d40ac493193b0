"""What the host does for a step: calls from PyTorch.

`calls`: of a `TrainingStep` of ResNet-50 the search for the program, and the comparison with what
`forward` has read in it; images are small: how many layers there are counts.  Of a convolution a
call without and with its gradients, ours and PyTorch's, so small that its kernels take no time to
speak of.  The least of many rounds, in processor time of the thread, on a GPU by the clock, which
it is ahead of.

`steps`, on a CPU: forward and backward of ResNet-50 by a `TrainingStep` and by `torch.compile`'s
backend as graphs whose launches, and copies, do nothing; and how much that is above an empty
`autograd.Function` over the same parameters, which is called in turns with it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

import relay_wgrad
import relay_wgrad.torch as rt
from benchmarks.gpu_sides import empty_call
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.torch import compiler, host_library, joint_program, programs
from tests.support.torch import plain_networks

CALLS = 20
STEP = ("finding the program", "comparing")
WHOLE = ("TrainingStep", "torch.compile")
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
    if "calls" in args.suite:
        yield from _calls()
    if "steps" in args.suite and not args.on_gpu:  # `gpu steps` has them
        yield from (Case({"what": f"a step, {what}"}, what) for what in WHOLE)


def _calls() -> Iterator[Case]:
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

    def one(case: Case) -> Row:
        what = case.key["what"]
        if what in calls:
            return {"us": least(calls[what], args.seconds, clock)}
        return whole(case.what, args.seconds)

    return one


# ---- whole steps ---------------------------------------------------------------------------------


class Still:
    """A lane (`relay_wgrad.torch.replayed.Lane`) whose graphs do nothing."""

    def done(self, function: Callable[[], Any]) -> Any:
        return function()

    def captured(
        self, function: Callable[[], Any], work: Callable[[], None] | None = None
    ) -> tuple[Any, Callable[[], None]]:
        return function(), lambda: None

    def also(self, launch: Callable[[], None], work: Callable[[], None]) -> Callable[[], None]:
        return launch


def whole(what: str, seconds: float) -> Row:
    """Microseconds of a step's host, and those above an empty function's."""
    compiled_at = programs.compiled_at
    module = plain_networks.ResNet50(width=4).train()
    x, labels = torch.randn(2, 3, 32, 32), torch.arange(2)
    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for owner in (programs, compiler, joint_program):
            put(owner, "compiled_at", lambda *given: replace(compiled_at(*given), work=Still))
        if what == "TrainingStep":
            loss: Any = rt.TrainingStep(module, x, loss="cross_entropy")
        else:
            loss = torch.compile(
                lambda x, labels: F.cross_entropy(module(x), labels), backend=compiler.backend
            )
        parameters = [*module.parameters()]

        def call() -> None:
            for parameter in parameters:
                parameter.grad = None
            loss(x, labels).backward()

        host_library.built()
        for _ in range(CALLS):
            call()
        for name in ("_foreach_copy_", "_foreach_add_"):
            put(torch, name, lambda *given: None)
        put(torch.Tensor, "clone", lambda x, **how: torch.empty_like(x))
        found, end = [float("inf")] * 2, time.monotonic() + seconds
        while time.monotonic() < end:
            for i, each in enumerate((call, lambda: empty_call(parameters))):
                found[i] = min(found[i], least(each, 0.2, time.thread_time))
    return {"us": found[0], "above": found[0] - found[1]}


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
    cases, begin, suites=("calls", "steps"),
    options={"seconds": Option(5.0, "for each time")},
    columns=(
        ("what",), ("µs", "us", ".1f"), ("above an empty function", "above", ".1f"),
        ("reason",),
    ),
)  # fmt: skip
