"""A benchmark's processes end with the run that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import time
from benchmarks.child import end_with_parent
end_with_parent(0.05)
print(1, flush=True)
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_of_a_killed_run_ends(number: int) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        os.kill(run.pid, number)
        run.wait()
    until = time.monotonic() + 10
    while _is(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _is(child)


def _is(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # nobody may wait for it here
