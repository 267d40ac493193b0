"""What problems need of compilers on CUDA, begun in the background when JAX traces them.

JAX traces a network for seconds before it lowers the first convolution, and compilers of the host
and of kernels are processes of their own.  Threads end when nothing waits; a process that ends
begins no more.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, wait
from typing import Any

from ..problem import ConvProblem
from . import targets
from .records import Options


class Builds:
    """Jobs that run once each, as many at a time as there are cores.

    is_daemon : whether a process that ends does not wait for those that run.
    """

    def __init__(self, *, is_daemon: bool = False) -> None:
        self._is_daemon = is_daemon
        self._lock = threading.Lock()
        self._begun: dict[Hashable, Future[Any]] = {}
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0

    def begin(self, key: Hashable, job: Callable[[], Any]) -> Future[Any]:
        """Of the first job of a key."""
        with self._lock:
            if key in self._begun:
                return self._begun[key]
            made = self._begun[key] = Future()
            self._waiting.append((made, job))
            is_new = self._running < len(os.sched_getaffinity(0))
            self._running += is_new
        if is_new:
            threading.Thread(
                target=self._work, name="relay_wgrad builds", daemon=self._is_daemon
            ).start()
        return made

    def _work(self) -> None:
        while True:
            with self._lock:
                is_last = not self._waiting or not threading.main_thread().is_alive()
                if is_last:
                    self._running -= 1
                    for each, _ in self._waiting:
                        each.cancel()
                    self._waiting.clear()
                    return
                made, job = self._waiting.popleft()
            try:
                made.set_result(job())
            except Exception as error:  # whoever needs it says what is wrong
                made.set_exception(error)


builds = Builds()  # of this process


def begin(problem: ConvProblem, options: Options) -> Future[list[Future[Any]]]:
    """Begins what `targets.named` would build of a problem as libraries take it; its parts."""
    return builds.begin((problem, options.allow_tf32), lambda: _parts(problem, options))


def finish(problems: Iterable[ConvProblem], options: Options) -> None:
    """Waits for all of it; what cannot be built is left to `targets.named` to say."""
    begun = [begin(problem, options) for problem in problems]
    wait(begun)
    wait({part for each in begun if each.exception() is None for part in each.result()})


def _parts(problem: ConvProblem, options: Options) -> list[Future[Any]]:
    if targets.lacking(problem, "cuda"):
        return []
    return [builds.begin(name, job) for name, job in targets.builds(problem, options)]
