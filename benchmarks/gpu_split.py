"""Where a compiled step's time goes: each call of a kernel between two events of the device.

The device is kept busy while the host enqueues the first of the calls, so what is between two
events is the kernel, not the host's way to it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from byoc_cudnn.norm import CODEGEN as NORM
from byoc_cudnn.pool import CODEGEN as POOL
from relay_wgrad.problem import ConvProblem

KEPT_BUSY = 100_000_000  # cycles of the device: some 50 ms
ROUNDS = 11
_SILENT = ("vm.builtin.",)  # of the virtual machine itself: no kernels


def spent(vm: Any, call: Callable[[], Any]) -> list[tuple[str, float]]:
    """(function, milliseconds) of each call of a kernel in one run of a virtual machine."""
    events: list[tuple[str, Any, Any]] = []
    begun: list[Any] = []

    def instrument(func: Any, name: str, before: bool, ret: Any, *rest: Any) -> int:
        if not name.startswith(_SILENT):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            if before:
                begun.append(event)
            else:
                events.append((name, begun.pop(), event))
        return 0

    call()
    torch.cuda.synchronize()
    vm.set_instrument(instrument)
    try:
        torch.cuda._sleep(3 * KEPT_BUSY)  # the instrument takes the host its time
        call()
        torch.cuda.synchronize()
    finally:
        vm.set_instrument(lambda *rest: 0)
    return [(name, start.elapsed_time(stop)) for name, start, stop in events]


def host_ms(*calls: Callable[[], Any]) -> list[float]:
    """Milliseconds that the host needs for each call while the device has other work, in turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, took in zip(calls, found, strict=True):
            torch.cuda.synchronize()
            torch.cuda._sleep(KEPT_BUSY)
            began = time.perf_counter()
            call()
            took.append((time.perf_counter() - began) * 1e3)
    torch.cuda.synchronize()
    return [*map(statistics.median, found)]


def split(
    calls: Sequence[tuple[str, float]], problems: Mapping[str, str], plans: Sequence[str]
) -> dict[str, Any]:
    """Milliseconds by kind, by problem of convolution, and the longest of the rest.

    problems : by the name of a library's function.  plans : `Library.plans()`, of which each
        problem gets the time that it had alone, when its plan was chosen.
    """
    alone = _alone(plans)
    kinds: dict[str, float] = {}
    rows: dict[str, dict[str, Any]] = {}
    rest: dict[str, float] = {}
    for name, ms in calls:
        problem = problems.get(name)
        if problem is not None:
            kind = problem.partition(" ")[0]
            row = rows.setdefault(
                problem, {"problem": problem, "calls": 0, "ms": 0.0, "alone_ms": alone.get(problem)}
            )
            row["calls"] += 1
            row["ms"] += ms
        else:
            kind = next(
                (k for k, n in (("norms", NORM), ("pools", POOL)) if name.startswith(n)), ""
            )
            if not kind:
                short = name.rstrip("_0123456789")
                rest[short] = rest.get(short, 0.0) + ms
                kind = "rest"
        kinds[kind] = kinds.get(kind, 0.0) + ms
    for row in rows.values():
        moved = ConvProblem.parse(row["problem"]).bytes * row["calls"]
        row["tb_s"] = moved / row["ms"] / 1e9 if row["ms"] else None
    by_time = sorted(rows.values(), key=lambda row: -row["ms"])
    longest = dict(sorted(rest.items(), key=lambda item: -item[1])[:20])
    return {"ms": sum(ms for _, ms in calls), "calls": len(calls), "kinds": kinds,
            "convolutions": by_time, "rest": longest}  # fmt: skip


def _alone(plans: Sequence[str]) -> dict[str, float]:
    """Problem -> the time of its plan, from lines of `Library.plans()`; the shortest of several."""
    found: dict[str, float] = {}
    for line in plans:
        key, _, values = line.partition("\t")
        problem = key.partition(" | ")[2].partition(" epilogue=")[0]
        with contextlib.suppress(ValueError):  # another backend's line
            ms = float(values.rpartition("\t")[2])
            if problem and ms > 0:
                found[problem] = min(ms, found.get(problem, ms))
    return found
