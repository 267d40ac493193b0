"""Forms of depthwise kernels: that they are considered, and their factors those of times."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byoc_cudnn.backends.cuda_direct.depthwise import strip_of
from byoc_cudnn.backends.cuda_direct.depthwise_variants import FACTORS, THREADS, Form
from byoc_cudnn.backends.cuda_direct.kernels import PREFIX, Kernel
from byoc_cudnn.backends.cuda_direct.model import Choice, ranked
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.direct_emulated import library, share

TIMES = Path(__file__).parents[4] / "benchmarks/results/gpu_depthwise_forms.json"
MEMORY = {"H100": 1.44, "H200": 1.0}  # as long as an H200's takes, by a copy
STRIPS = ("depthwise_rows", "depthwise_sums")


def _problem(kind: ConvKind, taps: int, strides: tuple[int, int], s: int = 0) -> ConvProblem:
    pad, (down, across) = taps // 2, strides
    return ConvProblem.parse(
        f"{kind.value} n=64 c=144 h=56 w=56 k=144 r={taps} s={s or taps}"
        f" stride={down},{across} pad={pad},{pad},{pad},{pad} groups=144"
        " layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
    )


def _considered(problem: ConvProblem) -> dict[Form, Choice]:
    found = [c for c in ranked(problem, (), 90) if c.kernel.family in STRIPS]
    return {strip_of(problem, choice.kernel.numbers).form: choice for choice in found}


@pytest.mark.parametrize(("kind", "taps", "stride"), list(FACTORS))
def test_forms_that_were_measured_are_considered(kind: ConvKind, taps: int, stride: int) -> None:
    problem = _problem(kind, taps, (stride, stride))
    found, forms = _considered(problem), FACTORS[kind, taps, stride]
    assert forms.keys() <= found.keys()
    for form, factor in forms.items():
        plain = strip_of(problem, found[form].kernel.numbers).work().us()
        assert found[form].us == pytest.approx(factor * plain)
    others = [choice for form, choice in found.items() if form not in forms]
    assert all(
        choice.us == strip_of(problem, choice.kernel.numbers).work().us() for choice in others
    )


@pytest.mark.longer("250 threads of a CPU a block")
def test_results_by_as_many_threads_as_a_gpu_has(tmp_path: Path) -> None:
    """Forms with other than the usual number, on a small problem each."""
    found = []
    for kind, taps, stride in FACTORS:
        p = _problem(kind, taps, (stride, stride))
        p = replace(p, n=3, c=24, h=9, w=11, k=24, groups=24)
        found += [(p, c.kernel) for form, c in _considered(p).items() if form[2] != THREADS]
    assert len(found) > 15
    functions = library(tmp_path, *(kernel for _, kernel in found))
    off = {kernel.name: share(functions, kernel, p) for p, kernel in found}
    assert {name: x for name, x in off.items() if not x <= 1} == {}


def test_other_taps_and_strides_have_none_of_them() -> None:
    for problem in (_problem(ConvKind.WGRAD, 3, (2, 1)), _problem(ConvKind.WGRAD, 3, (2, 2), 2)):
        assert {form[2] for form in _considered(problem)} == {THREADS}


def test_factors_are_those_of_the_times() -> None:
    """Of forms with four times or more; of those that are slower, others' times are older."""
    data: dict[str, Any] = json.loads(TIMES.read_text())
    found: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in data["rows"]:
        p = ConvProblem.parse(row["problem"])
        for name, us in row["kernels"]:
            kernel = Kernel.parse(f"{PREFIX}_{name}")
            if kernel.family in STRIPS:
                strip = strip_of(p, kernel.numbers)
                work = strip.work()
                expected = replace(work, bytes=work.bytes * MEMORY[row["device"]]).us()
                found[p.kind, p.r, p.strides[0], strip.form].append(math.log(us / expected))
    compared = 0
    for (kind, taps, stride), forms in FACTORS.items():
        for form, factor in forms.items():
            logs = found[kind, taps, stride, form]
            if len(logs) >= 4:
                compared += 1
                assert sum(logs) / len(logs) == pytest.approx(math.log(factor), abs=0.13), form
    assert compared > 30


def test_the_first_choice_among_forms_is_nearly_the_best() -> None:
    """Where what is chosen was timed beside others."""
    data: dict[str, Any] = json.loads(TIMES.read_text())
    lost = []
    for row in data["rows"]:
        first = ranked(ConvProblem.parse(row["problem"]), (), 90)[0].kernel
        times = {f"{PREFIX}_{name}": us for name, us in row["kernels"]}
        if first.name in times:
            lost.append(times[first.name] / min(times.values()))
    assert len(lost) > 80
    assert sum(x <= 1.05 for x in lost) > 0.85 * len(lost)
    assert math.exp(sum(map(math.log, lost)) / len(lost)) < 1.02
    assert max(lost) < 1.25
