"""What this machine can do at most: multiply-adds in registers, and a copy through memory.

A kernel's floor is the time below which neither ceiling lets it: its FLOP at the one rate or its
bytes at the other, whichever is longer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from relay_wgrad.graph.shared_tasks import threads_of, with_shared_tasks
from relay_wgrad.keys import NO_ALIAS, SCHEDULED
from relay_wgrad.problem import ConvProblem
from relay_wgrad.timing import shortest

from .emitters.loops import argument, local, parallel, serial, splat, vector
from .machine import machine

_ROUNDS, _SECONDS = 20, 0.3  # of each try, at least: the best of them all is the ceiling
_PERIODS, _PERIOD = 5, 0.1  # of processor time; seconds
_TRIES, _APART = 8, 0.2  # more tries, and seconds between them
_AGREE = 0.95  # of the best try, what another must come to
# Tasks of a thread: where processors share a core, the others take some of theirs.
_TASKS = 32
_STEPS = 1_250  # with those tasks half a millisecond: on a busy machine some run keeps its cores
_COPY_BYTES = 1 << 28  # beyond all caches


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s in float32, and bytes read and written per second, with all of TVM's threads."""

    flops: float
    bytes: float

    def floor(self, problem: ConvProblem) -> float:
        """Seconds that a problem takes at least; float64 has half of the lanes."""
        flops = self.flops / (2 if problem.accum_dtype == "float64" else 1)
        return max(problem.flop / flops, problem.bytes / self.bytes)


def ceilings(target: Target, threads: int) -> Ceilings:
    """Measures both on this machine, in three seconds; in up to ten where others use it."""
    return Ceilings(_multiply_adds(target, threads), _copy(target, threads))


def _multiply_adds(target: Target, threads: int) -> float:
    """By processor time, which goes on only while a thread has its core: where other programs share
    the cores, no two of our threads may run at once in any try, and a clock would say half."""
    tasks = _TASKS * threads
    m = machine(target)
    lanes, count, steps = m.lanes("float32"), m.registers - 6, _STEPS
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        _head()
        x = argument("x", "float32", (2,))
        y = argument("y", "float32", (tasks * lanes,))
        with parallel(tasks) as (task,):
            acc = local("acc", count * lanes, "float32")
            for i in range(count):
                T.buffer_store(acc, splat(x[0] * i, lanes), [vector(i * lanes, lanes)])
            with serial(steps):
                for i in range(count):
                    at = vector(i * lanes, lanes)
                    T.buffer_store(acc, acc[at] * splat(x[0], lanes) + splat(x[1], lanes), [at])
            total = acc[vector(0, lanes)]
            for i in range(1, count):
                total = total + acc[vector(i * lanes, lanes)]
            T.buffer_store(y, total, [vector(task * lanes, lanes)])
    a = tvm.runtime.tensor(np.array([0.5, 1], "float32"))
    b = tvm.runtime.tensor(np.zeros(tasks * lanes, "float32"))
    call = _compiled(builder.get(), target, a, b)
    call()
    if not np.allclose(b.numpy(), 2 * count):  # each register's limit is 1 / (1 - 0.5)
        raise RuntimeError("the loop of multiply-adds did not run as written")
    flop = 2.0 * lanes * count * steps * tasks
    return agreed(lambda: flop * threads / _processor_seconds(call))


def _processor_seconds(call: Callable[[], Any]) -> float:
    """Of all threads together, of a call: the least mean of some periods.

    A period is long beside the ticks by which the system counts the time of other threads.
    """
    means: list[float] = []
    for _ in range(_PERIODS):
        calls, begin, before = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < _PERIOD:
            call()
            calls += 1
        means.append((time.process_time() - before) / calls)
    return min(means)


def _copy(target: Target, threads: int) -> float:
    """Threads share the memory, so theirs is a rate by the clock; what one has by processor time,
    which no other program lowers by taking a core, all have at least."""
    moved = 2.0 * _COPY_BYTES
    one, every = _copying(target, 1), _copying(target, _TASKS * threads)
    by_clock = agreed(lambda: moved / shortest(every, _ROUNDS, _SECONDS).seconds)
    return max(by_clock, moved / _processor_seconds(one))


def _copying(target: Target, tasks: int) -> Callable[[], Any]:
    """A function that copies `_COPY_BYTES`, or a little less, in equal tasks."""
    lanes = machine(target).lanes("float32")
    each = _COPY_BYTES // 4 // lanes // tasks
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        _head()
        x = argument("x", "float32", (tasks * each * lanes,))
        y = argument("y", "float32", (tasks * each * lanes,))
        with parallel(tasks) as (task,), serial(each) as i:
            at = vector((task * each + i) * lanes, lanes)
            T.buffer_store(y, x[at], [at])
    a = tvm.runtime.tensor(np.ones(tasks * each * lanes, "float32"))
    b = tvm.runtime.tensor(np.zeros(tasks * each * lanes, "float32"))
    return _compiled(builder.get(), target, a, b)


def agreed(measured: Callable[[], float], apart: float = _APART) -> float:
    """The best of tries at different times, of which a second comes to the same: another program
    halves all rounds of one, and one may say more than there is, by a clock that ran late."""
    rates = [measured()]
    while len(rates) <= _TRIES:
        time.sleep(apart)
        rates.append(measured())
        best, next_best = sorted(rates, reverse=True)[:2]
        if next_best > _AGREE * best:
            break
    rates.sort(reverse=True)
    pairs = itertools.pairwise(rates)
    return next((best for best, other in pairs if other > _AGREE * best), rates[0])


def _head() -> None:
    T.func_name("main")
    T.func_attr({SCHEDULED: True, NO_ALIAS: True})


def _compiled(func: tirx.PrimFunc, target: Target, *args: Any) -> Callable[[], Any]:
    func = with_shared_tasks(func, threads_of(target))
    kernel = tvm.compile(func, target=target)["main"]
    return lambda: kernel(*args)
