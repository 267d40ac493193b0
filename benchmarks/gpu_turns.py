"""Many processes that build at the same time, of which one at a time uses a GPU.

The run starts processes of sides (`converse`) and speaks with each by a pair of pipes, a line of
JSON each way.  A process asks for a turn before it touches the device and has it until it says that
it is done, or has ended: a process that is waited for has given its memory back, so what a process
reads of the device's memory within its turn changes by its own doing alone.  While one whose turn
it is measures (`quiet`), those that have no turn are stopped: they take no core, and load no code.

With several GPUs as many have a turn: a row's processes have one GPU, by the row's number, which
they are to see alone (`environment`).

A process ends with the run, however that ends: it may be stopped, or keep the GPU, for good else.

Short turns (a context, weights) go before long ones, so that no process waits with its compiling
for another's measuring; else the row that was asked for first goes first.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.child import reason

Heard = Callable[[dict[str, Any]], None]
ENDED = "the time budget ended it"
_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


class Turnstile:
    """Whose turn it is, of each GPU; the processes, to be stopped while one measures."""

    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus
        self._condition = threading.Condition()
        self._waiting: list[tuple[bool, int]] = []
        self._taken: dict[int, int | None] = {}  # GPU -> the process that has it
        self._groups: set[int] = set()
        self._measuring: set[int] = set()

    def gpu_of(self, number: int) -> int:
        return number % self.gpus

    def take(
        self, rank: tuple[bool, int], seconds: float = math.inf, group: int | None = None
    ) -> bool:
        """Waits for a turn so long; rank: (whether it is long, the row's number)."""
        gpu = self.gpu_of(rank[1])
        timeout = None if math.isinf(seconds) else max(seconds, 0.0)

        def is_next() -> bool:
            first = min(r for r in self._waiting if self.gpu_of(r[1]) == gpu)
            return gpu not in self._taken and first == rank

        with self._condition:
            self._waiting.append(rank)
            has = self._condition.wait_for(is_next, timeout)
            self._waiting.remove(rank)
            if has:
                self._taken[gpu] = group
                if group in self._groups:
                    _signal(group, signal.SIGCONT)  # another GPU's may be measuring
            self._condition.notify_all()  # of those that wait another may be the first now
            return has

    def give(self, number: int = 0) -> None:
        with self._condition:
            group = self._taken.pop(self.gpu_of(number), None)
            if self._measuring and group in self._groups:
                _signal(group, signal.SIGSTOP)
            self._condition.notify_all()

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """A process that leads a group of its own, once nobody measures."""
        with self._condition:
            self._condition.wait_for(lambda: not self._measuring)
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._groups.add(process.pid)
            return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Ends a process and all that it started, and waits for it."""
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        with self._condition:
            self._groups.discard(process.pid)
        self.loud(process.pid)

    def quiet(self, group: int) -> None:
        with self._condition:
            self._measuring.add(group)
            for other in self._groups - {group, *self._taken.values()}:
                _signal(other, signal.SIGSTOP)

    def loud(self, group: int) -> None:
        with self._condition:
            self._measuring.discard(group)
            if not self._measuring:
                for other in self._groups:
                    _signal(other, signal.SIGCONT)
                self._condition.notify_all()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it Ctrl-C ends the run at once, though threads of it wait for processes."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def converse(
    command: Sequence[str],
    number: int,
    turnstile: Turnstile,
    heard: Heard,
    until: float = math.inf,
    longest: float = math.inf,
    environment: dict[str, str] | None = None,
) -> str | None:
    """Runs a process with `--line R,W`, gives it its turns, and hears what else it says.

    until : by `time.monotonic`; longest : seconds of a turn.  A process over either is ended.

    Returns its error, or None.
    """
    to_read, to_write = os.pipe(), os.pipe()
    line = f"{to_write[0]},{to_read[1]}"
    held, ended = False, None
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as ends:
        process = turnstile.start(
            [*command, "--line", line], pass_fds=(to_write[0], to_read[1]),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
        )  # fmt: skip
        os.close(to_write[0])
        os.close(to_read[1])
        ends.callback(os.close, to_read[0])
        ends.callback(os.close, to_write[1])
        limit, rest = math.inf, b""
        try:
            while ended is None:
                left = min(until, limit) - time.monotonic()
                ready = _readable(to_read[0], left)
                if not ready:
                    ended = ENDED if until <= limit else f"its turn took over {longest:g} s"
                    break
                more = os.read(to_read[0], 1 << 16)
                if not more:
                    break
                *lines, rest = (rest + more).split(b"\n")
                for said in map(json.loads, lines):
                    asked = said.get("ask")
                    if asked == "turn":
                        rank = bool(said["long"]), number
                        held = turnstile.take(rank, until - time.monotonic(), process.pid)
                        if not held:
                            ended = ENDED
                            break
                        limit = time.monotonic() + longest
                        os.write(to_write[1], b"go\n")
                    elif asked == "done":
                        held, limit = False, math.inf
                        turnstile.give(number)
                    elif asked == "quiet":
                        turnstile.quiet(process.pid)
                        os.write(to_write[1], b"go\n")
                    elif asked == "loud":
                        turnstile.loud(process.pid)
                    else:
                        heard(said)
            if ended is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)  # it has closed its end
        except BrokenPipeError:
            pass  # it has ended: its status says how
        finally:
            status = process.poll()
            turnstile.end(process)
            if held:
                turnstile.give(number)
        if ended is None and status:
            log.seek(0)
            ended = reason(status, log.read().decode(errors="replace"))
    return ended


def _readable(descriptor: int, seconds: float) -> bool:
    if seconds <= 0:
        return False
    return bool(select.select([descriptor], [], [], None if math.isinf(seconds) else seconds)[0])


class Turns:
    """A process's own end of the line; without one it has the machine for itself.

    held : whether it is its turn.  waited : seconds that it waited for turns.
    """

    def __init__(self, line: str | None = None) -> None:
        self.held = line is None
        self.waited = 0.0
        self._line = None if line is None else tuple(map(int, line.split(",")))
        for descriptor in self._line or ():
            os.set_inheritable(descriptor, False)
        if self._line is not None:
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)

    def say(self, what: dict[str, Any]) -> None:
        if self._line is not None:
            os.write(self._line[1], json.dumps(what).encode() + b"\n")

    @contextlib.contextmanager
    def short(self) -> Iterator[None]:
        """A turn for the block, that others will have after it."""
        if self.held:
            yield
            return
        self._ask({"ask": "turn", "long": False})
        self.held = True
        try:
            yield
        finally:
            self.held = False
            self.say({"ask": "done"})

    def keep(self) -> None:
        """A turn until the process ends."""
        if not self.held:
            self._ask({"ask": "turn", "long": True})
            self.held = True

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Within it no process of the run that has no turn does anything."""
        self._ask({"ask": "quiet"})
        try:
            yield
        finally:
            self.say({"ask": "loud"})

    def _ask(self, what: dict[str, Any]) -> None:
        if self._line is None:
            return
        began = time.perf_counter()
        self.say(what)
        if os.read(self._line[0], 3) != b"go\n":
            raise RuntimeError("the run that started this process has ended")
        self.waited += time.perf_counter() - began
