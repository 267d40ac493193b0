"""Direct kernels whose results have channels outside, and wait in bands of rows: against PyTorch in
float64, into outputs of NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from legalize import cpu
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cpu_kernels import error_of
from tests.support.problems import tolerance

KINDS = (ConvKind.FPROP, ConvKind.DGRAD)
# Tiles of several rows, bands of several tiles, a last band and a last tile that are lower; columns
# in several tiles; rows too long for a band; phases of which the last has fewer rows or columns, or
# no tap; channels beyond a block, too few for a vector, in groups; an operand that has channels
# last; other dtypes; volumes whose copies are slabs of planes, and planes that no tap reaches.
LINES = (
    "n=2 c=5 h=11 w=7 k=33 r=3 s=3 pad=1,1,1,1",
    "n=1 c=3 h=9 w=40 k=6 r=3 s=2 pad=1,0,1,1",
    "n=1 c=2 h=4 w=450 k=18 r=2 s=3 pad=1,1,0,1",
    "n=2 c=34 h=13 w=10 k=20 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=2",
    "n=1 c=7 h=12 w=11 k=9 r=2 s=2 stride=3,2 dil=1,3 pad=0,2,1,1",
    "n=2 c=6 h=10 w=9 k=70 r=1 s=1 stride=2,2",
    "n=2 c=18 h=8 w=9 k=12 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NCHW",
    "n=2 c=18 h=8 w=9 k=12 r=3 s=3 pad=1,1,1,1 layout=NCHW/HWIO/NHWC",
    "n=3 c=6 h=7 w=7 k=20 r=3 s=3 pad=1,1,1,1 layout=CNHW/OIHW/CNHW",
    "n=1 c=9 h=10 w=6 k=17 r=3 s=3 pad=1,1,1,1 dtype=bf16/bf16/f32",
    "n=1 c=9 h=10 w=6 k=17 r=3 s=3 pad=1,1,1,1 dtype=f64/f64/f64",
    "n=2 c=20 d=5 h=7 w=6 k=19 t=3 r=3 s=3 stride=2,2,2 pad=1,1,1,1,1,1",
    "n=2 c=6 d=7 h=5 w=6 k=20 t=2 r=3 s=2 stride=3,2,1 pad=0,1,1,1,0,1 layout=NDCHW/OIDHW/NDCHW",
    "n=2 c=160 d=12 h=18 w=18 k=9 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "n=1 c=160 d=14 h=18 w=18 k=8 t=2 r=2 s=2 stride=3,2,2 pad=0,1,1,0,1,1",
)


def errors(kind: ConvKind, target: Target) -> list[Any]:
    """Of problems whose results are too far from PyTorch's."""
    given = [ConvProblem.parse(f"{kind.value} {line}") for line in LINES]
    made = {f"f{i}": cpu.prim_func(p, target) for i, p in enumerate(given)}
    named = {name: f.with_attr("global_symbol", name) for name, f in made.items()}
    module = tvm.compile(tvm.IRModule(named), target=target)
    found = [(p, error_of(p, module[name])) for name, p in zip(made, given, strict=True)]
    return [(p, error) for p, error in found if not error <= tolerance(p)]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers(kind: ConvKind, many_registers: Target) -> None:
    assert errors(kind, many_registers) == []


@pytest.mark.parametrize("cores", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_on_this_machine(kind: ConvKind, cores: int) -> None:
    assert errors(kind, cpu.host_target(cores)) == []


@pytest.mark.parametrize("layout", ["NCHW/OIHW/NCHW", "CNHW/OIHW/CNHW"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_images(kind: ConvKind, layout: str, many_registers: Target) -> None:
    """Between a channel and the next there may be all of them."""
    line = f"n=1 c=18 h=9 w=8 k=21 r=3 s=3 stride=2,2 pad=1,1,1,1 layout={layout}"
    p = ConvProblem.parse(f"{kind.value} {line}")
    func = cpu.prim_func(replace(p, n=tirx.Var("n", "int64")), many_registers)
    kernel = tvm.compile(func, target=many_registers)["main"]
    for images in (1, 3):
        assert error_of(replace(p, n=images), kernel) <= tolerance(p)


def test_results_are_not_copied(many_registers: Target) -> None:
    """Of a result with channels outside there is no second one in memory."""
    p = ConvProblem.parse("fprop n=4 c=8 h=40 w=40 k=96 r=3 s=3 pad=1,1,1,1")
    for layout, copies in (("NCHW/OIHW/NCHW", False), ("NCHW/OIHW/NHCW", True)):
        data, kernel, grad = layout.split("/")
        given = replace(p, data_layout=data, kernel_layout=kernel, grad_layout=grad)
        assert ("grad_core" in cpu.prim_func(given, many_registers).script()) == copies
