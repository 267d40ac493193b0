"""A generator's cases run in child processes: a case may crash, hang or eat all memory.

    python child.py MODULE MEMORY [TREE]

reads one case a line from standard input, and answers each with one line of JSON.  It may write
MEMORY bytes.  With TREE, the packages under test are those of another checkout, so that a generator
can be pointed at old code.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parents[2]
PACKAGES = ("relay_wgrad", "legalize", "byoc_cudnn")
TAIL = 1500  # characters of a dead child's standard error
START = 300.0  # seconds for a child's imports, on a busy machine


class Child:
    """One process that runs cases, and another after it died, hung or ran its share."""

    def __init__(
        self, module: str, *, tree: str | None, timeout: float, recycle: int, memory: int
    ) -> None:
        self.command = [sys.executable, __file__, module, str(memory), *([tree] if tree else [])]
        self.timeout, self.recycle = timeout, recycle
        self.process: Any = None  # subprocess.Popen
        self.errors: Any = None
        self.done = 0  # cases of this process

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def run(self, line: str) -> dict[str, Any]:
        """A case's answer.  One that kills its process runs once more, alone."""
        fresh = self.done == 0
        answer = self._ask(line)
        if answer["status"] == "died" and not fresh:
            alone = self._ask(line)
            if alone["status"] == "died":
                return alone
            self.stop()
            answer["message"] = f"{answer['message']} (but not alone, in a new process)"
        return answer

    def _ask(self, line: str) -> dict[str, Any]:
        if self.process is None:
            self._start()
            if not self._answer(START):  # it says that it is ready
                return {"status": "died", "message": self._obituary()}
        assert self.process is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
            found = self._answer(self.timeout)
        except BrokenPipeError:
            found = b""
        if found is None:
            self.stop()
            return {"status": "died", "message": f"no answer within {self.timeout:g} s"}
        if not found.endswith(b"\n"):
            return {"status": "died", "message": self._obituary()}
        self.done += 1
        if self.done >= self.recycle:
            self.stop()
        return dict(json.loads(found))

    def _answer(self, seconds: float) -> bytes | None:
        """A line; None where none came in time, what there was where the process is gone."""
        assert self.process is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            return self.process.stdout.readline() if waiting.select(seconds) else None

    def _start(self) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            cwd=HERE,
        )  # fmt: skip
        self.done = 0

    def _obituary(self) -> str:
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs before it is ready
            self.process.wait(10)
        self.process.kill()  # nothing where it is dead
        code = self.process.wait()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace")[-TAIL:].strip()
        self.stop()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"the process died: {how}" + (f"\n{said}" if said else "")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout, self.errors):
                with contextlib.suppress(BrokenPipeError):  # what a dead child did not read
                    pipe.close()
        self.process, self.done = None, 0


def main(module: str, memory: str, tree: str | None = None) -> None:
    # Here and not between fork and exec, where a parent with threads may stand still for ever.
    # What is written, not what is mapped: PyTorch's CUDA libraries map more than 16 GiB.
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no answer
    faulthandler.enable()
    if tree:
        sys.path.insert(0, tree)
        for name in PACKAGES:
            __import__(name)
        sys.path.pop(0)
    sys.path.insert(0, str(HERE))
    from tests.fuzz.harness import load

    generator = load(module)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        answers.write(json.dumps(generator.answer(line.rstrip("\n"))) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are the package's, not the top level's
    main(*sys.argv[1:])
