"""Which of two ways of computing the same is used: one rule, and the times that it goes by.

`optimize` asks it of a model's layers, `torch.compile`'s backend for convolutions alone of the
convolutions and gradients in a graph.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

MARGIN = 0.05
"""How much faster ours must be on the device, as a share of PyTorch's time."""

# Largest distance of two results of the same layer, relative in norm.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-3, torch.float16: 5e-3, torch.bfloat16: 3e-2}
_ROUNDS, _ROUND_SECONDS, _MOST_CALLS = 5, 0.02, 50
_CYCLES = 2_000_000  # of a GPU's clock in a millisecond, at most
_AHEAD = 1.5  # how much longer than the host needs for its part the device waits for it


class Took(NamedTuple):
    """Milliseconds of a call: on the device, and of the host, which are one on the CPU."""

    ms: float
    host: float


UNKNOWN = Took(math.nan, math.nan)


def why_not(ours: Took, theirs: Took, *, margin: float = MARGIN, host: bool = True) -> str:
    """Why ours is not used, or "": slower on the device, or not faster by `margin`, or (with
    `host`) a call of ours would keep the host for longer than PyTorch's takes on either."""
    if not ours.ms <= (1 - margin) * theirs.ms:
        return "faster" if ours.ms > theirs.ms else f"within {margin:.0%}"
    if host and ours.host > max(theirs):
        return f"ours would keep the host for {ours.host:.3f} ms"
    return ""


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of a from b, relative to b's norm."""
    wide = b.double()
    return float((a.double() - wide).norm() / wide.norm().clamp(min=1e-30))


def times_of(calls: dict[str, Callable[[], Any]], on: torch.Tensor) -> dict[str, Took]:
    """Of each the median of rounds, in turns."""
    clock = _events if on.is_cuda else _host
    first = {side: clock(call, 1, UNKNOWN) for side, call in calls.items()}
    counts = {
        side: min(_MOST_CALLS, 1 + int(_ROUND_SECONDS * 1e3 / max(*took, 1e-3)))
        for side, took in first.items()
    }
    rounds = [
        {side: clock(call, counts[side], first[side]) for side, call in calls.items()}
        for _ in range(_ROUNDS)
    ]
    return {
        side: Took(*(statistics.median(r[side][i] for r in rounds) for i in (0, 1)))
        for side in calls
    }


def _host(call: Callable[[], Any], count: int, expected: Took) -> Took:
    began = time.perf_counter()
    for _ in range(count):
        call()
    took = (time.perf_counter() - began) * 1e3 / count
    return Took(took, took)


def _events(call: Callable[[], Any], count: int, expected: Took) -> Took:
    """The device waits until the host has done its part of all calls, as far as that is known."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if not math.isnan(expected.host):
        torch.cuda._sleep(int(_AHEAD * expected.host * count * _CYCLES))
    start.record()
    began = time.perf_counter()
    for _ in range(count):
        call()
    host = (time.perf_counter() - began) * 1e3 / count
    stop.record()
    stop.synchronize()
    return Took(float(start.elapsed_time(stop)) / count, host)
