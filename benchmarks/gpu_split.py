"""Where a compiled step's time goes: its kernels as the profiler's library saw them.

Two events around a call of small kernels say more than the kernels take: the device waits for the
host between them, and then a step's parts add up to more than the step.  So the times are those of
the captured graph, as CUPTI has them (`torch.profiler`); which call a kernel belongs to is known
from a run of the virtual machine, whose kernels are the same in the same order.  A kernel has the
time from the end of the one before, or from its own start where that is later, to its end: parts
add up to what the device was busy, and what it idled between them is told beside it.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import torch

from byoc_cudnn.norm import CODEGEN as NORM
from byoc_cudnn.pool import CODEGEN as POOL
from relay_wgrad.problem import ConvProblem

KEPT_BUSY = 100_000_000  # cycles of the device: some 50 ms
ROUNDS = 11
_SILENT = ("vm.builtin.",)  # of the virtual machine itself: no kernels
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace
_BY_HOST = ("cuda_runtime", "cuda_driver")
_SCOPE = "call of "
LONGEST = 20  # kernels of the rest that a split names


class Kernel(NamedTuple):
    """A kernel or a copy of the device's: the function that started it, in which of its calls."""

    function: str
    call: int
    kernel: str
    ms: float


def spent(
    vm: Any, call: Callable[[], Any], replay: Callable[[], Any]
) -> tuple[list[Kernel], float]:
    """What the device did in a replay of a machine's captured call, and its idle milliseconds."""
    stack: list[Any] = []

    def instrument(func: Any, name: str, before: bool, ret: Any, *rest: Any) -> int:
        if not name.startswith(_SILENT):
            if before:
                stack.append(torch.profiler.record_function(_SCOPE + name))
                stack[-1].__enter__()
            else:
                stack.pop().__exit__(None, None, None)
        return 0

    vm.set_instrument(instrument)
    try:
        called = trace_of(call)
    finally:
        vm.set_instrument(lambda *rest: 0)
    return times(owners(called), on_device(trace_of(replay)))


def trace_of(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """The events of a second call, as the profiler writes them."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=kinds) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def on_device(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What a trace's device did, in order."""
    return sorted((e for e in events if e.get("cat") in _ON_DEVICE), key=lambda e: e["ts"])


def owners(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
    """(function, which call, kernel) of a traced run: the call within which the host started it."""
    scopes = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"].removeprefix(_SCOPE))
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith(_SCOPE)
    )
    started = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in _BY_HOST and "correlation" in e.get("args", {})
    }
    found = []
    for event in on_device(events):
        at = started.get(event["args"].get("correlation"), -1.0)
        i = bisect.bisect_right(scopes, (at, math.inf, "")) - 1
        within = i >= 0 and at <= scopes[i][1]
        found.append((scopes[i][2] if within else event["name"], i, event["name"]))
    return found


def times(
    known: Sequence[tuple[str, int, str]], events: Sequence[Mapping[str, Any]]
) -> tuple[list[Kernel], float]:
    """Of a replay's kernels whose they are, and the idle milliseconds.

    By their places in the run that is known, but for what only one of both has: a kernel that
    stands nowhere there is its function's if one alone has such a kernel, else nobody's.
    """
    names = [kernel for _, _, kernel in known]
    of_kernel: dict[str, set[str]] = {}
    for function, _, kernel in known:
        of_kernel.setdefault(kernel, set()).add(function)
    match = SequenceMatcher(None, names, [event["name"] for event in events], autojunk=False)
    places = {
        block.b + i: block.a + i for block in match.get_matching_blocks() for i in range(block.size)
    }
    found, free, idle = [], events[0]["ts"] if events else 0.0, 0.0
    for i, event in enumerate(events):
        kernel, begin, end = event["name"], max(free, event["ts"]), event["ts"] + event["dur"]
        idle += begin - free
        if i in places:
            function, call = known[places[i]][:2]
        else:
            of = of_kernel.get(kernel, set())
            function, call = next(iter(of)) if len(of) == 1 else kernel, -1 - i
        found.append(Kernel(function, call, kernel, max(0.0, end - begin) / 1e3))
        free = max(free, end)
    return found, idle / 1e3


def host_ms(*calls: Callable[[], Any], row: int = 1) -> list[float]:
    """Milliseconds that the host needs for each call while the device has other work, in turns, of
    so many in a row: as a loop calls, after the first the host's caches have what it reads."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, took in zip(calls, found, strict=True):
            torch.cuda.synchronize()
            torch.cuda._sleep(KEPT_BUSY)
            began = time.perf_counter()
            for _ in range(row):
                call()
            took.append((time.perf_counter() - began) * 1e3 / row)
    torch.cuda.synchronize()
    return [*map(statistics.median, found)]


def split(
    kernels: Sequence[Kernel], idle: float, problems: Mapping[str, str], plans: Sequence[str]
) -> dict[str, Any]:
    """Milliseconds by kind, by problem of convolution, by kernel of the norms, the longest others.

    idle : what the device waited, which `ms` and the parts are without.
    problems : by the name of a library's function.  plans : `Library.plans()`, of which each
        problem gets the time that it had alone, when its plan was chosen.
    """
    alone = _alone(plans)
    kinds: Counter[str] = Counter()
    norms: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, set[int]] = {}
    for name, call, kernel, ms in kernels:
        problem = problems.get(name)
        if problem is not None:
            kind = problem.partition(" ")[0]
            row = rows.setdefault(
                problem, {"problem": problem, "calls": 0, "ms": 0.0, "alone_ms": alone.get(problem)}
            )
            calls.setdefault(problem, set()).add(call)
            row["calls"] = len(calls[problem])
            row["ms"] += ms
        elif name.startswith(NORM):
            kind = "norms"
            norms[function_of(kernel)] += ms
        elif name.startswith(POOL):
            kind = "pools"
        else:
            kind = "rest"
            rest[name.rstrip("_0123456789")] += ms
        kinds[kind] += ms
    for row in rows.values():
        moved = ConvProblem.parse(row["problem"]).bytes * row["calls"]
        row["tb_s"] = moved / row["ms"] / 1e9 if row["ms"] else None
    by_time = sorted(rows.values(), key=lambda row: -row["ms"])
    return {
        "ms": sum(kinds.values()), "idle_ms": idle, "kernels": len(kernels), "kinds": dict(kinds),
        "convolutions": by_time, "norms": dict(norms.most_common()),
        "rest": dict(rest.most_common(LONGEST)),
    }  # fmt: skip


def function_of(kernel: str) -> str:
    """The function's name in a kernel's, which has its namespace, template arguments and types."""
    plain = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    found = re.match(r"[\w:]+", plain)
    return found.group().rpartition(":")[2] if found else kernel


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
