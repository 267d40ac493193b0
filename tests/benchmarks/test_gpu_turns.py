"""Processes that take turns at a GPU, with a file in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_turns import ENDED, Turns, Turnstile, converse
from tests.support.children import finding

_START = """
import argparse, os, sys, time
from benchmarks.gpu_turns import Turns
parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("gpu")
parser.add_argument("--line")
args = parser.parse_args()
turns = Turns(args.line)

def use(seconds=0.05):
    # One at a time: the file is nobody else's.
    file = os.open(args.gpu, os.O_CREAT | os.O_EXCL)
    time.sleep(seconds)
    os.close(file)
    os.unlink(args.gpu)
    turns.say({"used": args.name, "at": time.monotonic()})
"""


def talk(
    turnstile: Turnstile, tmp_path: Path, code: str, number: int = 0, **limits: Any
) -> tuple[str | None, list[dict[str, Any]]]:
    heard: list[dict[str, Any]] = []
    command = [sys.executable, "-c", _START + code, str(number), str(tmp_path / "gpu")]
    root = Path(__file__).parents[2]
    environment = {**os.environ, **finding(root)}
    error = converse(
        command, number, turnstile, heard.append, environment=environment, **limits
    )  # fmt: skip
    return error, heard


def test_one_at_a_time_and_the_first_row_first(tmp_path: Path) -> None:
    code = """
with turns.short():
    use()
time.sleep(0.1)
turns.keep()
use()
with turns.quiet():
    use(0.1)
os._exit(0)
"""
    turnstile = Turnstile()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: talk(turnstile, tmp_path, code, i), range(4)))
    assert [error for error, _ in found] == [None] * 4
    assert all(len(heard) == 3 for _, heard in found)


def test_while_one_measures_the_others_stand_still(tmp_path: Path) -> None:
    busy = """
turns.say({"up": 1})
while True:
    turns.say({"tick": time.monotonic()})
    time.sleep(0.01)
"""
    quiet = """
turns.keep()
time.sleep(0.1)
with turns.quiet():
    time.sleep(0.1)
    begin = time.monotonic()
    time.sleep(0.4)
    turns.say({"from": begin, "to": time.monotonic()})
time.sleep(0.3)
"""
    turnstile = Turnstile()
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(talk, turnstile, tmp_path, busy, until=time.monotonic() + 1.9)
        time.sleep(0.3)
        error, heard = talk(turnstile, tmp_path, quiet, 1)
        stopped, ticks = other.result()
    assert error is None
    assert stopped == ENDED
    (span,) = [said for said in heard if "from" in said]
    at = [said["tick"] for said in ticks if "tick" in said]
    assert not [t for t in at if span["from"] < t < span["to"]]
    assert min(at) < span["from"]
    assert max(at) > span["to"]


def test_several_gpus_have_a_turn_each(tmp_path: Path) -> None:
    """Those with a turn go on while one measures, the others stand still."""
    code = """
open(f"{args.gpu}.{args.name}", "w")
while not all(os.path.exists(f"{args.gpu}.{i}") for i in range(4)):
    time.sleep(0.01)
turns.keep()
time.sleep(0.3 + 0.2 * (int(args.name) % 2))  # all have asked before one measures
with turns.quiet():
    begin = time.monotonic()
    time.sleep(0.5)
turns.say({"gpu": int(args.name) % 2, "from": begin, "to": time.monotonic()})
"""
    turnstile = Turnstile(2)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: talk(turnstile, tmp_path, code, i), range(4)))
    assert [error for error, _ in found] == [None] * 4
    spans = sorted((said["from"], said["to"], said["gpu"]) for _, (said,) in found)
    for gpu in range(2):
        first, second = [span for span in spans if span[2] == gpu]
        assert first[1] <= second[0]
    beside = [a for a in spans for b in spans if a[2] < b[2] and a[0] < b[1] and b[0] < a[1]]
    assert beside, spans


def test_a_process_that_fails_or_stays_gives_its_turn_to_the_next(tmp_path: Path) -> None:
    turnstile = Turnstile()
    error, _ = talk(turnstile, tmp_path, "turns.keep()\nraise ValueError('no such kernel')\n")
    assert error == "ValueError: no such kernel"
    error, _ = talk(turnstile, tmp_path, "turns.keep()\ntime.sleep(60)\n", longest=0.5)
    assert error == "its turn took over 0.5 s"
    code = "turns.keep()\nwith turns.quiet():\n    os._exit(3)\n"
    error, _ = talk(turnstile, tmp_path, code)
    assert error == "ended with 3: no message"
    error, heard = talk(turnstile, tmp_path, "turns.keep()\nuse()\n")
    assert error is None
    assert heard[0]["used"] == "0"


def test_who_waits_for_a_turn_waits_no_longer_than_there_is_time(tmp_path: Path) -> None:
    turnstile = Turnstile()
    assert turnstile.take((True, 0))
    error, _ = talk(turnstile, tmp_path, "turns.keep()\n", until=time.monotonic() + 0.6)
    assert error == ENDED
    assert not turnstile.take((False, 0), 0.0)
    turnstile.give()
    assert talk(turnstile, tmp_path, "turns.keep()\n")[0] is None


def test_a_process_alone_has_the_machine() -> None:
    turns = Turns()
    assert turns.held
    with turns.short(), turns.quiet():
        turns.keep()
    assert turns.held
    assert turns.waited == 0.0


@pytest.mark.parametrize("waiting", [[(True, 0), (False, 5)], [(True, 3), (True, 1)]])
def test_short_turns_and_earlier_rows_are_first(waiting: list[tuple[bool, int]]) -> None:
    turnstile, order = Turnstile(), list[tuple[bool, int]]()
    assert turnstile.take((True, 9))

    def one(rank: tuple[bool, int]) -> None:
        turnstile.take(rank)
        order.append(rank)
        turnstile.give()

    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(one, rank) for rank in waiting]
        while len(turnstile._waiting) < 2:
            time.sleep(0.01)
        turnstile.give()
        for task in tasks:
            task.result()
    assert order == sorted(waiting)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_run(tmp_path: Path, number: signal.Signals) -> None:
    child = (
        _START
        + f"""
open({str(tmp_path / "made")!r}, "w").write(str(os.getpid()))
os.rename({str(tmp_path / "made")!r}, args.gpu)
time.sleep(100)
"""
    )
    run = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from benchmarks.gpu_turns import Turnstile, converse, interruptible
command = [sys.executable, "-c", {child!r}, "name", {str(tmp_path / "pid")!r}]
with interruptible(), ThreadPoolExecutor(1) as pool:
    pool.submit(converse, command, 0, Turnstile(), print).result()
"""
    environment = {**os.environ, **finding(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", run], env=environment)
    while not (tmp_path / "pid").exists():
        assert parent.poll() is None
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)  # as while another one measures
    parent.send_signal(number)
    assert parent.wait(10) == -number
    end = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
