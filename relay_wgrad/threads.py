"""Threads that run parallel CPU kernels for all others.

TVM has a pool of workers for each thread that ever ran a parallel kernel, and keeps it when that
thread is gone: a server with a thread for each request would grow until it dies.  So the main
thread runs kernels itself, and any other one hands them to one of a few that stay.  A child of
`fork` has none of its parent's workers, and would wait for them: there its calls are handed to new
threads.

No workers are needed, wherever a kernel runs, if it is serial or is to have one thread.

A process that ends waits for calls that daemon threads are in, and lets them begin no more: a
thread that comes back from C++ then is taken away within it, which ends in `std::terminate`, and
CUDA's runtime is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import get_ident
from typing import Any

from .argument_types import checked_integer
from .cores import affinity_kept, configure_threads, configure_threads_once

RUNNERS = 2
"""Threads besides the main one, at most, that run kernels: one call each at a time."""
SERIAL_FLOP = 4_000_000
"""Smaller kernels run in one thread: waking others takes some 20 us, more where they are busy."""
_LAST = 2.0  # seconds that a process that ends waits for calls: for a GPU's step, not for ever


class _Mine(threading.local):
    """What a thread knows of itself."""

    set: int | None = 0  # threads that its kernels are set to; None: every core; 0: nothing
    is_runner = False
    is_inside = False  # a call that counts
    has_lost_workers = False  # it forked


_mine = _Mine()
_main: int | None = threading.main_thread().ident  # runs its kernels itself; None in a fork


def run(function: Callable[..., Any], *args: Any, threads: int | None = None) -> Any:
    """`function(*args)`, of a function that may run parallel CPU kernels, from any thread.

    `threads`: that share the work of a kernel, at most; None: every core that the process may use,
    or in the main thread what `configure_threads` was asked for.  A set TVM_NUM_THREADS comes
    before either.  Raises what the function raises, ValueError for a TVM_NUM_THREADS that is no
    number of threads and for fewer `threads` than 1, TypeError for a number of them that is no
    integer.
    """
    if threads is not None:
        checked_integer("run: threads", threads, 1)
    if _mine.is_runner:  # a function that calls back
        return function(*args)
    if get_ident() == _main:
        if threads is None:
            configure_threads_once()
        elif _mine.set != threads:
            _share(threads)
        return function(*args)
    with calls.one():
        return _elsewhere(function, args, threads)


def _elsewhere(function: Callable[..., Any], args: Any, threads: int | None) -> Any:
    """What `run` does in another thread than the main one."""
    given = os.environ.get("TVM_NUM_THREADS")
    as_it_is = threads is not None and _mine.set == threads
    if as_it_is or given == "1":  # for TVM in every thread
        return function(*args)
    if threads == 1 and given is None and not _mine.has_lost_workers:
        _alone()
        return function(*args)
    return runners.run(function, args, threads)


def _share(threads: int | None) -> None:
    """Kernels of this thread run in so many from now on."""
    configure_threads(threads)
    _mine.set = threads


def _alone() -> None:
    """Kernels of this thread run in it, which has no workers."""
    import tvm

    share_all_cores = -3
    with affinity_kept() as cores:
        tvm.get_global_func("runtime.config_threadpool")(share_all_cores, 1, [str(min(cores))])
    _mine.set = 1


class Calls:
    """The calls that threads are in, but for the main one's, which ends the process."""

    def __init__(self) -> None:
        self._lock, self._count, self._ended = threading.Lock(), 0, False

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Within it a call counts.  Where the process ends, its thread stays here for ever."""
        if get_ident() == _main or _mine.is_inside:
            yield
            return
        with self._lock:
            self._count += not self._ended
            begins = not self._ended
        while not begins:
            time.sleep(1)
        _mine.is_inside = True
        try:
            yield
        finally:
            _mine.is_inside = False
            with self._lock:
                self._count -= 1

    def end(self) -> None:
        """No call begins any more; waits for those that have, but not for ever."""
        with self._lock:
            self._ended = True
        until = time.monotonic() + _LAST
        while self._count and time.monotonic() < until:
            time.sleep(0.001)


calls = Calls()
atexit.register(lambda: calls.end())


class _Job:
    __slots__ = ("args", "done", "error", "function", "is_over", "result", "threads")

    def __init__(self, function: Callable[..., Any], args: Any, threads: int | None) -> None:
        self.function, self.args, self.threads = function, args, threads
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = False
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            if self.threads != _mine.set:
                _share(self.threads)
            self.result = self.function(*self.args)
        except BaseException as error:
            self.error = error


class Runners:
    """The threads that calls are handed to.  They end with the process."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._free = 0  # runners that wait, less jobs that do

    def run(self, function: Callable[..., Any], args: Any, threads: int | None) -> Any:
        job = _Job(function, args, threads)
        with self._lock:
            if self._free <= 0 and self._count < RUNNERS:
                self._start()
            self._free -= 1
        if not self._count:  # the system, or a process that ends, allows no more threads
            return function(*args)
        self._jobs.put(job)
        try:
            job.done.acquire()
        except BaseException:  # an interrupt; the kernel writes until it is done
            while not job.is_over:
                job.done.acquire(timeout=1)
            raise
        if job.error is not None:
            try:
                raise job.error
            finally:
                del job  # has the error, whose traceback has this frame
        return job.result

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="relay_wgrad.threads", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return
        self._count += 1
        self._free += 1

    def _work(self) -> None:
        _mine.is_runner = True
        while True:
            job = self._jobs.get()
            job.run()
            with self._lock:
                self._free += 1
            job.is_over = True
            job.done.release()
            del job  # its tensors are the caller's alone


runners = Runners()


def _after_fork() -> None:
    global _main, runners, calls
    _main, runners, calls = None, Runners(), Calls()
    _mine.set, _mine.has_lost_workers = 0, True
    _mine.is_runner = _mine.is_inside = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
