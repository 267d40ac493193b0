"""wgrad's panels: several units of pixels, ragged tiles, chunks, parts; 16 registers and, for what
products do with more of them, 32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.target import Target

from legalize import cpu
from legalize.cpu.emitters import memory
from legalize.cpu.machine import Machine, machine
from legalize.cpu.wgrad import packed as wgrad_packed
from legalize.cpu.wgrad.work_split import Work, WorkSplit, best_split
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cpu_kernels import error_of, run
from tests.support.problems import random_operands, random_problem, tolerance

HOST = cpu.host_target()
FEATURES = ["+avx2", "+fma"] if "avx2" in tvm.target.codegen.llvm_get_cpu_features(HOST) else []
# 16 registers: of 32 bytes if this host has them, of 16 otherwise.
TARGET = Target({"kind": "llvm", "mattr": sorted(FEATURES), "num-cores": 3})

# With units of few pixels, all of these have several, and panels that are not full.
LINES = """
n=2 c=16 h=6 w=7 k=16 r=1 s=1 layout=NHWC/HWIO/NHWC
n=3 c=41 h=9 w=11 k=72 r=1 s=1 layout=NHWC/HWIO/NHWC
n=3 c=64 h=9 w=11 k=96 r=1 s=1 layout=NHWC/HWIO/NHWC
n=5 c=17 h=9 w=11 k=19 r=1 s=1 stride=2,3 layout=NHWC/OHWI/NHWC
n=2 c=40 h=13 w=12 k=37 r=3 s=3 stride=2,2 pad=1,1,1,1 layout=NHWC/HWIO/NHWC
n=5 c=22 h=4 w=4 k=48 r=3 s=3 stride=2,2 pad=1,1,1,1 layout=NHWC/HWIO/NHWC
n=5 c=20 h=2 w=3 k=23 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC
n=5 c=20 h=4 w=4 k=24 r=3 s=3 pad=5,4,6,3 layout=NHWC/HWIO/NHWC
n=2 c=20 h=15 w=13 k=32 r=3 s=2 stride=3,2 pad=1,0,2,3 dil=2,3
n=2 c=20 h=12 w=12 k=17 r=1 s=1 pad=1,0,2,1 layout=NHWC/HWIO/NHWC
n=3 c=51 h=8 w=6 k=96 r=3 s=3 pad=1,1,1,1 groups=3 layout=NHWC/HWIO/NHWC
n=3 c=64 h=8 w=6 k=38 r=2 s=3 stride=1,2 pad=0,2,1,0 groups=2 layout=NHWC/HWIO/NHWC
n=31 c=23 h=1 w=1 k=29 r=1 s=1
n=7 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=CHWN/OIHW/NCHW
n=3 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC dtype=f64/f64/f64
n=3 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC dtype=bf16/f32/bf16
n=3 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC dtype=f16/f16/f16
""".strip().splitlines()


def parse(line: str) -> ConvProblem:
    return ConvProblem.parse(f"wgrad {line}")


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with few channels."""
    monkeypatch.setattr(wgrad_packed, "LEAST_CHANNELS", 1)


def small_caches(
    patch: pytest.MonkeyPatch, l1_bytes: int, l2_bytes: int, registers: int = 16
) -> None:
    """Caches so small that a small problem has several units and chunks."""

    def small(target: Target) -> Machine:
        return replace(
            machine(target), l1_ways=1, l1_way_bytes=l1_bytes, l2_bytes=l2_bytes,
            registers=registers,
        )  # fmt: skip

    patch.setattr(cpu, "machine", small)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[WorkSplit, Work]]:
    """The shares of the kernels that a test makes."""
    made = []

    def remember(work: Work, m: Machine) -> WorkSplit:
        made.append((best_split(work, m), work))
        return made[-1][0]

    monkeypatch.setattr(wgrad_packed, "best_split", remember)
    return made


