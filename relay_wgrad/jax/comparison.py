"""Times of two functions of the same two arrays, each in a program that calls it many times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.experimental.layout import Format, Layout

from ..problem import ConvProblem
from .choice import Times

_CALLS = 8  # in a program
_ROUNDS, _SECONDS = 5, 0.02  # of each side at most, and of each round at least
_LONG = 1.0  # seconds of a program: such a one runs once, where the other side is far ahead
_FAR, _CLEAR = 4.0, 1.3  # a side leads by so much: decided by one round, by two


def lowered(problem: ConvProblem, function: Callable[..., Any], device: jax.Device) -> Any:
    """A program of many calls, each of which waits for the one before: what a call of the host
    costs is more than many a kernel takes.

    It makes its arrays itself, so that XLA lays them out as it likes best for the function: within
    a network they would lie so, and nothing is sent to the device.
    """

    def one(_: Any, state: Any) -> Any:
        first, second, _ = state
        made = function(first, second)
        return _after(first, made), _after(second, made), made

    def many(start: Any) -> Any:
        first, second = (_drawn(start, problem, role) for role in problem.roles[:2])
        made = jax.eval_shape(function, first, second)
        state = (first, second, jnp.zeros(made.shape, made.dtype))
        return lax.fori_loop(0, _CALLS, one, state)[2]

    with jax.default_device(device):
        return jax.jit(many, out_shardings=Format(Layout.AUTO)).lower(np.float32(0.5))


def _after(x: Any, made: Any) -> Any:
    """x, once something is made, on which one element of it depends: a copy of all would take as
    long as many a kernel.  What it was is not read, so that XLA can write it in place."""
    nothing = made[(0,) * made.ndim] * 0  # which XLA may not leave out: it may be NaN
    one = (nothing.astype(x.dtype) + 0.5).astype(x.dtype).reshape((1,) * x.ndim)
    return lax.dynamic_update_slice(x, one, (0,) * x.ndim)


def _drawn(start: Any, problem: ConvProblem, role: str) -> Any:
    """Numbers of all sizes and both signs.

    start : an argument of the program, of which XLA would else compute all when it compiles.
    """
    shape = problem.shape(role)
    places = [lax.broadcasted_iota("float32", shape, axis) for axis in range(len(shape))]
    phase = [x * (0.7 + 0.31 * axis) for axis, x in enumerate(places)]
    return jnp.sin(sum(phase, start)).astype(problem.dtype(role))


def times(ours: Any, other: Any) -> Times:
    """Of two such programs, compiled."""

    def run_of(program: Any) -> Callable[[int], float]:
        start = jax.device_put(np.float32(0.5), program.input_shardings[0][0])

        def run(count: int) -> float:
            began = time.perf_counter()
            for _ in range(count):
                made = program(start)
            jax.block_until_ready(made)
            return (time.perf_counter() - began) / count

        return run

    with jax.ensure_compile_time_eval():
        found = seconds([run_of(ours), run_of(other)])
    return Times(*(1e3 * each / _CALLS for each in found))


def seconds(runs: list[Callable[[int], float]]) -> list[float]:
    """Of a program, of two: the least of some rounds of each, in turns, until one side is clearly
    faster."""
    first = [run(1) for run in runs]  # with what a program's first run costs
    if max(first) > _LONG:
        slow = first.index(max(first))
        again = runs[1 - slow](1)
        if first[slow] > _FAR * again:
            return [first[0], again] if slow == 0 else [again, first[1]]
    least = [run(1) for run in runs]
    counts = [max(1, int(_SECONDS / max(each, 1e-6))) for each in least]
    for turn in range(_ROUNDS):
        for i, (run, count) in enumerate(zip(runs, counts, strict=True)):
            least[i] = min(least[i], run(count))
        if max(least) > (_FAR if turn == 0 else _CLEAR) * min(least):
            break
    return least
