"""Whether this package's kernel of a problem is faster than what XLA makes of `lax`'s: as measured.

On CUDA each problem is timed once for a machine and its versions, when JAX lowers it; the times are
kept in the user's cache.  On CPUs, where XLA's kernels are slower in nearly all shapes, nothing is
timed unless it is asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np
import tvm
from jax import lax
from jax import numpy as jnp

from .. import __version__
from ..building.disk_cache import DiskCache, key_of
from ..problem import ConvProblem
from .records import Options
from .targets import PLATFORMS

_measured: tuple[str, ...] = ("cuda",)
_CALLS = 16  # in a program that is timed
_ROUNDS, _SECONDS = 5, 0.02  # of each side, and of each round at least


class Times(NamedTuple):
    """Milliseconds of a call, within a program of its own."""

    ours: float
    lax: float


def set_measured(*platforms: str) -> tuple[str, ...]:
    """Where kernels are compared with XLA's by their times; returns what it was.

    platforms : of "cpu" and "cuda", at first "cuda".  On another one every convolution that this
        package has a kernel for is its own.  It holds for what is lowered from then on.

    Raises ValueError for another platform.
    """
    global _measured
    if wrong := [name for name in platforms if name not in PLATFORMS]:
        raise ValueError(f"set_measured: platforms are {', '.join(PLATFORMS)}, got {wrong[0]!r}")
    before, _measured = _measured, tuple(dict.fromkeys(platforms))
    return before


def times(
    problem: ConvProblem, options: Options, platform: str, ours: Any, other: Any
) -> Times | None:
    """Of both sides, functions of two arrays; None where nothing is measured."""
    if platform not in _measured:
        return None
    device = jax.local_devices(backend="cpu" if platform == "cpu" else None)[0]
    key = key_of([
        "times of jax", __version__, jax.__version__, version("jaxlib"), tvm.__version__, platform,
        device.device_kind, problem.repro(), str(options),
    ])  # fmt: skip
    cache = DiskCache()
    if (found := cache.get(key)) is not None:
        return Times(*json.loads(found))
    rng = np.random.default_rng(0)
    with jax.ensure_compile_time_eval(), jax.default_device(device):
        operands = [
            jnp.asarray(rng.standard_normal(problem.shape(r), dtype="float32"), problem.dtype(r))
            for r in problem.roles[:2]
        ]
        made = Times(*_milliseconds([_repeated(ours), _repeated(other)], operands))
    cache.put(key, json.dumps(made).encode())
    return made


def _repeated(function: Callable[..., Any]) -> Any:
    """Many calls in one program, each of which waits for the one before: what a call of the host
    costs is more than many a kernel takes."""

    def one(_: Any, state: Any) -> Any:
        first, second, _ = state
        made = function(first, second)
        nothing = made.ravel()[0] * 0  # which XLA may not leave out: it may be NaN
        if first.size < second.size:
            return first + nothing, second, made
        return first, second + nothing, made

    def many(first: Any, second: Any) -> Any:
        made = jax.eval_shape(function, first, second)
        state = (first, second, jnp.zeros(made.shape, made.dtype))
        return lax.fori_loop(0, _CALLS, one, state)[2]

    return jax.jit(many)


def _milliseconds(functions: list[Any], operands: list[Any]) -> list[float]:
    """Of a call: the least of some rounds of each, in turns."""
    counts = []
    for function in functions:
        jax.block_until_ready(function(*operands))
        began = time.perf_counter()
        jax.block_until_ready(function(*operands))
        counts.append(max(1, int(_SECONDS / max(time.perf_counter() - began, 1e-6))))
    least = [float("inf")] * len(functions)
    for _ in range(_ROUNDS):
        for i, (function, count) in enumerate(zip(functions, counts, strict=True)):
            began = time.perf_counter()
            for _ in range(count):
                made = function(*operands)
            jax.block_until_ready(made)
            least[i] = min(least[i], (time.perf_counter() - began) / count)
    return [1e3 * seconds / _CALLS for seconds in least]
