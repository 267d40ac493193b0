"""A benchmark's processes: they end with the run that started them, and it says why one ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.child import reason

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


WARNING = "Warning:SystemLib symbol get overriden\n"
FRAMES = """Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  File "a.py", line 3 in compile
  File "b.py", line 9 in main
"""


@pytest.mark.parametrize(
    ("status", "stderr", "said"),
    [
        (1, "RuntimeError: no\nValueError: a\n" + WARNING, "ValueError: a"),
        (1, WARNING + "torch.cuda.OutOfMemoryError: 3 GiB\n[W of NCCL]\n",
         "torch.cuda.OutOfMemoryError: 3 GiB"),
        (1, "InternalError: not launched\n grid=(224,1,1)\n// func_name=sum\n#if 0\n",
         "InternalError: not launched grid=(224,1,1) // func_name=sum"),
        (-6, WARNING + FRAMES,
         'ended by SIGABRT: "a.py", line 3 in compile < "b.py", line 9 in main'),
        (-9, WARNING, f"ended by SIGKILL: {WARNING.strip()}"),
        (3, "", "ended with 3: no message"),
    ],
)  # fmt: skip
def test_why_a_process_ended(status: int, stderr: str, said: str) -> None:
    assert reason(status, stderr) == said
