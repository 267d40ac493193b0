"""CPU kernels of three dimensions: random problems in every layout and dtype against PyTorch in
float64, and the plain tensor expression of symbolic sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.target import Target

from legalize import cpu, cuda
from legalize.cpu.machine import machine
from legalize.cpu.volume import along_depth, flattened, taps_of
from legalize.generic import cpu_schedule, te_conv
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cpu_kernels import error_of
from tests.support.fast import FAST
from tests.support.problems import random_problem, tolerance

KINDS = list(ConvKind)
# What chance may leave out: no tap reaches some depths, all taps on the padding at one end, one
# tap, depths that are one run of memory on both sides.
CORNERS = (
    "{} n=1 c=1 d=1 h=1 w=1 k=1 t=1 r=1 s=1",
    "{} n=2 c=6 d=5 h=6 w=5 k=4 t=2 r=3 s=2 stride=3,1,2 pad=3,1,0,4,1,1 dil=4,1,1 groups=2",
    "{} n=2 c=5 d=7 h=4 w=5 k=3 t=1 r=1 s=1 stride=3,1,1 pad=1,0,0,0,0,0",
    "{} n=2 c=8 d=4 h=6 w=5 k=16 t=1 r=3 s=3 pad=0,1,1,0,1,1 layout=NDHWC/ODHWI/NDHWC",
    "{} n=2 c=6 d=5 h=5 w=5 k=6 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=6",
    "{} n=2 c=24 d=5 h=7 w=61 k=24 t=2 r=3 s=5 stride=2,1,2 pad=1,2,3,0,1,4 dil=1,2,1 groups=24",
    "{} n=2 c=20 d=4 h=6 w=33 k=20 t=3 r=2 s=3 pad=3,0,1,0,4,5 dil=1,2,1 groups=20",
    "{} n=1 c=13 d=1 h=1 w=1 k=13 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=13",
    "{} n=2 c=7 d=4 h=3 w=90 k=7 t=3 r=1 s=7 pad=1,0,3,1,0,3 groups=7 layout=NDHWC/ODHWI/NDHWC",
    "{} n=2 c=3 d=4 h=9 w=90 k=3 t=3 r=3 s=7 stride=2,3,1 pad=1,1,3,1,1,3 groups=3",
    "{} n=1 c=2 d=4 h=9 w=32 k=2 t=3 r=2 s=3 pad=1,0,1,1,0,1 groups=2 dtype=f32/bf16/f32",
    "{} n=1 c=17 d=6 h=4 w=7 k=17 t=2 r=1 s=3 stride=1,2,3 pad=0,0,1,3,0,1 dil=3,1,2 groups=17",
    "{} n=3 c=32 d=3 h=9 w=9 k=32 t=5 r=6 s=5 pad=2,2,1,2,0,1 groups=32 layout=NDHWC/DHWIO/NDHWC",
    "{} n=2 c=12 d=6 h=4 w=6 k=8 t=2 r=2 s=2 stride=2,2,2 groups=2",
    "{} n=2 c=5 d=6 h=5 w=5 k=8 t=3 r=2 s=1 stride=3,1,2 layout=NDHWC/ODHWI/NDHWC",
    "{} n=2 c=5 d=7 h=5 w=5 k=8 t=3 r=2 s=1 stride=3,1,2 dtype=f16/f16/f16",
    "{} n=1 c=3 d=2 h=2 w=9 k=3 t=1 r=1 s=9 pad=0,0,60,0,0,60 groups=3",
    "{} n=2 c=12 d=7 h=5 w=6 k=20 t=3 r=1 s=1 stride=2,1,1 pad=1,0,0,0,0,0 dil=2,1,1 groups=2",
    "{} n=2 c=9 d=3 h=4 w=5 k=9 t=3 r=1 s=1 groups=9 layout=NDHWC/DHWIO/NCDHW dtype=f16/f16/f16",
    "{} n=2 c=17 d=5 h=5 w=5 k=19 t=3 r=3 s=3 pad=1,1,1,1,1,1 dtype=bf16/bf16/f32",
)

# Taps in depth as loops: strides and dilation there, tiles of several planes.
DEEP = (
    "{} n=2 c=32 d=5 h=6 w=7 k=16 t=2 r=3 s=2 stride=2,2,2 pad=1,0,1,0,1,1",
    "{} n=1 c=17 d=7 h=6 w=5 k=24 t=3 r=2 s=3 stride=1,2,1 dil=2,1,2 pad=2,1,2,3,0,1",
    "{} n=1 c=160 d=3 h=3 w=3 k=20 t=3 r=3 s=3 pad=1,1,1,1,1,1",
)
# Copies larger than level-2 caches are made of some planes at a time: overlapping windows, phases
# of dgrad, planes that no window reads.
_APART = "{} n=1 c=160 d=14 h=18 w=18 k=8 t=2 r=2 s=2 stride=3,2,2 pad=0,1,1,0,1,1"
SLABS = (
    _APART,
    "{} n=2 c=160 d=12 h=18 w=18 k=9 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "{} n=1 c=320 d=11 h=17 w=18 k=16 t=3 r=2 s=2 stride=2,2,1 dil=2,1,1 pad=2,0,1,1,1,0 groups=2",
    f"{_APART} layout=NDHWC/ODHWI/NDHWC",
    # Fewer channels than a vector of AVX2, whose whole vectors have no slabs.
    "{} n=1 c=4 d=40 h=64 w=66 k=4 t=3 r=2 s=2 stride=2,1,1 pad=1,1,1,0,1,1",
)
HOST = cpu.host_target(2)  # with as many registers as this machine has


def problems(kind: ConvKind, count: int, seed: int) -> list[ConvProblem]:
    rng = np.random.default_rng(seed)
    drawn = [random_problem(rng, kind, max_flop=2e6, rank=3) for _ in range(count)]
    return drawn + [ConvProblem.parse(line.format(kind.value)) for line in CORNERS]


def wrong(funcs: list[tirx.PrimFunc], given: list[ConvProblem], target: Target = FAST) -> list[str]:
    named = {f"f{i}": f.with_attr("global_symbol", f"f{i}") for i, f in enumerate(funcs)}
    module = tvm.compile(tvm.IRModule(named), target=target)
    errors = [error_of(p, module[f"f{i}"]) / tolerance(p) for i, p in enumerate(given)]
    return [f"{p}: {e:.2g}" for p, e in zip(given, errors, strict=True) if not e <= 1]


@pytest.mark.parametrize("kind", KINDS)
def test_kernels(kind: ConvKind) -> None:
    given = problems(kind, 6, 3)
    assert wrong([cpu.prim_func(p, FAST) for p in given], given) == []


@pytest.mark.parametrize("target", [FAST, HOST], ids=["few registers", "host"])
@pytest.mark.parametrize("kind", KINDS)
def test_taps_in_depth(kind: ConvKind, target: Target) -> None:
    lines = [*DEEP, f"{DEEP[1]} layout=NDHWC/ODHWI/NDHWC"]
    given = [ConvProblem.parse(line.format(kind.value)) for line in lines]
    made = [cpu.kernel(p, target) for p in given]
    loops = [kernel.name.startswith("depth as taps") for kernel in made]
    # Where registers are few most weights' gradients pack columns.
    packs = kind is ConvKind.WGRAD and machine(target).has_few_registers
    assert any(loops) if packs else all(loops)
    assert wrong([kernel.func for kernel in made], given, target) == []


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("kind", [ConvKind.FPROP, ConvKind.DGRAD])
def test_slabs_of_planes(kind: ConvKind, cores: int) -> None:
    target = cpu.host_target(cores)
    given = [ConvProblem.parse(line.format(kind.value)) for line in SLABS]
    assert wrong([cpu.prim_func(p, target) for p in given], given, target) == []


@pytest.mark.share(5)
@pytest.mark.parametrize("kind", KINDS)
def test_expression(kind: ConvKind) -> None:
    given = problems(kind, 6, 4)
    funcs = []
    for p in given:
        a, b = (te.placeholder(p.shape(role), p.dtype(role), role) for role in p.roles[:2])
        funcs.append(cpu_schedule(te.create_prim_func([a, b, te_conv(p, a, b)])))
    assert wrong(funcs, given) == []


def test_taps_meet_the_data_alone() -> None:
    """Also where the padding before puts one behind the last output: its columns are none."""
    line = "fprop n=3 c=5 d=1 h=1 w=1 k=37 t=7 r=1 s=3 stride=2,2,1 pad=6,1,2,6,1,3 dil=2,2,1"
    for p in [ConvProblem.parse(line), *problems(ConvKind.FPROP, 200, 6)]:
        for tap in taps_of(p):
            offset = tap.index * p.dilation[0] - p.padding[0]
            met = [z for z in range(p.z) if 0 <= z * p.strides[0] + offset < p.d]
            assert list(range(tap.first, tap.last)) == met, p.repro()
            assert 0 <= tap.first <= tap.last <= p.z


def test_as_many_multiplications_as_there_are() -> None:
    for kind in KINDS:
        for p in problems(kind, 20, 5):
            assert flattened(p).flop == p.flop


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("k=16 t=3 r=3 s=3 pad=1,1,1,1,1,1", "depth as taps, direct"),
        ("k=16 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=16", "depthwise volume"),
        ("k=16 t=3 r=3 s=3 stride=2,2,1 pad=1,1,1,1,1,1 groups=16", "depthwise volume"),
        ("k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=16", "depth as taps, direct"),
        ("k=16 t=3 r=1 s=1 pad=1,0,0,1,0,0", "direct"),
        ("k=16 t=3 r=1 s=1 pad=1,0,0,1,0,0 layout=DNHWC/ODHWI/NDHWC", "direct"),
        ("k=16 t=3 r=1 s=1 stride=1,2,1", "depth as taps, product"),
        ("k=16 t=3 r=1 s=1 layout=NHDWC/ODHWI/NDHWC", "depth as taps, product"),
        ("k=16 t=1 r=1 s=1", "product"),
    ],
)
def test_what_is_chosen_is_said(line: str, name: str) -> None:
    p = ConvProblem.parse(f"fprop n=2 c=16 d=8 h=8 w=8 {line}")
    made = cpu.kernel(p, FAST)
    assert made.name.startswith(name)
    assert made.reason
    wgrad = cpu.kernel(p.with_kind(ConvKind.WGRAD), FAST)
    assert (wgrad.name == "depthwise volume") == (name == "depthwise volume")


def test_taps_in_depth_alone_copy_nothing() -> None:
    """Planes' pixels are columns: a three-dimensional problem's memory is the other's."""
    p = ConvProblem.parse("fprop n=2 c=8 d=9 h=4 w=6 k=16 t=3 r=1 s=1 pad=1,0,0,1,0,0")
    flat = along_depth(p)
    assert flat is not None
    assert flat.flop == p.flop
    assert (flat.h, flat.w, flat.data_layout, flat.padding) == (9, 24, "NCHW", (1, 0, 1, 0))


def test_refused() -> None:
    p = ConvProblem.parse("fprop n=2 c=4 d=3 h=3 w=3 k=4 t=3 r=3 s=3")
    with pytest.raises(ValueError, match="CUDA kernels are of two dimensions"):
        cuda.prim_func(p)
    symbolic = replace(p, n=tirx.Var("n", "int64"))
    with pytest.raises(ValueError, match="of three dimensions are for a static batch"):
        cpu.prim_func(symbolic, FAST)
