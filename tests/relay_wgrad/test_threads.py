"""Kernels that are called from many threads: few workers, in the thread that they are meant for."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm

import relay_wgrad.torch as rt
from relay_wgrad import relay, threads
from relay_wgrad.cores import configure_threads, usable_cores
from relay_wgrad.relay import graph_executor
from tests.support.fork import in_child

TASKS = Path("/proc/self/task")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "runners", threads.Runners())


def in_thread(function: Callable[[], Any]) -> Any:
    """What a thread of its own gives."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@pytest.mark.skipif(not TASKS.exists(), reason="counts threads in /proc")
def test_threads_that_end_leave_nothing() -> None:
    x, w = torch.randn(1, 8, 40, 40), torch.randn(32, 8, 5, 5)  # too large for one thread
    want = torch.nn.functional.conv2d(x, w)
    got = rt.convolution(x, w)
    before = len(list(TASKS.iterdir()))
    for _ in range(200):
        got = in_thread(lambda: rt.convolution(x, w))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    assert len(list(TASKS.iterdir())) - before <= threads.RUNNERS * len(usable_cores())


@pytest.mark.skipif(not TASKS.exists(), reason="counts threads in /proc")
def test_relays_executor() -> None:
    x, w = relay.var("x", shape=(1, 8, 20, 20)), relay.var("w", shape=(8, 8, 3, 3))
    program = relay.Function([x, w], relay.nn.conv2d(x, w))
    executor = graph_executor.GraphModule(
        relay.build(relay.IRModule({"main": program}), target="llvm")["default"](tvm.cpu())
    )
    executor.set_input("x", np.ones((1, 8, 20, 20), "float32"))
    executor.set_input("w", np.ones((8, 8, 3, 3), "float32"))
    before = len(list(TASKS.iterdir()))
    for _ in range(50):
        in_thread(executor.run)
    assert (executor.get_output(0).numpy() == 72).all()
    assert len(list(TASKS.iterdir())) - before <= threads.RUNNERS * len(usable_cores())


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs affinities")
def test_one_thread_runs_in_the_caller_and_is_not_bound_to_a_core() -> None:
    def alone() -> tuple[int, set[int]]:
        return threads.run(threading.get_ident, threads=1), os.sched_getaffinity(0)

    caller: list[int] = []
    ident, cores = in_thread(lambda: (caller.append(threading.get_ident()), alone())[1])
    assert (ident, cores) == (caller[0], os.sched_getaffinity(0))


def test_who_runs_what() -> None:
    """The main thread its own calls, a few others those of all others; a runner's are its own."""
    main = threading.get_ident()
    assert threads.run(threading.get_ident, threads=2) == main
    assert threads.run(threading.get_ident) == main
    runners = {in_thread(lambda: threads.run(threading.get_ident)) for _ in range(20)}
    assert main not in runners
    assert len(runners) <= threads.RUNNERS
    nested = in_thread(lambda: threads.run(threads.run, threading.get_ident))
    assert nested in runners


def test_calls_at_the_same_time() -> None:
    met = threading.Barrier(threads.RUNNERS, timeout=30)
    together = [threading.Thread(target=threads.run, args=(met.wait,)) for _ in range(2)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join(60)
    assert not met.broken


def test_errors_and_results_go_to_the_caller() -> None:
    def fails() -> None:
        raise LookupError("of a kernel")

    with pytest.raises(LookupError, match="of a kernel"):
        in_thread(lambda: threads.run(fails))
    assert in_thread(lambda: threads.run(lambda a, b: a - b, 5, 3)) == 2


def test_a_bad_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="TVM_NUM_THREADS must be from 1 to"):
        in_thread(lambda: threads.run(int, threads=3))


def test_operands_are_not_kept() -> None:
    class Tensor:
        pass

    def call() -> weakref.ref[Tensor]:
        tensor = Tensor()
        threads.run(lambda x: None, tensor)
        return weakref.ref(tensor)

    gone = in_thread(call)
    for _ in range(100):
        gc.collect()
        if gone() is None:
            return
        time.sleep(0.01)
    pytest.fail("a runner keeps what it was called with")


@pytest.mark.parametrize("wakes", [False, True])  # that waits, or comes as the wait is over
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_interrupt_waits_for_the_kernel(wakes: bool) -> None:
    """As it does where the caller runs it: the kernel writes into the caller's memory."""
    done = []
    main = threading.get_ident()

    def kernel() -> None:
        if wakes:
            signal.pthread_kill(main, signal.SIGINT)
        else:
            _thread.interrupt_main()
        time.sleep(0.2)
        done.append(True)

    def work() -> bool:  # in a fork the main thread hands its calls to another, too
        # Shells start what is in the background with this signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            threads.run(kernel)
        return bool(done)

    assert in_child(work) == 0


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends starts none; kernels still run."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def call() -> int:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            return threads.run(threading.get_ident)

    caller: list[int] = []
    assert in_thread(lambda: (caller.append(threading.get_ident()), call())[1]) == caller[0]


@pytest.mark.longer("starts processes of TVM")
def test_at_the_end_of_a_process() -> None:
    code = """
import threading, time
from relay_wgrad import relay, threads
from relay_wgrad.relay import graph_executor
def late():
    time.sleep(0.3)  # the main thread is gone
    print(threads.run(lambda: "ran"))
threading.Thread(target=late).start()
threading.Thread(target=threads.run, args=(time.sleep, 1000), daemon=True).start()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs affinities")
def test_fewer_threads_may_use_every_core() -> None:
    """Processes with few threads each would else all be on the first cores; and it can grow."""

    def few() -> tuple[set[int], int]:
        configure_threads(1)
        return os.sched_getaffinity(0), configure_threads()

    assert in_thread(few) == (os.sched_getaffinity(0) & set(usable_cores()), len(usable_cores()))


FIRST_RUN = """
import os
import tvm
from relay_wgrad import cores, threads
{before}
allowed = os.sched_getaffinity(0)
threads.run(int)
print(tvm.get_global_func("runtime.NumThreads")(), os.sched_getaffinity(0) == allowed)
"""


@pytest.mark.share(2)
@pytest.mark.longer_cases(
    "-none", "cores.", "threads.", why="a process of TVM each; no limit and a list of them stay"
)
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs affinities")
@pytest.mark.parametrize(
    ("before", "limit", "count"),
    [
        ("", None, len(usable_cores())),
        ("", "1,2", 1),
        ("", "none", len(usable_cores())),
        ("cores.configure_threads(1)", None, 1),
        ("threads.run(int, threads=1)", None, 1),
    ],
)
def test_a_first_run_in_the_main_thread(before: str, limit: str | None, count: int) -> None:
    """TVM alone takes half of the logical processors, the machine's first ones, and binds each
    thread to one of them, also where the process may not use it."""
    others = {
        k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")
    }
    done = subprocess.run(
        [sys.executable, "-c", FIRST_RUN.format(before=before)], capture_output=True, text=True,
        timeout=60, check=True, env=others | ({} if limit is None else {"OMP_NUM_THREADS": limit}),
    )  # fmt: skip
    assert done.stdout.split() == [str(count), "True"]
