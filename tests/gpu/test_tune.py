"""Tuning on a device: a record, what `partition` makes of it, and the command."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import byoc_cudnn
from byoc_cudnn.tuning.record import STOCK, Record
from byoc_cudnn.tuning.tune import tune
from relay_wgrad.cli.tune import _stock
from relay_wgrad.problem import ConvProblem
from tests.gpu.cudnn_runner import library_tolerance
from tests.gpu.runner import choose_compiler
from tests.ir.partition_cases import merged, problem_module
from tests.problems import random_operands, relative_error, torch_reference

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

F16 = "layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
LINES = (
    f"wgrad n=32 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {F16}",
    f"fprop n=32 c=3 h=64 w=64 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 {F16}",
)


def test_a_record_and_what_comes_of_it(tmp_path: Path) -> None:
    choose_compiler()
    problems = [ConvProblem.parse(line) for line in LINES]
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a kernel that fails or disagrees warns
        record = tune(problems, stock=_stock, candidates=4, progress=lambda w, *_: said.append(w))
    assert {(m.problem, m.backend) for m in record} == {
        (p.repro(), b) for p in problems for b in ("cutlass", "cudnn", STOCK)
    }
    assert any("building" in w for w in said)
    assert any("timing" in w for w in said)
    for one in record:
        print(one.backend, one.problem, f"{one.ms * 1e3:.1f} us", dict(one.pins))
        assert one.ms < 50
    again: list[str] = []
    tune(problems, stock=_stock, record=record, progress=lambda w, *_: again.append(w))
    assert again == ["timed"]  # nothing is left to do

    record.save(tmp_path / "record.json")
    parts = {f"f{i}": problem_module(p) for i, p in enumerate(problems)}
    out, report = byoc_cudnn.partition(
        merged(parts), ("cudnn", "cutlass"), select="measured", record=tmp_path / "record.json"
    )
    assert report.offloaded == 2
    assert all(len(e.times) == 3 and e.times[0][0] == e.backend for e in report.entries)
    device = tvm.cuda(0)
    vm = byoc_cudnn.build(out).virtual_machine(device)
    rng = np.random.default_rng(0)
    for name, problem in zip(parts, problems, strict=True):
        values = random_operands(problem, rng)
        args: list[Any] = [tvm.runtime.tensor(v, device) for v in values]
        error = relative_error(vm[name](*args).numpy(), torch_reference(problem, *values))
        assert error <= library_tolerance(problem, tf32=True)


def test_the_command(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [
        sys.executable, "-m", "relay_wgrad", "tune", "--problem", LINES[0], "--candidates", "2",
        "--backends", "cutlass,cudnn", "--record", str(record),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "fastest" in done.stdout
    assert "2 new measurements" in done.stderr
    assert len(Record.load(record)) == 2
