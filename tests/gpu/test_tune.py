"""Tuning on a device: a record, what `partition` makes of it, and the command."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import byoc_cudnn
from byoc_cudnn import BACKENDS
from byoc_cudnn.backends import cudnn
from byoc_cudnn.table import CODEGENS
from byoc_cudnn.tuning.record import Record
from byoc_cudnn.tuning.tune import tune
from relay_wgrad.backend_names import STOCK
from relay_wgrad.cli.tune import _stock
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu.cudnn_runner import library_tolerance
from tests.support.gpu.runner import choose_compiler
from tests.support.partition_cases import merged, problem_module
from tests.support.problems import random_operands, relative_error, torch_reference

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


@pytest.fixture
def mine() -> Iterator[str]:
    """A backend of one's own on the GPU: cuDNN by another name, with half of what it takes."""
    tables = [(table, dict(table)) for table in (BACKENDS, CODEGENS)]

    def accepts(problem: ConvProblem, epilogue: str) -> byoc_cudnn.Decision:
        if problem.kind is ConvKind.FPROP:
            return byoc_cudnn.Decision(False, "not forward")
        return cudnn.check.check(problem, epilogue)

    kinds = {kind: [""] for kind in ConvKind}
    byoc_cudnn.register_backend(
        "mine", accepts, cudnn.check.LAYOUTS, kinds, options=cudnn.check.Options,
        generate=lambda regions, arch: cudnn.codegen.generate(regions), pins=("benchmark",),
        tried=lambda region, arch, most: [{"benchmark": False}, {"benchmark": True}],
        version=lambda found: "mine of " + found.cudnn.version_text,
    )  # fmt: skip
    yield "mine"
    for table, before in tables:
        table.clear()
        table.update(before)


def test_a_backend_of_ones_own(mine: str, tmp_path: Path) -> None:
    choose_compiler()
    problems = [ConvProblem.parse(line) for line in LINES]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = tune(problems, (mine, "cutlass"), candidates=2)
    assert {(m.problem, m.backend) for m in record} == {
        (problems[0].repro(), mine), *((p.repro(), "cutlass") for p in problems)
    }  # fmt: skip
    slower = (replace(m, ms=100.0) if m.backend == "cutlass" else m for m in record)
    path = tmp_path / "record.json"
    Record(slower).save(path)
    out, report = byoc_cudnn.partition(
        problem_module(problems[0]), ("cutlass", mine), select="measured", record=path
    )
    assert [entry.backend for entry in report.entries] == [mine]
    device = tvm.cuda(0)
    values = random_operands(problems[0], np.random.default_rng(0))
    library = byoc_cudnn.build(out)
    args: list[Any] = [tvm.runtime.tensor(v, device) for v in values]
    result = library.virtual_machine(device)["main"](*args).numpy()
    error = relative_error(result, torch_reference(problems[0], *values))
    assert error <= library_tolerance(problems[0], tf32=True)
    assert library.plans()  # cuDNN's, which the source exports under its own name
