"""The device's part of `benchmarks gpu convolutions`: operands, PyTorch's calls, checks, times."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu_cases import Case
from benchmarks.modes import MODES
from relay_wgrad.problem import DTYPES, ConvKind, ConvProblem, transposed_size

Call = Callable[[], Any]
Tensors = dict[str, torch.Tensor]
DEVICE = "cuda"
ROUNDS = 5
ENOUGH = 2e-3  # seconds that the calls of a round take together, at least
L2_BYTES = 60 << 20  # of an H200
# Device clocks of idling per call before a round: time enough for the host to enqueue the round, so
# that its launches are no part of the times.  About 40 µs.
_IDLE = 80_000
# Largest relative errors in norm.  f16 and bf16: a few roundings of the result; tf32: of operands.
# f32: Winograd's transforms lose a digit.  Sums of many terms add to it, see `tolerance`.
_TOLERANCE = {"f16": 1e-3, "bf16": 8e-3, "tf32": 2e-3, "f32": 5e-5}
# cuDNN's weight gradient of depthwise convolutions sums parts that it rounds to half, though no
# numerical note of the engine says so.  PyTorch runs the same engine.
_ROUNDED_PARTS = 2e-3


# ---- tensors -----------------------------------------------------------------------------------


def random(problem: ConvProblem, role: str, generator: torch.Generator) -> torch.Tensor:
    dtype = getattr(torch, problem.dtype(role))
    return torch.randn(problem.shape(role), device=DEVICE, dtype=dtype, generator=generator)


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """NHWC or OHWI memory as PyTorch names its axes: the same bytes, in channels_last."""
    return tensor.permute(0, 3, 1, 2)


def by_torch(problem: ConvProblem, t: Tensors, transposed: bool) -> Call:
    """PyTorch's call on canonical tensors of all roles; of the result's only the shape is read."""
    strides, dilation, rank = problem.strides, problem.dilation, len(problem.strides)
    pad, kind, groups = problem.padding[:rank], problem.kind, problem.groups
    extra = (0,) * rank
    if transposed:
        extra = tuple(
            size - transposed_size(small, 2 * p, taps, stride, d, 0)
            for size, small, p, taps, stride, d in zip(
                (problem.h, problem.w), (problem.p, problem.q), pad, (problem.r, problem.s),
                strides, dilation, strict=True,
            )
        )  # fmt: skip
    if transposed and kind is ConvKind.DGRAD:
        return lambda: F.conv_transpose2d(
            t["grad"], t["weight"], None, strides, pad, extra, groups, dilation
        )
    if not transposed and kind is ConvKind.FPROP:
        conv: Any = F.conv2d if rank == 2 else F.conv3d
        return lambda: conv(t["data"], t["weight"], None, strides, pad, dilation, groups)
    weight = kind is ConvKind.WGRAD
    # What the layer took in and what it gave out: a transposed layer has them the other way round.
    taken, given = ("grad", "data") if transposed else ("data", "grad")
    operation = torch.ops.aten.convolution_backward
    return lambda: operation(
        t[given], t[taken], t["weight"], None, strides, pad, dilation, transposed,
        extra, groups, (not weight, weight, False),
    )[1 if weight else 0]  # fmt: skip


# ---- is it right -------------------------------------------------------------------------------


@contextmanager
def arithmetic(tf32: bool, benchmark: bool = True) -> Iterator[None]:
    """PyTorch's choices in cuDNN for a scope."""
    settings: Any = torch.backends.cudnn  # a module whose attributes are settings
    before = settings.benchmark, settings.allow_tf32
    settings.benchmark, settings.allow_tf32 = benchmark, tf32
    try:
        yield
    finally:
        settings.benchmark, settings.allow_tf32 = before


def tolerance(case: Case) -> float:
    """Of the operands' exact values: the result's rounding, and the drift of a long float32 sum."""
    p, rounding = case.problem, _TOLERANCE[case.mode]
    if _is_of_rounded_parts(case):
        rounding = _ROUNDED_PARTS
    return rounding + 2 * math.sqrt(p.gemm[2]) * 2.0**-24


