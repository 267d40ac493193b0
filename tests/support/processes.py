"""A program in several processes that find each other, as a launcher starts them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tests.support.children import ROOT, finding, run_script

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "TVM_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip
KEPT = {"RELAY_WGRAD_PROGRAMS": "1"}  # whole programs too
GRACE = 15.0  # seconds that the others have when one has failed: NCCL does not tell them


def run_ranks(
    script: Path, world: int, *args: str, env: Mapping[str, str] | None = None,
    timeout: float = 240, forked: bool = True, warnings: str = "error",
) -> Sequence[subprocess.CompletedProcess[str]]:  # fmt: skip
    """A script in `world` processes with a launcher's environment: how each of them ended.

    They share what they compile, and keep it for one another: nothing of the package is replaced in
    them.

    forked : as of `children`.  Else all are ended after `timeout` seconds, or `GRACE` after one has
        failed, with where their threads were at the end of their `stderr`, and what becomes of
        warnings is a choice.
    """
    environments = [{**each, **KEPT, **(env or {})} for each in _environments(world)]
    if not forked:
        command = [sys.executable, "-W", warnings, str(script), *args]
        return _together(command, environments, timeout)

    def run(given: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return run_script(script, *args, env=given, timeout=timeout)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, environments))


def _environments(world: int) -> Iterator[dict[str, str]]:
    """Each process's."""
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    for rank in range(world):
        yield {
            **ENVIRONMENT, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world), "MASTER_PORT": str(port),
        }  # fmt: skip


def _together(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], timeout: float
) -> Sequence[subprocess.CompletedProcess[str]]:
    with ExitStack() as ends:
        started: list[tuple[subprocess.Popen[str], Any, Any]] = []
        for given in environments:
            out, err = (ends.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            known = {**finding(ROOT), "PYTHONFAULTHANDLER": "1"}
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **known, **given}, text=True, stdout=out,
                stderr=err, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            ends.callback(process.kill)
            started.append((process, out, err))
        until = time.monotonic() + timeout
        while any(process.poll() is None for process, *_ in started):
            if any(process.poll() for process, *_ in started):
                until = min(until, time.monotonic() + GRACE)
            if time.monotonic() > until:
                for process, *_ in started:
                    process.send_signal(signal.SIGABRT)  # at which faulthandler says where it is
            time.sleep(0.1)
        for _, *files in started:
            for file in files:
                file.seek(0)
        return [
            subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())
            for process, out, err in started
        ]
