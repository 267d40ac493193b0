"""The machine's part of `benchmarks.cpu`: what the CPU can do at most, and times taken in turns."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from legalize.cpu.emit import local, parallel, serial, splat, vector
from legalize.cpu.machine import machine

Call = Callable[[], Any]

# A turn of a candidate: calls for so many seconds, but no fewer and no more than so many calls.
_TURN, _LEAST, _MOST = 0.01, 2, 20
# Idle threads of OpenMP's and TVM's pools spin for a while: a pause before a turn lets them sleep.
_PAUSE = 0.012


def best(candidates: Sequence[Call], rounds: int) -> list[float]:
    """Shortest time of each in seconds.  They take turns; a turn's first call is not timed."""
    times = [float("inf")] * len(candidates)
    for _ in range(rounds):
        for i, call in enumerate(candidates):
            time.sleep(_PAUSE)
            call()
            begin = time.perf_counter()
            for number in range(_MOST):
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                times[i] = min(times[i], end - start)
                if number + 1 >= _LEAST and end - begin > _TURN:
                    break
    return times


def cpu_model() -> str:
    """The CPU's name with what tells its kind: an anonymous name is all that some hosts give."""
    path = Path("/proc/cpuinfo")
    facts = dict[str, str]()
    if path.exists():
        for line in path.read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
    name = facts.get("model name", platform.processor() or platform.machine())
    words = [f"{x} {facts[key]}" for x, key in (("family", "cpu family"), ("model", "model"))
             if key in facts]  # fmt: skip
    return ", ".join([name, *words])


def fma_peak(target: Target, threads: int) -> float:
    """FLOP/s in float32 of a kernel that does nothing but multiply-adds in registers."""
    m = machine(target)
    lanes, count, steps, tasks = m.lanes("float32"), m.registers - 6, 200_000, 4 * threads
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
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
    kernel = tvm.compile(builder.get(), target=target)["main"]
    a = tvm.runtime.tensor(np.array([0.5, 1], "float32"))
    b = tvm.runtime.tensor(np.zeros(tasks * lanes, "float32"))
    (seconds,) = best([lambda: kernel(a, b)], 5)
    # Each register's limit is 1 / (1 - 0.5): so the loop has been run.
    assert np.allclose(b.numpy(), 2 * count)
    return 2.0 * lanes * count * steps * tasks / seconds


def bandwidth(megabytes: int = 256) -> float:
    """Bytes read and written per second by PyTorch's copy of an array beyond all caches."""
    x = torch.ones(megabytes << 18)
    y = torch.empty_like(x)
    (seconds,) = best([lambda: y.copy_(x)], 3)
    return 2.0 * x.nbytes / seconds
