"""A row in a process of its own: one that dies, or takes too much time or memory, is a row too.

    python -m benchmarks.child MODULE FUNCTION ARGUMENTS GIB
    python -m benchmarks.child

Prints what the function returns as the last line, in JSON; without arguments it answers lines of
[MODULE, FUNCTION, ARGUMENTS], a line each.  Processes end when the run that started them is killed:
those that go on to compile would take the cores from whatever is measured next.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GIB = 1 << 30
ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt)\b(:|$)")


def row(
    function: Callable[..., dict[str, Any]], *arguments: Any, seconds: float | None = None,
    gib: float = 0.0, environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What a function of a module returns there, or the reason why it returns nothing.

    arguments : in JSON.  seconds, gib : at most; no limit if None or 0.  environment : added to
    this process's.
    """
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.child", function.__module__,
               function.__name__, json.dumps(arguments), str(gib)]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"reason": f"took more than {seconds:g} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    return {"reason": reason(done.returncode, done.stderr)}


def reason(status: int, stderr: str) -> str:
    """Why a process ended: its last error with the lines that go on with it, or the signal and
    where it was by then; libraries warn before and after."""
    lines = stderr.splitlines()
    errors = [number for number, line in enumerate(lines) if ERROR.match(line)]
    if status > 0 and errors:
        first, *rest = lines[errors[-1] :]
        # TVM names a kernel that cannot be launched below the error, and then prints its source.
        more = itertools.takewhile(lambda line: line.startswith((" ", "//")), rest)
        return " ".join(line.strip() for line in (first, *more))[:400]
    # Python's faulthandler writes frames, the newest first.
    lines = [line.strip() for line in lines]
    frames = list(itertools.dropwhile(lambda line: not line.startswith("Current thread"), lines))
    where = " < ".join(line.removeprefix("File ") for line in frames[1:5])
    said = where or next(filter(None, reversed(lines)), "no message")
    ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
    return f"{ended}: {said}"[:400]


class Worker:
    """A process that answers calls, and stands still while it has none: a pool of threads that
    waits for work by asking again and again takes the cores from others for a tenth of a second."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.child"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def __call__(
        self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None
    ) -> Any:
        """What a function of a module returns there, of arguments in JSON.

        seconds : at most; the process ends with one that takes more.

        Raises RuntimeError with what it raises, or with the process's end.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        line = json.dumps([function.__module__, function.__name__, arguments])
        try:
            process.send_signal(signal.SIGCONT)
            process.stdin.write(line + "\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], seconds)[0]:
                self.end()
                raise RuntimeError(f"took more than {seconds:.0f} s")
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the process died (exit status {process.wait()})")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED)
        found, error = json.loads(answer)
        if error is not None:
            raise RuntimeError(error)
        return found

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()  # closes the pipes


def end_with_parent(seconds: float = 1.0) -> None:
    """From here on this process ends within `seconds` of its parent, whatever it is at."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main(module: str, function: str, arguments: str, gib: str) -> None:
    end_with_parent()
    if float(gib):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (int(float(gib) * GIB), hard))
    found = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    print(json.dumps(found), flush=True)


def serve() -> None:
    """Answers a `Worker`'s calls; what else is printed goes to the standard error."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)  # one that is stopped watches nothing
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        module, function, arguments = json.loads(line)
        try:
            found: Any = getattr(importlib.import_module(module), function)(*arguments), None
        except Exception as error:  # of any kind: it is a row's reason
            found = None, f"{type(error).__name__}: {str(error).strip()[:400]}"
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else serve()
