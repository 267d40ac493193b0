"""Compilers that begin when JAX traces a convolution."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import wait
from typing import Any

import pytest

pytest.importorskip("jax")

from relay_wgrad.jax import ahead, foreign, targets
from relay_wgrad.jax.records import Options
from relay_wgrad.problem import ConvProblem

PROBLEM = ConvProblem.parse("fprop n=8 c=64 h=14 w=14 k=64 r=3 s=3 groups=64")


def test_a_job_of_a_key_runs_once() -> None:
    builds, found = ahead.Builds(), list[int]()
    gate = threading.Event()

    def job() -> int:
        gate.wait(10)
        found.append(1)
        return 7

    made = [builds.begin("one", job) for _ in range(5)]
    assert not made[0].done()
    gate.set()
    assert [each.result(10) for each in made] == [7] * 5
    assert builds.begin("one", job).result() == 7
    assert found == [1]


def test_many_jobs_and_one_that_fails() -> None:
    builds = ahead.Builds()

    def fails() -> None:
        raise RuntimeError("no compiler")

    bad = builds.begin("bad", fails)
    good = [builds.begin(i, lambda i=i: i * i) for i in range(50)]
    wait([bad, *good], 30)
    assert [each.result() for each in good] == [i * i for i in range(50)]
    assert "no compiler" in str(bad.exception())
    assert not [t for t in threading.enumerate() if t.name == "relay_wgrad builds" and _stays(t)]


def _stays(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


def test_what_problems_have_in_common_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[str]()
    monkeypatch.setattr(ahead, "builds", ahead.Builds())
    monkeypatch.setattr(targets, "lacking", lambda problem, platform: "")

    def builds(problem: ConvProblem, options: Options) -> list[tuple[str, Any]]:
        names = ["library", f"kernel of {problem.s}"]
        return [(name, lambda name=name: built.append(name)) for name in names]

    monkeypatch.setattr(targets, "builds", builds)
    lines = [PROBLEM.repro().replace("s=3 ", f"s={s} ") for s in (3, 3, 5)]
    ahead.finish([ConvProblem.parse(line) for line in lines], Options())
    assert sorted(built) == ["kernel of 3", "kernel of 5", "library"]


def test_nothing_begins_where_cuda_is_not_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "begin", lambda *_: pytest.fail("it begins"))
    foreign.traced(PROBLEM, Options())


def test_a_process_that_ends_begins_no_more() -> None:
    text = """
import time
from relay_wgrad.jax import ahead
builds = ahead.Builds()
def job():
    print("one", flush=True)
    time.sleep(0.5)
for i in range(200):
    builds.begin(i, job)
time.sleep(0.2)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert 0 < done.stdout.count("one") < 200
