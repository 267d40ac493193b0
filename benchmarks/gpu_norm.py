"""Batch normalization in training on a GPU: our kernels against PyTorch's, and memory's rate.

The normalizations of a network, each with what follows it: ResNet-50's with a ReLU, a sum with what
went around the block (or with that one's normalization), the stem's max pooling; EfficientNet-B0's
that a SiLU follows; channels last.  A pass is one read or one write of a tensor: with ReLU 3
forward and 5 backward, with an addition 4 and 6.  TB/s are bytes over time, beside those of a copy
in the same run.  Times are device events, medians, of inputs that take turns where they would stay
in the cache; the host is ahead.  Errors are relative norms against float64.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import gpu_cases
from benchmarks.gpu_timing import L2_BYTES, timed
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from byoc_cudnn.norm import generate, inputs
from relay_wgrad.problem import DTYPES
from tests.support.gpu import norm_followed
from tests.support.gpu.norm_followed import (
    EPSILON,
    LIMITS,
    MOMENTUM,
    Tensors,
    relative,
    wanted,
)  # fmt: skip

DIRECTIONS = ("forward", "backward")
Call = Callable[[], Any]
ROUNDS = 3
ENOUGH = 2e-3  # seconds of calls in a round
IDLE = 300_000  # clocks of waiting for each call: what PyTorch's host takes for a backward pass
# ResNet-50's: how many there are, channels, side of the image at 224×224, what follows: a max
# pooling after the first; where blocks end the sum with what went around them, which four times is
# a normalization too ("two").
RESNET50 = (
    (1, 64, 112, "relu pool"), (6, 64, 56, "relu"), (1, 128, 56, "relu"), (7, 128, 28, "relu"),
    (1, 256, 28, "relu"), (11, 256, 14, "relu"), (1, 512, 14, "relu"), (5, 512, 7, "relu"),
    (2, 256, 56, "add relu"), (3, 512, 28, "add relu"), (5, 1024, 14, "add relu"),
    (2, 2048, 7, "add relu"),
    (1, 256, 56, "two relu"), (1, 512, 28, "two relu"), (1, 1024, 14, "two relu"),
    (1, 2048, 7, "two relu"),
)  # fmt: skip
# EfficientNet-B0's that have a SiLU: after the stem, expansions, depthwise layers, and the head.
EFFICIENTNET_B0 = (
    (2, 32, 112, "silu"), (1, 96, 112, "silu"), (1, 96, 56, "silu"), (3, 144, 56, "silu"),
    (1, 144, 28, "silu"), (3, 240, 28, "silu"), (1, 240, 14, "silu"), (6, 480, 14, "silu"),
    (5, 672, 14, "silu"), (1, 672, 7, "silu"), (8, 1152, 7, "silu"), (1, 1280, 7, "silu"),
)  # fmt: skip
NETWORKS = {"resnet50": RESNET50, "efficientnet_b0": EFFICIENTNET_B0}


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


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for network, batch, mode in itertools.product(args.suite, map(int, args.batch), args.dtypes):
        for times, *rest in NETWORKS[network]:
            case = norm_followed.Case(times, batch, *rest, mode)
            yield Case({"network": network, **vars(case)}, case)


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    calls = {c.symbol: c for case in cases for c in map(case.what.call, DIRECTIONS)}
    text = generate(list(calls.values()), gpu_cases.arch())
    functions = gpu_cases.loaded(text, args.folder / "norms", inputs(text))
    args.found["copy"] = copy_rate()
    return lambda case: measured(case.what, functions, args.found["copy"], args.compiled)


def measured(case: norm_followed.Case, functions: Any, copy: float, compiled: Sequence[str]) -> Row:
    row, sets = measure(case, functions)
    row["eager"] = torch_times(sets, compiled=False)
    if case.mode in compiled:
        torch._dynamo.reset()
        row["compile"] = torch_times(sets, compiled=True)
    for direction, size in zip(DIRECTIONS, case.moved, strict=True):
        row[f"{direction}_gb"] = size / 1e9
        row[f"{direction}_share"] = size / (row[direction] * 1e-3) / copy
    best = min(sum(row[side].values()) for side in ("eager", "compile") if side in row)
    return row | {"ratio": (row["forward"] + row["backward"]) / best}


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


def totals(rows: list[dict[str, Any]], side: str) -> float:
    """Milliseconds of a network's normalizations; NaN where one was not measured."""
    total = 0.0
    for row in rows:
        times = row if side == "ours" else row.get(side)
        total += row["times"] * (times["forward"] + times["backward"] if times else math.nan)
    return total


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Of all normalizations of a network, as often as it has them."""
    for key in dict.fromkeys((row["network"], row["batch"], row["mode"]) for row in rows):
        own = [row for row in rows if (row["network"], row["batch"], row["mode"]) == key]
        ours, eager, compiled = (totals(own, side) for side in ("ours", "eager", "compile"))
        gb = sum(r["times"] * (r["forward_gb"] + r["backward_gb"]) for r in own)
        yield (
            f"{' '.join(map(str, key))}: {len(own)} rows, ours {ours:.2f} ms ({gb:.1f} GB,"
            f" {gb / ours:.2f} TB/s), eager {eager:.2f}, compile {compiled:.2f}"
        )


BENCHMARK = Benchmark(
    cases, begin, suites=NETWORKS, by=("mode",), summary=summary,
    options={
        "batch": Option(("256", "64"), "images"),
        "dtypes": Option(("bf16", "f16", "f32"), "", DTYPES),
        "compiled": Option((), "dtypes with torch.compile too", DTYPES),
    },
    columns=(
        ("batch",), ("dtype", "mode"), ("×", "times"), ("C", "channels"), ("side",), ("after",),
        *((head, key.format(way), spec) for way in DIRECTIONS for head, key, spec in (
            (way, "{}", ".3f"), ("of copy", "{}_share", ".2f"), ("eager", "eager.{}", ".3f"),
            ("compile", "compile.{}", ".3f"))),
        ("error", None, ".1e"), ("of", "worst"), ("reason",),
    ),
)  # fmt: skip