def _is_of_rounded_parts(case: Case) -> bool:
    return case.mode == "f16" and case.problem.kind is ConvKind.WGRAD and case.problem.groups > 1


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm; by parts, since both may be large.  NaN stays NaN."""
    if got.shape != want.shape:
        return math.inf
    norms = torch.zeros(2, dtype=torch.float64, device=want.device)
    for a, b in zip(got.split(16), want.split(16), strict=True):
        wide = b.double()
        norms += torch.stack([(a.double() - wide).square().sum(), wide.square().sum()])
    above, below = norms.tolist()
    return math.sqrt(above / below) if below > 0 else math.inf


def part(problem: ConvProblem, t: Tensors) -> tuple[ConvProblem, Tensors, Tensors]:
    """A problem that is cheap in float64, its tensors, and the result's part that it gives.

    fprop and dgrad: the first and the last image.  wgrad sums over all images, so it takes a few of
    the first filters with all images, or a few of the first groups.
    """
    result = problem.roles[2]
    if problem.kind is not ConvKind.WGRAD:
        ends = [0, problem.n - 1]
        cut = {role: v if role == "weight" else v[ends] for role, v in t.items()}
        sizes = {"n": 2}
    elif problem.groups == 1:
        k = min(problem.k, 8)
        cut = {"data": t["data"], "grad": t["grad"][:, :k], "weight": t["weight"][:k]}
        sizes = {"k": k}
    else:
        groups = min(problem.groups, 8)
        c, k = problem.c // problem.groups * groups, problem.k // problem.groups * groups
        cut = {"data": t["data"][:, :c], "grad": t["grad"][:, :k], "weight": t["weight"][:k]}
        sizes = {"c": c, "k": k, "groups": groups}
    line = " ".join(
        f"{word.split('=')[0]}={sizes[word.split('=')[0]]}" if word.split("=")[0] in sizes else word
        for word in problem.repro().split()
    )
    return ConvProblem.parse(line), cut, {"result": cut[result]}


def reference(problem: ConvProblem, t: Tensors) -> torch.Tensor:
    """In float64, for few images or few filters."""
    wide = {role: v.double().contiguous() for role, v in t.items()}
    with arithmetic(tf32=False, benchmark=False):
        value: torch.Tensor = by_torch(problem, wide, transposed=False)()
    return value


def checked(case: Case, t: Tensors, theirs: torch.Tensor) -> dict[str, Any]:
    """The errors of our result (the role in `t`) and of PyTorch's, and whether ours is right."""
    result = case.problem.roles[2]
    small, cut, mine = part(case.problem, t)
    want = reference(small, cut)
    _, _, other = part(case.problem, {**t, result: theirs})
    limit = tolerance(case)
    found = {
        "error": relative(mine["result"], want),
        "torch_error": relative(other["result"], want),
        "difference": relative(t[result], theirs),
        "tolerance": limit,
    }
    if _is_of_rounded_parts(case):
        # The more parts the further off: 2.9e-3 for 24 channels of 190x190.  Not beyond theirs.
        limit = max(limit, 1.1 * found["torch_error"])
    bound = {"error": limit, "difference": 2 * (limit + found["torch_error"])}
    for name, most in bound.items():
        if not found[name] <= most:  # also for NaN: an element that was not written
            found["reason"] = f"wrong: {name} {found[name]:.1e}, at most {most:.1e}"
    return found


# ---- times -------------------------------------------------------------------------------------


def timed(calls: list[Call], count: int, idle: int = _IDLE) -> float:
    """Seconds per call by device events: `count` calls, taking turns among the sets of inputs.

    idle : clocks for which the device waits for each call, until the host has enqueued them.
    """
    if idle:
        torch.cuda._sleep(idle * count)
    return milliseconds(calls, count) * 1e-3


def milliseconds(calls: list[Call], count: int) -> float:
    """Of a call by device events, the host's part in it where the device is the faster."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for i in range(count):
        calls[i % len(calls)]()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / count


def spread(times: list[float]) -> float:
    return (max(times) - min(times)) / statistics.median(times)


def first_call(call: Call) -> tuple[Any, float]:
    """What it returns, and its seconds: a plan is chosen in it."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    value = call()
    torch.cuda.synchronize()
    return value, time.perf_counter() - begin


def measure(case: Case, function: Any, seed: int) -> dict[str, Any]:
    """Times and errors of one case.  A wrong result has a `reason`."""
    problem, generator = case.problem, torch.Generator(DEVICE).manual_seed(seed)
    first, second, result = problem.roles
    # As many sets of inputs as it takes to be three times as large as the cache.
    sets = max(1, min(32, math.ceil(3 * L2_BYTES / problem.bytes)))
    ours: list[Call] = []
    theirs: list[Call] = []
    views: list[Tensors] = []
    for _ in range(sets):
        a, b = (random(problem, role, generator) for role in (first, second))
        dtype = getattr(torch, problem.dtype(result))
        out = torch.full(problem.shape(result), math.nan, device=DEVICE, dtype=dtype)
        view = {first: canonical(a), second: canonical(b), result: canonical(out)}
        views.append(view)
        ours.append(lambda a=a, b=b, out=out: function(a, b, out))
        theirs.append(by_torch(problem, view, case.transposed))
    with arithmetic(case.allow_tf32):
        value, torch_plan = first_call(theirs[0])
        _, plan = first_call(ours[0])
        # Choosing a plan ran many: what is checked is a plain call.
        views[0][result].fill_(math.nan)
        ours[0]()
        found = checked(case, views[0], value)
        del value
        rough = min(timed(ours, 2), timed(theirs, 2))
        count = max(3, min(100, math.ceil(ENOUGH / rough)))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(ROUNDS):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                times[which].append(timed((ours, theirs)[which], count))
        # One of the results that were timed, on another set of inputs.
        last = (count - 1) % sets
        again = relative(views[last][result], theirs[last]())
    if not again <= 2 * (found["tolerance"] + found["torch_error"]):
        found["reason"] = f"wrong in the timed runs: difference {again:.1e}"
    return {
        **found,
        **dict(zip(("seconds", "torch_seconds"), map(statistics.median, times), strict=True)),
        **dict(zip(("spread", "torch_spread"), map(spread, times), strict=True)),
        "calls": count, "sets": sets, "plan_seconds": plan, "torch_plan_seconds": torch_plan,
    }  # fmt: skip


def floors(modes: list[str]) -> dict[str, Any]:
    """FLOP/s of a large product for each dtype, and bytes per second of a large copy, measured."""
    size, peak = 8192, {}
    for mode in modes:
        dtype = getattr(torch, DTYPES[MODES[mode][0]])
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        a, b = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
        call: Call = lambda a=a, b=b: torch.mm(a, b)  # noqa: E731
        timed([call], 3)
        peak[mode] = 2 * size**3 / min(timed([call], 5) for _ in range(ROUNDS))
    torch.backends.cuda.matmul.allow_tf32 = False
    source = torch.randn(1 << 29, device=DEVICE)
    target = torch.empty_like(source)
    copy: Call = lambda: target.copy_(source)  # noqa: E731
    timed([copy], 3)
    seconds = min(timed([copy], 5) for _ in range(ROUNDS))
    return {"peak": peak, "bandwidth": 2 * source.numel() * source.element_size() / seconds}
