"""Depthwise kernels where vectors share cache lines, against PyTorch in float64, NaN before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm.target import Target

from legalize import cpu
from legalize.cpu.depthwise import cache_lines as depthwise_lines
from legalize.cpu.depthwise import kernels as depthwise
from legalize.cpu.machine import machine
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cpu_kernels import error_of
from tests.support.problems import tolerance

HOST = cpu.host_target()
AVX2 = Target({"kind": "llvm", "mattr": ["+avx2", "+fma"], "num-cores": 2})
LARGE = "wgrad n=8 c=96 h=112 w=112 k=96 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=96"

CASES = """
n=2 c=33 h=9 w=10 k=33 r=3 s=3 pad=1,1,1,1 groups=33
n=2 c=40 h=9 w=10 k=40 r=3 s=3 pad=1,1,1,1 groups=40 layout=NHWC/HWIO/NHWC
n=2 c=48 h=9 w=70 k=48 r=3 s=3 pad=1,1,1,1 groups=48 layout=NHWC/HWIO/NHWC
n=3 c=48 h=13 w=57 k=48 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=48 layout=NHWC/HWIO/NHWC
n=2 c=16 h=9 w=41 k=16 r=3 s=3 pad=4,3,2,5 groups=16 layout=NHWC/HWIO/NHWC
n=2 c=16 h=11 w=10 k=16 r=3 s=5 stride=2,3 pad=3,4,2,1 groups=16 layout=NHWC/HWIO/NHWC
n=1 c=7 h=1 w=1 k=7 r=3 s=3 pad=1,1,1,1 groups=7
n=1 c=8 h=2 w=2 k=8 r=1 s=1 pad=0,4,0,4 stride=1,5 groups=8 layout=NHWC/HWIO/NHWC
n=2 c=10 h=9 w=30 k=20 r=5 s=7 pad=2,3,2,3 groups=10
n=2 c=8 h=5 w=20 k=8 r=1 s=13 pad=0,6,0,6 groups=8
n=2 c=10 h=9 w=9 k=20 r=3 s=3 stride=2,2 dil=2,2 groups=10 layout=NHWC/HWIO/NHWC
n=2 c=24 h=9 w=9 k=48 r=3 s=3 stride=3,2 pad=1,1,1,1 groups=24
n=2 c=1024 h=7 w=14 k=1024 r=3 s=3 pad=1,1,1,1 groups=1024 layout=NHWC/HWIO/NHWC
n=2 c=20 h=9 w=9 k=20 r=3 s=3 pad=1,1,1,1 groups=20 dtype=f64/f64/f64
n=2 c=24 h=9 w=9 k=24 r=3 s=3 pad=1,1,1,1 groups=24 dtype=bf16/f32/f16
""".strip().splitlines()


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All problems as if they were larger than the caches."""

    def fits(problem: ConvProblem, m: object) -> bool:
        return problem.s <= 12

    monkeypatch.setattr(depthwise_lines, "pays", fits)
    monkeypatch.setattr(depthwise, "FAR", 0)


@pytest.mark.share(17)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("line", CASES)
@pytest.mark.parametrize("target", [HOST, AVX2], ids=["host", "avx2"])
def test_right_numbers(target: Target, line: str, kind: ConvKind) -> None:
    if "avx2" not in tvm.target.codegen.llvm_get_cpu_features(HOST):
        pytest.skip("this host lacks the target's instructions")
    problem = ConvProblem.parse(f"{kind.value} {line}")
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    assert error_of(problem, kernel) <= tolerance(problem)


@pytest.mark.share(7)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("line", [CASES[0], CASES[1], CASES[8]])
def test_symbolic_batch(line: str, kind: ConvKind) -> None:
    problem = ConvProblem.parse(f"{kind.value} {line}")
    n = tvm.tirx.Var("n", "int64")
    kernel = tvm.compile(cpu.prim_func(replace(problem, n=n), HOST), target=HOST)["main"]
    for size in (1, 5):
        assert error_of(replace(problem, n=size), kernel) <= tolerance(problem)


def test_taken_for_what_comes_from_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that share lines, and those of a line where taps are many or pixels skipped."""
    monkeypatch.undo()
    problem = ConvProblem.parse(LARGE)
    avx2, avx512 = (
        machine(Target({"kind": "llvm", "mcpu": f"x86-64-{v}", "num-cores": 2}))
        for v in ("v3", "v4")
    )
    wide = ConvProblem.parse(LARGE.replace("s=3", "s=13"))
    small = replace(problem, n=1, h=8, w=8)
    assert depthwise_lines.pays(problem, avx2)
    assert not depthwise_lines.pays(wide, avx2)
    assert not depthwise_lines.pays(small, avx2)
    assert depthwise_lines.pays(problem, avx512)
    assert depthwise_lines.pays(replace(problem, strides=(1, 1)), avx512)
    assert not depthwise_lines.pays(replace(small, strides=(1, 1)), avx512)
    assert depthwise_lines.pays(small, avx512)
    assert depthwise_lines.pays(replace(small, strides=(1, 1), r=5, s=5), avx512)
