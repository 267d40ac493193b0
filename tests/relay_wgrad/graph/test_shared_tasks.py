"""Parallel loops whose threads take each other's tasks: each task is done once, whoever does it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as T

from legalize import cpu
from relay_wgrad.building.objects import lowered
from relay_wgrad.graph.shared_tasks import MANY, with_shared_tasks
from relay_wgrad.problem import ConvProblem
from tests.support.children import run_code

TAKE = "relay_wgrad_take"
LLVM = Target("llvm")


BEYOND = 64  # numbers that are no task's


def counted(tasks: int | None, first: int = 0, work: int = 0) -> tirx.PrimFunc:
    """Each task adds 1 to a number of its own, of as many as there are if None.

    work : of a task, in multiply-adds that wait for each other.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        size = tirx.Var("size", "int64") if tasks is None else tasks + BEYOND
        y, z = (T.arg(x, T.buffer((size,), t)) for x, t in (("y", "int32"), ("z", "float32")))
        count = tirx.const(0, "int64") + size - BEYOND
        with T.parallel(first, count) as task:
            with T.serial(0, work):
                T.buffer_store(z, z[task] * tirx.const(0.5, "float32") + z[task], [task])
            T.buffer_store(y, y[task] + 1, [task])
    return builder.get()


def once(func: tirx.PrimFunc, tasks: int, calls: int = 1) -> bool:
    """Whether each task is done once in each call, and no other."""
    y, z = (tvm.runtime.tensor(np.zeros(tasks + BEYOND, x)) for x in ("int32", "float32"))
    call = tvm.compile(func, target=LLVM)["main"]
    for _ in range(calls):
        call(y, z)
    own, others = y.numpy()[:tasks], y.numpy()[tasks:]
    return bool((own == calls).all() and not others.any())


@pytest.mark.parametrize("threads", [4, 7, 16, 40])
def test_each_task_is_done_once(threads: int) -> None:
    for tasks in (threads + 1, 2 * threads, 1000, 64 * threads - 1, 64 * threads + 1, 100_003):
        func = with_shared_tasks(counted(tasks), threads)
        assert TAKE in func.script()
        assert once(func, tasks), tasks


def test_loops_that_begin_at_a_task() -> None:
    """A triangle: TVM shifts the loop inside, and would forget to shift its beginning."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        y = T.arg("y", T.buffer((100, 100), "int32"))
        with T.parallel(0, tirx.const(100, "int64")) as task, T.serial(task, 100) as i:
            T.buffer_store(y, y[task, i] + 1, [task, i])
    made = tvm.runtime.tensor(np.zeros((100, 100), "int32"))
    tvm.compile(with_shared_tasks(builder.get(), 4), target=LLVM)["main"](made)
    assert np.array_equal(made.numpy(), np.triu(np.ones((100, 100))))


def test_of_a_number_that_the_call_knows() -> None:
    func = with_shared_tasks(counted(None), 8)
    assert TAKE in func.script()
    for tasks in (0, 1, 7, 8, 9, 513, 40_001):
        assert once(func, tasks), tasks


def test_no_two_threads_take_the_same() -> None:
    """Threads that meet at one counter are rare on a few cores, so LLVM's code is asked."""
    built = tvm.compile(with_shared_tasks(counted(1000), 16), target=LLVM)
    assert "atomicrmw add" in built.mod.inspect_source("ll")


def test_what_stays() -> None:
    """Loops for few threads, of few tasks, that begin elsewhere, and those that are shared."""
    for func, threads in (
        (counted(1000), 0), (counted(1000), MANY - 1), (counted(16), 16), (counted(1000, 3), 16),
    ):  # fmt: skip
        assert with_shared_tasks(func, threads).same_as(func)
    shared = with_shared_tasks(counted(1000), 16)
    assert with_shared_tasks(shared, 16).same_as(shared)


MANY_THREADS = """
import numpy as np, tvm
from tests.relay_wgrad.graph.test_shared_tasks import LLVM, counted, helped, once
from relay_wgrad.graph.shared_tasks import with_shared_tasks
assert once(with_shared_tasks(counted(997, work=100), 8), 997, calls=1000)
func = tvm.compile(with_shared_tasks(helped(), 8), target=LLVM)["main"]
who = tvm.runtime.tensor(np.zeros(512, "int64"))
most = 0
for _ in range(20):
    func(who)
    most = max(most, len(set(who.numpy()[:64].tolist())))
assert most > 1, "nobody has helped"
"""


def helped() -> tirx.PrimFunc:
    """Who did each of 512 tasks, of which the first thread's 64 take long."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        y = T.arg("y", T.buffer((512,), "int64"))
        with T.parallel(0, 512) as task:
            with T.If(task < 64), T.Then():
                T.evaluate(tirx.call_extern("int32", "usleep", tirx.const(300, "uint32")))
            T.buffer_store(y, tirx.call_extern("int64", "pthread_self"), [task])
    return builder.get()


def test_threads_that_are_through_take_from_others() -> None:
    done = run_code(
        MANY_THREADS, env={"TVM_NUM_THREADS": "8", "TVM_BIND_THREADS": "0"}, forked=False
    )
    assert done.returncode == 0, done.stderr


def test_a_program_for_many_threads() -> None:
    """Convolutions by any compiler, and all kernels by ours."""
    problem = ConvProblem.parse("fprop n=8 c=64 h=28 w=28 k=64 r=1 s=1 layout=NHWC/HWIO/NHWC")
    for threads in (2, 16):
        target = cpu.host_target(threads)
        assert (TAKE in cpu.prim_func(problem, target).script()) == (threads == 16)
        module = tvm.IRModule({"main": counted(1000).with_attr("global_symbol", "main")})
        (func,) = lowered(module, target).values()
        assert (TAKE in func.script()) == (threads == 16)
    assert TAKE not in cpu.prim_func(problem, "llvm").script()  # for how many is not known