@pytest.mark.share(11)
@pytest.mark.parametrize("l1_bytes", [2048, 1 << 15])
@pytest.mark.parametrize("line", LINES)
def test_units_and_chunks(
    line: str, l1_bytes: int, chosen: list[tuple[WorkSplit, Work]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_caches(monkeypatch, l1_bytes, 4 * l1_bytes)
    problem = parse(line)
    assert run(problem, TARGET) <= tolerance(problem)
    # Of units of a cache, and of smaller ones that would be even.
    assert all(work.units > 1 or l1_bytes > 2048 or "NCHW" in line for _, work in chosen)


@pytest.mark.share(17)
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("k_blocks", [1, 2, 9])
@pytest.mark.parametrize("c_tiles", [1, 3, 9])
def test_every_plan(
    splits: int, k_blocks: int, c_tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of the pixels, and chunks the last of which is shorter."""

    def fixed(work: Work, m: Machine) -> WorkSplit:
        return WorkSplit(splits, min(k_blocks, work.blocks), min(c_tiles, work.tiles))

    monkeypatch.setattr(wgrad_packed, "best_split", fixed)
    small_caches(monkeypatch, 2048, 8192)
    for line in (
        "n=2 c=46 h=7 w=6 k=72 r=3 s=3 stride=2,1 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
        "n=3 c=92 h=9 w=11 k=90 r=1 s=1 groups=2 layout=NHWC/HWIO/NHWC",
    ):
        assert run(parse(line), TARGET) <= tolerance(parse(line))


@pytest.mark.share(7)
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("line", [line for line in LINES if "NCHW" in line or "groups" in line])
def test_images_are_copied_in_parts(
    line: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = parse(line.replace("NHWC/HWIO/NHWC", "NCHW/OIHW/NCHW"))
    problem = replace(problem, n=6)
    copies = sum(4 * int(np.prod(problem.shape(role))) for role in ("grad", "data"))
    monkeypatch.setattr(memory, "MOST_COPIED", copies * images // problem.n)
    assert run(problem, TARGET) <= tolerance(problem)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "line",
    [
        "c=24 h=8 w=9 k=32 r=3 s=3 stride=2,1 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
        "c=24 h=4 w=4 k=40 r=1 s=1 layout=NHWC/HWIO/NHWC",
        "c=24 h=4 w=4 k=40 r=1 s=1",
    ],
)
def test_symbolic_batch(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of fewer images than there are parts."""
    small_caches(monkeypatch, 2048, 8192)
    problem = parse(f"n=3 {line}")
    n = tvm.tirx.Var("n", "int64")
    kernel = tvm.compile(cpu.prim_func(replace(problem, n=n), TARGET), target=TARGET)["main"]
    for size in (1, 2, 7):
        sized = replace(problem, n=size)
        assert error_of(sized, kernel) <= tolerance(sized)


@pytest.mark.share(17)
@pytest.mark.parametrize("seed", range(24))
def test_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_caches(monkeypatch, 4096, 1 << 14)
    problem = random_problem(np.random.default_rng(seed), ConvKind.WGRAD, max_flop=2e6)
    assert run(problem, TARGET) <= tolerance(problem), problem.repro()


def test_parts_are_added_in_a_fixed_order() -> None:
    problem = parse("n=8 c=32 h=16 w=16 k=32 r=1 s=1 layout=NHWC/HWIO/NHWC")
    kernel = tvm.compile(cpu.prim_func(problem, TARGET), target=TARGET)["main"]
    a, b = (tvm.runtime.tensor(x) for x in random_operands(problem, np.random.default_rng(0)))
    results = set()
    for _ in range(5):
        out = tvm.runtime.tensor(np.full(problem.shape("weight"), np.nan, "float32"))
        kernel(a, b, out)
        results.add(out.numpy().tobytes())
    assert len(results) == 1


# 1x1 with 32 registers -> which operands are read where they lie: (gradient, data).  They are those
# of the product as it is written: with operands exchanged where that leaves fewer lanes idle.
PRODUCTS = {
    "n=2 c=24 h=9 w=11 k=48 r=1 s=1 layout=NHWC/HWIO/NHWC": (True, True),
    "n=2 c=48 h=9 w=11 k=24 r=1 s=1 layout=NHWC/HWIO/NHWC": (True, True),
    "n=2 c=96 h=9 w=11 k=20 r=1 s=1 layout=NHWC/OHWI/NHWC": (True, True),
    "n=2 c=43 h=9 w=11 k=29 r=1 s=1 layout=NHWC/OHWI/NHWC": (False, True),
    "n=2 c=29 h=9 w=11 k=43 r=1 s=1 layout=NHWC/OIHW/NHWC": (False, True),
    "n=5 c=1024 h=4 w=3 k=16 r=1 s=1 layout=NHWC/OHWI/NHWC": (False, True),
    "n=5 c=16 h=4 w=3 k=1024 r=1 s=1 layout=NHWC/HWIO/NHWC": (False, True),
    "n=5 c=1040 h=4 w=3 k=1024 r=1 s=1 layout=NHWC/HWIO/NHWC": (False, False),
    "n=2 c=24 h=9 w=11 k=48 r=1 s=1": (True, True),
    "n=2 c=48 h=9 w=11 k=24 r=1 s=1 layout=NCHW/OIHW/NHWC": (True, True),
    "n=2 c=48 h=9 w=11 k=16 r=1 s=1 layout=CHWN/IHWO/NHWC": (True, True),
    "n=2 c=48 h=9 w=11 k=24 r=1 s=1 layout=NHWC/HWOI/NHWC dtype=f64/f64/f64": (True, True),
    "n=2 c=48 h=9 w=11 k=24 r=1 s=1 layout=NHWC/HWIO/NHWC dtype=f32/f16/bf16": (True, True),
}


@pytest.fixture
def cores_made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The loops of the kernels that a test makes."""
    made: list[Any] = []
    write = wgrad_packed.Core.write

    def remember(core: Any, *given: Any) -> None:
        made.append(core)
        write(core, *given)

    monkeypatch.setattr(wgrad_packed.Core, "write", remember)
    return made


@pytest.mark.share(3)
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("line", PRODUCTS)
def test_products_with_many_registers(
    line: str, cores: int, cores_made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place or packed, with operands exchanged or not, units that ask for the next ones."""
    small_caches(monkeypatch, 4096, 1 << 16, registers=32)
    monkeypatch.setattr(wgrad_packed, "SPREAD", 40 << 10)
    monkeypatch.setattr(wgrad_packed, "WIDE_SPREAD", 60 << 10)
    target = Target({"kind": "llvm", "mattr": sorted(FEATURES), "num-cores": cores})
    assert run(parse(line), target) <= tolerance(parse(line))
    (core,) = cores_made
    assert (core.grad_stays, core.data_stay) == PRODUCTS[line]
    assert core.work.units > 1


@pytest.mark.share(3)
@pytest.mark.parametrize(("c", "k", "layout", "is_turned"), [
    (144, 24, "HWIO", True), (24, 144, "HWIO", False), (480, 112, "HWIO", True),
    (192, 32, "HWIO", False), (192, 32, "OHWI", True), (64, 64, "HWIO", False),
])  # fmt: skip
def test_the_side_that_leaves_lanes_idle_is_rows(
    c: int, k: int, layout: str, is_turned: bool, cores_made: list[Any]
) -> None:
    """And of equals the one whose result is where it must be."""
    line = f"n=8 c={c} h=7 w=7 k={k} r=1 s=1 layout=NHWC/{layout}/NHWC"
    cpu.prim_func(parse(line), Target({"kind": "llvm", "mcpu": "x86-64-v4"}))
    (core,) = cores_made
    assert (core.problem.c, core.problem.k) == ((k, c) if is_turned else (c, k))


@pytest.mark.parametrize("registers", [16, 32])
def test_a_product_of_open_batch(registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operands are exchanged as those of a known one; none is read in place."""
    small_caches(monkeypatch, 2048, 8192, registers)
    problem = parse("n=3 c=48 h=4 w=4 k=24 r=1 s=1 layout=NHWC/HWIO/NHWC")
    open_ = replace(problem, n=tvm.tirx.Var("n", "int64"))
    kernel = tvm.compile(cpu.prim_func(open_, TARGET), target=TARGET)["main"]
    for size in (0, 1, 5):
        sized = replace(problem, n=size)
        assert error_of(sized, kernel) <= tolerance(sized)
