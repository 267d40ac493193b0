"""Tasks that are counted: by kernels whose work is known, and what is even on sixteen cores."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from benchmarks.cpu_tasks import Walk
from legalize import cpu
from legalize.cpu.emitters.loops import argument, flat, int64, parallel, serial, vector, when
from legalize.cpu.machine import WINOGRAD
from relay_wgrad.problem import ConvProblem

CORES = 16


def kernel(ragged: bool, is_cut: bool) -> tirx.PrimFunc:
    """10 tasks that each add `task` + 1 vectors, or all 8; of even ones alone, if so said."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        x, y = (argument(name, "float32", (10 * 128,)) for name in "xy")
        x, y = (flat(each, "float32", (10 * 128,)) for each in (x, y))
        with serial(3), parallel(10) as (task,):
            chosen = when(task % 2 == 0 if is_cut else True)
            with chosen, serial(task + 1 if ragged else 8) as i:
                at = vector(task * 128 + i * 16, 16)
                T.buffer_store(y, x[at] + y[at], [at])
        T.buffer_store(y, y[int64(0)], [int64(0)])
    return builder.get()


@pytest.mark.parametrize(
    ("ragged", "is_cut", "work", "fullest", "lines"),
    [
        (False, False, [8] * 10, 24, 3 * 8),
        (True, False, list(range(1, 11)), 24, 1 + 2 + 3),
        (False, True, [8, 0] * 5, 16, 2 * 8),
        (True, True, [1, 0, 3, 0, 5, 0, 7, 0, 9, 0], 16, 1 + 3),
    ],
)
def test_work_of_tasks(
    ragged: bool, is_cut: bool, work: list[int], fullest: int, lines: int
) -> None:
    """Four cores have runs of three tasks, the last of one; loops around count as often as they
    turn, and what is outside of all keeps one core at work."""
    walk = Walk(kernel(ragged, is_cut), 4, True)
    assert [list(each) for each in walk.work] == [[3 * x for x in work]]
    assert (walk.serial, walk.tasks) == (1, 10)
    assert walk.balance == pytest.approx((3 * sum(work) + 1) / 4 / (3 * fullest + 1))
    assert walk.read == 3 * 64 * 2 * lines  # of both tensors


@pytest.mark.parametrize(
    "line",
    [
        "wgrad n=8 c=144 h=28 w=28 k=32",
        "wgrad n=8 c=480 h=14 w=14 k=80",
        "wgrad n=8 c=112 h=14 w=14 k=672",
        "fprop n=8 c=960 h=7 w=7 k=960 r=3 s=3 groups=960 pad=1,1,1,1",
        "dgrad n=8 c=1152 h=7 w=7 k=1152 r=5 s=5 groups=1152 pad=2,2,2,2",
        "wgrad n=1 c=672 h=14 w=14 k=672 r=5 s=5 groups=672 stride=2,2 pad=2,2,2,2",
        "fprop n=1 c=192 h=14 w=14 k=64",
        "dgrad n=1 c=64 h=14 w=14 k=384",
        "fprop n=1 c=2048 h=7 w=7 k=512",
        "wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1",
    ],
)
def test_even_work_of_sixteen_cores(line: str) -> None:
    """Rows of networks that were at 0.4 to 0.84."""
    target = Target(
        {"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": CORES, "keys": ["cpu", WINOGRAD]}
    )
    taps = "" if "r=" in line else " r=1 s=1"
    problem = ConvProblem.parse(f"{line}{taps} layout=NHWC/HWIO/NHWC")
    assert Walk(cpu.with_tasks(problem, target).func, CORES, False).balance >= 0.85


def test_tiles_of_few_pixels_are_even() -> None:
    """196 pixels, of which 16 cores' full tiles would be at 0.88."""
    target = Target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": CORES})
    problem = ConvProblem.parse("fprop n=1 c=192 h=14 w=14 k=64 r=1 s=1 layout=NHWC/HWIO/NHWC")
    assert Walk(cpu.with_tasks(problem, target).func, CORES, False).balance >= 0.95
