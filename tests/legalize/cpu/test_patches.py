"""Windows side by side, channels outside: products of pixels against PyTorch in float64, into
outputs of NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import tirx

from legalize import cpu
from legalize.cpu.direct.patches import pays
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
NAME, DEEP = "product of patches", "depth as taps, product of patches"
# Tiles of several rows, over ends of planes, and of parts of one; a last tile of fewer rows, that
# ends within a vector; channels too few for a block and beyond one; taps along some axes alone, of
# a row one, two and four; a row that ends in pieces of a vector; other dtypes; taps in depth alone,
# where planes are rows.
LINES = (
    "n=2 c=5 d=4 h=8 w=24 k=6 t=2 r=2 s=2 stride=2,2,2",
    "n=1 c=3 d=6 h=6 w=8 k=13 t=2 r=2 s=2 stride=2,2,2",
    "n=1 c=2 d=3 h=9 w=8 k=3 t=3 r=3 s=1 stride=3,3,1",
    "n=2 c=9 d=2 h=4 w=64 k=20 t=1 r=2 s=2 stride=1,2,2",
    "n=1 c=1 d=4 h=6 w=192 k=1 t=2 r=1 s=2 stride=2,1,2",
    "n=3 c=40 h=24 w=48 k=33 r=2 s=2 stride=2,2",
    "n=3 c=3 h=20 w=32 k=17 r=4 s=4 stride=4,4",
    "n=1 c=7 h=6 w=256 k=9 r=2 s=2 stride=2,2",
    "n=1 c=6 h=2 w=8 k=5 r=2 s=1 stride=2,1 dil=1,3 dtype=f32/bf16/f32",
    "n=2 c=6 h=10 w=24 k=5 r=5 s=1 stride=5,1 dtype=f64/f64/f64",
    "n=1 c=5 d=6 h=4 w=12 k=7 t=2 r=1 s=1 stride=2,1,1",
)
TARGETS = {"few registers": FAST, "host": cpu.host_target(1), "many cores": cpu.host_target(8)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_numbers(target: tvm.target.Target, kind: ConvKind) -> None:
    given = [ConvProblem.parse(f"{kind.value} {line}") for line in LINES]
    made = [cpu.kernel(p, target) for p in given]
    names = [DEEP if p.rank == 3 and p.taps[1:] != (1, 1) else NAME for p in given]
    assert [kernel.name for kernel in made] == names
    named = {f"f{i}": k.func.with_attr("global_symbol", f"f{i}") for i, k in enumerate(made)}
    module = tvm.compile(tvm.IRModule(named), target=target)
    errors = [error_of(p, module[f"f{i}"]) for i, p in enumerate(given)]
    assert [(p, e) for p, e in zip(given, errors, strict=True) if not e <= tolerance(p)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_images(kind: ConvKind) -> None:
    p = ConvProblem.parse(f"{kind.value} n=1 c=6 h=16 w=32 k=21 r=2 s=2 stride=2,2")
    made = cpu.kernel(replace(p, n=tirx.Var("n", "int64")), FAST)
    assert made.name == NAME
    kernel = tvm.compile(made.func, target=FAST)["main"]
    for images in (1, 3):
        assert error_of(replace(p, n=images), kernel) <= tolerance(p)


@pytest.mark.parametrize("kind", KINDS)
def test_special_values_stay_in_their_window(kind: ConvKind) -> None:
    p = ConvProblem.parse(f"{kind.value} n=2 c=3 h=6 w=8 k=5 r=2 s=2 stride=2,2")
    kernel = tvm.compile(cpu.prim_func(p, FAST), target=FAST)["main"]
    operands = random_operands(p, np.random.default_rng(0))
    clean = torch_reference(p, *operands)
    scale = 2 if kind is ConvKind.FPROP else 1
    operands[0][0, 1, 2 * scale, 3 * scale] = np.nan
    out = tvm.runtime.tensor(poisoned(p))
    kernel(*map(tvm.runtime.tensor, operands), out)
    got, of_result = out.numpy(), 3 - scale
    reached = np.zeros(got.shape, bool)
    reached[0, :, 2 * of_result : 3 * of_result, 3 * of_result : 4 * of_result] = True
    assert np.isnan(got[reached]).all()
    assert relative_error(got[~reached], clean[~reached]) <= tolerance(p)


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        ("c=64 h=64 w=64 k=128 r=2 s=2 stride=2,2", True),
        ("c=64 h=56 w=56 k=128 r=2 s=2 stride=2,2", False),  # no tile is some rows of 28
        ("c=64 h=65 w=64 k=128 r=2 s=2 stride=2,2", False),  # a row that no window has
        ("c=64 h=64 w=64 k=128 r=2 s=2 stride=2,2 dil=1,2", False),
        ("c=64 h=64 w=64 k=128 r=2 s=2 stride=2,1", False),
        ("c=64 h=64 w=66 k=128 r=2 s=3 stride=2,3", False),
        ("c=64 h=62 w=64 k=128 r=2 s=2 stride=2,2 pad=1,0,1,0", False),
        ("c=64 h=64 w=64 k=128 r=2 s=2 stride=2,2 groups=2", False),
        ("c=64 h=64 w=64 k=128 r=2 s=2 stride=2,2 layout=NCHW/OHWI/NCHW", False),
        ("c=64 h=64 w=64 k=128 r=2 s=2 stride=2,2 dtype=f16/f32/f32", False),
        ("c=64 h=64 w=64 k=128 r=1 s=1", False),
        ("c=65536 h=64 w=64 k=64 r=2 s=2 stride=2,2", False),  # a tile is more than a cache
    ],
)
def test_where_it_is_chosen(line: str, chosen: bool) -> None:
    m = machine(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"}))
    assert pays(ConvProblem.parse(f"fprop n=2 {line}"), m) is chosen
    assert not pays(ConvProblem.parse(f"wgrad n=2 {line}"), m)
