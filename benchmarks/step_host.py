"""What a `TrainingStep` of ResNet-50 takes of the host: a call's search, and its comparison.

The least of many rounds, in processor time of the thread, of the search for the program, and of the
comparison with what `forward` has read in it.  Images are small: how many layers there are counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import relay_wgrad
import relay_wgrad.torch as rt
from benchmarks import plain_networks
from benchmarks.runner import Benchmark, Case, Measure, Option

CALLS = 20


def least(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds of one call."""
    found, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        found = min(found, (time.thread_time() - began) / CALLS)
    return 1e6 * found


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for what in ("finding the program", "comparing"):
        yield Case({"what": what})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    x = torch.randn(2, 3, 32, 32)
    step = rt.TrainingStep(plain_networks.ResNet50(width=4), x)
    program: Any = step._program((x,))
    calls = {"finding the program": lambda: step._program((x,)),
             "comparing": program.depends.is_current}  # fmt: skip
    return lambda case: {"us": least(calls[case.key["what"]], args.seconds)}


BENCHMARK = Benchmark(
    cases, begin, options={"seconds": Option(10.0, "for each time")},
    columns=(("what",), ("µs", "us", ".0f"), ("reason",)),
)  # fmt: skip
