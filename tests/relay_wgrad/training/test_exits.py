"""A process that trains on a GPU ends as others do, whatever it holds and wherever its threads are.

Without a GPU: TVM's runtime finds CUDA's in `tests.support.cuda_fake`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relay_wgrad.threads import Calls
from tests.support.children import finding
from tests.support.cuda_fake import environment
from tests.support.exits import CODES

ROOT = Path(__file__).parents[3]


@pytest.mark.longer("starts processes of TVM")
@pytest.mark.parametrize("how", ["interrupt", "thread"])
def test_a_process_ends(how: str, tmp_path: Path) -> None:
    """A daemon thread that was in a step aborted it: `terminate called …`, exit status 134."""
    env = {**os.environ, **environment(tmp_path), **finding(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.exits", how, "fake"],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (CODES[how], "")


def test_the_end_waits_for_calls_and_lets_none_begin() -> None:
    calls = Calls()
    inside, leave, after = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with calls.one():
            with calls.one():  # calls nest
                inside.set()
                leave.wait()
            order.append("call")
        with calls.one():
            after.set()

    order: list[str] = []
    threading.Thread(target=work, daemon=True).start()
    inside.wait()
    ending = threading.Thread(target=lambda: (calls.end(), order.append("end")))
    ending.start()
    leave.set()
    ending.join()
    assert order == ["call", "end"]
    assert not after.wait(0.05)
