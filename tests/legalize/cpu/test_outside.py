"""1x1 with channels outside: products of pixels against PyTorch in float64, into outputs of NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from legalize import cpu
from legalize.cpu.direct.outside import pays
from legalize.cpu.machine import machine
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cpu_kernels import error_of
from tests.support.fast import FAST
from tests.support.problems import (
    poisoned,
    random_operands,
    relative_error,
    tolerance,
    torch_reference,
)

KINDS = (ConvKind.FPROP, ConvKind.DGRAD)
# One tile and many, that end within a vector, at its end and at a tile's; rows too few for a block
# and beyond one; other orders of axes and weights, dtypes of weights, sums in float64.
LINES = (
    "n=1 c=3 h=7 w=7 k=13",
    "n=3 c=17 h=7 w=7 k=5",
    "n=3 c=1 h=2 w=3 k=1",
    "n=1 c=13 h=31 w=31 k=29",
    "n=3 c=64 h=4 w=24 k=33",
    "n=2 c=40 h=56 w=31 k=24",
    "n=1 c=520 h=16 w=48 k=23",
    "n=3 c=19 h=20 w=20 k=21 layout=CNHW/HWIO/NCHW",
    "n=3 c=19 h=20 w=20 k=21 layout=NCHW/IHWO/CNHW dtype=f32/bf16/f32",
    "n=3 c=19 h=9 w=20 k=21 dtype=f64/f64/f64",
    "n=3 c=11 d=3 h=5 w=7 k=18 t=1",
)
# Images that share a unit, images in pieces, ends within a vector, rows beyond a tile's of either.
OF_WGRAD = (
    "n=3 c=17 h=7 w=7 k=5",
    "n=9 c=6 h=9 w=9 k=4",
    "n=1 c=3 h=64 w=64 k=1",
    "n=2 c=40 h=56 w=31 k=24",
    "n=3 c=19 h=40 w=20 k=21 layout=CNHW/HWIO/NCHW",
    "n=2 c=20 d=3 h=24 w=25 k=13 t=1",
)
TARGETS = {"few registers": FAST, "host": cpu.host_target(1), "many cores": cpu.host_target(8)}


def problems(kind: ConvKind) -> list[ConvProblem]:
    lines = OF_WGRAD if kind is ConvKind.WGRAD else LINES
    return [ConvProblem.parse(f"{kind.value} {line} r=1 s=1") for line in lines]


def name(kind: ConvKind) -> str:
    return "wgrad of pixels" if kind is ConvKind.WGRAD else "product of pixels"


@pytest.mark.parametrize("kind", ConvKind)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_numbers(target: tvm.target.Target, kind: ConvKind) -> None:
    given = problems(kind)
    made = [cpu.kernel(p, target) for p in given]
    assert {kernel.name for kernel in made} == {name(kind)}
    named = {f"f{i}": k.func.with_attr("global_symbol", f"f{i}") for i, k in enumerate(made)}
    module = tvm.compile(tvm.IRModule(named), target=target)
    errors = [error_of(p, module[f"f{i}"]) for i, p in enumerate(given)]
    assert [(p, e) for p, e in zip(given, errors, strict=True) if not e <= tolerance(p)] == []


@pytest.mark.parametrize("kind", ConvKind)
def test_any_number_of_images(kind: ConvKind) -> None:
    p = ConvProblem.parse(f"{kind.value} n=1 c=19 h=20 w=20 k=21 r=1 s=1")
    made = cpu.kernel(replace(p, n=tirx.Var("n", "int64")), FAST)
    assert made.name == name(kind)
    kernel = tvm.compile(made.func, target=FAST)["main"]
    for images in (1, 3):
        assert error_of(replace(p, n=images), kernel) <= tolerance(p)


def with_special(line: str, operand: int, place: Any, special: float) -> Any:
    """(what a problem's kernel makes of operands with a special value, what is right without it,
    the tolerance)."""
    target, p = TARGETS["host"], ConvProblem.parse(line)
    kernel = tvm.compile(cpu.prim_func(p, target), target=target)["main"]
    operands = random_operands(p, np.random.default_rng(0))
    clean = torch_reference(p, *operands)
    operands[operand][place] = special
    out = tvm.runtime.tensor(poisoned(p))
    kernel(*map(tvm.runtime.tensor, operands), out)
    return out.numpy(), clean, tolerance(p)


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_special_values_stay_in_their_pixel(kind: ConvKind, special: float) -> None:
    """Neither the next lanes nor the next image see the last pixel's."""
    line = f"{kind.value} n=2 c=5 h=7 w=7 k=6 r=1 s=1"
    got, clean, limit = with_special(line, 0, (0, 2, 6, 6), special)
    assert not np.isfinite(got[0, :, 6, 6]).any()
    kept = np.ones(got.shape, bool)
    kept[0, :, 6, 6] = False
    assert relative_error(got[kept], clean[kept]) <= limit


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_special_values_stay_in_their_channel(special: float) -> None:
    """An image's last pixel is read once, and what stands before it in its vector is not."""
    line = "wgrad n=2 c=5 h=9 w=9 k=7 r=1 s=1"
    got, clean, limit = with_special(line, 1, (1, 4, 8, 8), special)
    assert not np.isfinite(got[:, 4]).any()
    assert relative_error(got[:, :4], clean[:, :4]) <= limit


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        ("c=64 h=56 w=56 k=256", True),
        ("c=512 h=7 w=7 k=2048", False),  # a quarter of the lanes would be idle
        ("c=65536 h=16 w=16 k=64", False),  # a tile's pixels would be more than a cache
        ("c=64 h=56 w=56 k=256 stride=2,2", False),
        ("c=64 h=56 w=56 k=256 pad=0,1,0,0", False),
        ("c=64 h=56 w=56 k=256 groups=2", False),
        ("c=64 h=56 w=56 k=256 layout=NHWC/OHWI/NCHW", False),
        ("c=64 h=56 w=56 k=256 dtype=f16/f32/f32", False),
    ],
)
def test_where_it_is_chosen(line: str, chosen: bool) -> None:
    m = machine(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"}))
    assert pays(ConvProblem.parse(f"fprop n=2 {line} r=1 s=1"), m) is chosen
    assert not pays(ConvProblem.parse(f"wgrad n=2 {line} r=1 s=1"), m)
