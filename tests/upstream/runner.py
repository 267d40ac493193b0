"""Runs upstream's files in child processes, and gathers what became of each test."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .child import tests_of
from .scope import FOLDER

_REPOSITORY = Path(__file__).parents[2]
_IMPORT_SECONDS = 120.0
_TAIL, _MOST = 4096, 300  # bytes of what a child printed, and characters of a line


@dataclass
class Result:
    """What became of a test: "passed", "failed" or "skipped"; the error's first line and place."""

    outcome: str
    error: str = ""
    where: str = ""


def _lines(descriptor: int, seconds: Callable[[], float]) -> Iterator[dict[str, Any] | None]:
    """The child's lines; None when it says nothing for that long."""
    rest = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], seconds())
        if not ready:
            yield None
            return
        part = os.read(descriptor, 1 << 16)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield json.loads(line)


class _Child:
    """One process that runs what is left of a file."""

    def __init__(self, checkout: Path, name: str, done: list[str], output: IO[bytes]) -> None:
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "tests.upstream.child", str(checkout), name, str(writer)]
        paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            command,
            cwd=_REPOSITORY,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[writer],
            start_new_session=True,
        )
        os.close(writer)
        self.reader = reader
        assert self.process.stdin
        self.process.stdin.write(json.dumps(done).encode())
        self.process.stdin.close()

    def end(self) -> str:
        """Ends it, if it runs; how it ended, or "" where all was well."""
        try:
            code: int | None = self.process.wait(1)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.reader)
        if code is None:
            return "it did not end"
        return f"crash: {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def said(output: IO[bytes]) -> str:
    """Of what a child printed the last line that is an error's, such as why pytest stopped."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL))
    lines = [
        line.removeprefix("E ").strip()
        for line in output.read().decode(errors="replace").splitlines()
    ]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or list(filter(None, lines)) or [""])[-1][:_MOST]


def run_file(checkout: Path, name: str, timeout: float) -> dict[str, Result]:
    """Each test of a file and what became of it."""
    results: dict[str, Result] = {}
    collected: list[str] = []
    while True:
        running, broken = "", ""
        silent = False
        with tempfile.TemporaryFile() as output:
            child = _Child(checkout, name, list(results), output)
            for event in _lines(child.reader, lambda: timeout if running else _IMPORT_SECONDS):  # noqa: B023
                if event is None:
                    silent = True
                elif "collected" in event:
                    collected = event["collected"]
                elif "start" in event:
                    running = event["start"]
                elif "end" in event:
                    results[running] = Result(event["outcome"], event["error"], event["where"])
                    running = ""
                else:
                    broken = event["broken"]
            how, words = child.end(), said(output)
        if running:
            why = f"no end in {timeout:g} s" if silent else how
            results[running] = Result("failed", why)
        elif broken or not collected:
            path = checkout / FOLDER / name
            why = broken or (f"{how}: {words}" if words else how)
            return {f"{name}::{test}": Result("failed", why) for test in tests_of(path)}
        else:
            for test in collected:
                results.setdefault(test, Result("failed", f"did not run: {how}"))
            return {test: results[test] for test in collected}


def run_files(
    checkout: Path,
    names: list[str],
    jobs: int,
    timeout: float,
    told: Callable[[str, dict[str, Result]], None] = lambda name, results: None,
) -> dict[str, dict[str, Result]]:
    """All files' results by name; `told` hears of each file as it ends."""

    def one(name: str) -> tuple[str, dict[str, Result]]:
        results = run_file(checkout, name, timeout)
        told(name, results)
        return name, results

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(one, names))
