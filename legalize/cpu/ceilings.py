"""What this machine can do at most: multiply-adds in registers, and a copy through memory.

A kernel's floor is the time below which neither ceiling lets it: its FLOP at the one rate or its
bytes at the other, whichever is longer.
"""

from __future__ import annotations

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

from relay_wgrad.problem import ConvProblem

from .emit import local, parallel, serial, splat, vector
from .machine import machine

_ROUNDS = 30
# Waking threads may share a core for a moment: a pause lets the scheduler part them.
_PAUSE = 0.004
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
    """Measures both on this machine, in about a second."""
    return Ceilings(_multiply_adds(target, threads), _copy(target, threads))


def shortest(call: Callable[[], Any], rounds: int = _ROUNDS) -> float:
    """The shortest time in seconds of some calls, each after one that does not count."""
    times = []
    for _ in range(rounds):
        time.sleep(_PAUSE)
        call()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _multiply_adds(target: Target, threads: int) -> float:
    m = machine(target)
    lanes, count, steps, tasks = m.lanes("float32"), m.registers - 6, 200_000, 4 * threads
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        _head()
        x = T.arg("x", T.buffer((2,), "float32"))
        y = T.arg("y", T.buffer((tasks * lanes,), "float32"))
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
    seconds = shortest(_compiled(builder.get(), target, a, b))
    if not np.allclose(b.numpy(), 2 * count):  # each register's limit is 1 / (1 - 0.5)
        raise RuntimeError("the loop of multiply-adds did not run as written")
    return 2.0 * lanes * count * steps * tasks / seconds


def _copy(target: Target, threads: int) -> float:
    lanes = machine(target).lanes("float32")
    tasks = 4 * threads
    each = _COPY_BYTES // 4 // lanes // tasks
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        _head()
        x = T.arg("x", T.buffer((tasks * each * lanes,), "float32"))
        y = T.arg("y", T.buffer((tasks * each * lanes,), "float32"))
        with parallel(tasks) as (task,), serial(each) as i:
            at = vector((task * each + i) * lanes, lanes)
            T.buffer_store(y, x[at], [at])
    a = tvm.runtime.tensor(np.ones(tasks * each * lanes, "float32"))
    b = tvm.runtime.tensor(np.zeros(tasks * each * lanes, "float32"))
    seconds = shortest(_compiled(builder.get(), target, a, b))
    return 2.0 * tasks * each * lanes * 4 / seconds


def _head() -> None:
    T.func_name("main")
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})


def _compiled(func: tirx.PrimFunc, target: Target, *args: Any) -> Callable[[], Any]:
    kernel = tvm.compile(func, target=target)["main"]
    return lambda: kernel(*args)
