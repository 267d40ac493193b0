"""Times of what computes a convolution, on the device that is here.

Every candidate's result is compared with the first one's: one that disagrees is left out, with a
warning.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.operands import poisoned
from relay_wgrad.problem import ConvProblem

from ..codegen.regions import Region
from ..fused import STEPS, operand_shape
from .record import Measurement, without_pins

_ROUNDS, _MOST_CALLS, _ENOUGH_MS = 5, 40, 4.0
_CACHES = 3  # sets of operands together are that many times the L2 cache
_CLOSE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-2}  # tf32 beside float32


@dataclass
class Task:
    """A problem with its epilogue, and everything that may compute it."""

    region: Region
    candidates: list[Candidate] = field(default_factory=list)


@dataclass
class Candidate:
    backend: str
    version: str
    options: Mapping[str, Any]
    pins: Mapping[str, Any]
    symbol: str
    call: Callable[..., Any] | None = None
    ms: float = math.inf


def time_all(task: Task, timer: Any, device: tvm.runtime.Device) -> None:
    """Fills in the candidates' times; those that fail or disagree keep an infinite one.

    Candidates run on the default stream, for which copies and `sync` wait: the calling thread's own
    may be another (PyTorch's, or one that a program of XLA's left), whose kernels neither sees.
    """
    with tvm_ffi.use_raw_stream(device, 0):
        _time_all(task, timer, device)


def _time_all(task: Task, timer: Any, device: tvm.runtime.Device) -> None:
    problem = task.region.problem
    cache = int(device.l2_cache_size_bytes or (64 << 20))
    wanted = max(1, min(16, math.ceil(_CACHES * cache / problem.bytes)))
    sets = [_operands(task.region, device)]
    sets += [[t.copyto(device) for t in sets[0]] for _ in range(wanted - 1)]  # no time tells
    out, poison = sets[0][-1], poisoned(problem)
    first: np.ndarray | None = None
    for c in task.candidates:
        out.copyfrom(poison)
        try:
            assert c.call is not None
            c.call(*sets[0])
            device.sync()
            result = _sample(out.numpy())
            if first is None and np.isfinite(result).all():
                first = result
            _expect_close(result, first, problem)
            c.ms = float(timer(c.call, sets, 3, device.index))
        except (RuntimeError, ValueError) as error:
            warnings.warn(f"tune: {c.backend} {dict(c.pins)}: {error}", UserWarning, stacklevel=3)
    best = min((c.ms for c in task.candidates), default=math.inf)
    alive = [c for c in task.candidates if c.ms <= 2 * best]
    calls = max(3, min(_MOST_CALLS, math.ceil(_ENOUGH_MS / max(best, 1e-3))))
    times: dict[str, list[float]] = {c.symbol: [] for c in alive}
    for turn in range(_ROUNDS):
        for c in alive if turn % 2 == 0 else alive[::-1]:
            times[c.symbol].append(float(timer(c.call, sets, calls, device.index)))
    for c in alive:
        c.ms = statistics.median(times[c.symbol])


def _operands(region: Region, device: tvm.runtime.Device) -> list[Any]:
    p = region.problem
    result = p.roles[2]
    shapes = {role: (p.shape(role), p.dtype(role)) for role in p.roles}
    for step in (STEPS[name] for name in region.epilogue):
        shapes[step.operand] = (operand_shape(step, p), p.dtype(result))
    rng = np.random.default_rng(0)
    return [
        tvm.runtime.tensor(_random(*shapes[name], rng), device)
        for name in (*region.operands, result)
    ]


def _sample(values: np.ndarray) -> np.ndarray:
    """Some hundred thousand of the values, in float64."""
    flat = values.reshape(-1)
    return flat[:: max(1, flat.size >> 18) | 1].astype("float64")  # an odd step meets all channels


def _random(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Normal numbers; the same over and over from some place on: no time tells."""
    some = _drawn(dtype)
    return np.resize(some[int(rng.integers(some.size // 2)) :], tuple(shape))


@lru_cache
def _drawn(dtype: str) -> np.ndarray:
    """A million, which take longer to draw than most kernels to be timed."""
    numbers = np.random.default_rng(0).standard_normal(1 << 20, dtype="float32")
    return numbers.astype(numpy_dtype(dtype))


def _expect_close(result: np.ndarray, first: np.ndarray | None, problem: ConvProblem) -> None:
    if not np.isfinite(result).all():
        raise ValueError(f"wrong, left out: not all of the result was written: {problem}")
    assert first is not None
    norm = float(np.linalg.norm(first))
    error = float(np.linalg.norm(result - first)) / (norm or 1.0)
    if not error <= _CLOSE[problem.dtype(problem.roles[0])]:
        raise ValueError(f"wrong, left out: differs by {error:.2g} from the first: {problem}")


def fastest(task: Task, machine: str) -> Iterable[Measurement]:
    """The best of each backend."""
    best: dict[str, Candidate] = {}
    for c in task.candidates:
        if c.ms < math.inf and (c.backend not in best or c.ms < best[c.backend].ms):
            best[c.backend] = c
    for c in best.values():
        kept = without_pins(c.backend, c.options)
        yield Measurement(
            machine, c.backend, c.version, task.region.problem.repro(),
            "_".join(task.region.epilogue), c.ms, kept, c.pins,
        )  # fmt: skip
