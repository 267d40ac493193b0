"""Direct kernels that read a padded operand where it lies: no copy, nothing beside the operand, and
no number of a pixel that a tap does not meet."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.target import Target

from legalize import cpu
from legalize.cpu.direct import affine
from legalize.cpu.emitters.axes import Axis
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cpu_kernels import error_of
from tests.support.problems import (
    poisoned,
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)

KINDS = (ConvKind.FPROP, ConvKind.DGRAD)
# Columns that are one tile, that tiles divide, and that they do not, with a last tile narrower than
# what lacks taps; a border on one side; taps that are all off the operand; strides, dilation and
# phases; one channel, one column, one image; groups; a result with channels outside; float64.
LINES = (
    "n=2 c=16 h=15 w=56 k=33 r=3 s=3 pad=1,1,1,1",
    "n=2 c=8 h=9 w=29 k=16 r=3 s=3 pad=1,1,1,1",
    "n=1 c=8 h=15 w=14 k=40 r=3 s=3 pad=1,1,1,1",
    "n=3 c=5 h=20 w=31 k=16 r=5 s=5 pad=2,2,2,2",
    "n=2 c=8 h=20 w=43 k=16 r=3 s=5 pad=2,6,0,5 dil=1,2",
    "n=2 c=8 h=20 w=21 k=16 r=3 s=3 pad=0,2,1,0",
    "n=1 c=4 h=20 w=20 k=8 r=3 s=3 pad=2,9,2,7",
    "n=2 c=12 h=21 w=37 k=20 r=3 s=3 stride=2,2 pad=1,1,1,1",
    "n=2 c=12 h=21 w=40 k=20 r=4 s=5 stride=3,2 pad=1,2,2,1",
    "n=2 c=9 h=22 w=33 k=12 r=3 s=3 stride=2,3 dil=2,2 pad=2,3,1,2",
    "n=1 c=1 h=19 w=33 k=1 r=3 s=3 pad=1,1,1,1",
    "n=1 c=6 h=19 w=1 k=6 r=3 s=3 pad=1,1,1,1",
    "n=2 c=32 h=17 w=28 k=48 r=3 s=3 pad=1,1,1,1 groups=4",
    "n=2 c=18 h=18 w=19 k=12 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NCHW",
    "n=2 c=18 h=18 w=19 k=12 r=3 s=3 pad=1,1,1,1 layout=NCHW/HWIO/NHWC",
    "n=2 c=6 h=16 w=22 k=10 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC dtype=f64/f64/f64",
    "n=2 c=6 h=16 w=22 k=10 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC dtype=bf16/bf16/bf16",
)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a copy, however few the channels."""
    monkeypatch.setattr(affine, "MOST_EDGES", 1000)


def parse(kind: ConvKind, line: str) -> ConvProblem:
    return ConvProblem.parse(
        f"{kind.value} {line}" + ("" if "layout" in line else " layout=NHWC/HWIO/NHWC")
    )


def errors(problems: list[ConvProblem], target: Target) -> list[Any]:
    """Of problems whose results are too far from PyTorch's in float64."""
    made = {f"f{i}": cpu.prim_func(p, target) for i, p in enumerate(problems)}
    named = {name: f.with_attr("global_symbol", name) for name, f in made.items()}
    module = tvm.compile(tvm.IRModule(named), target=target)
    found = [(p, error_of(p, module[name])) for name, p in zip(made, problems, strict=True)]
    return [(p.repro(), error) for p, error in found if not error <= tolerance(p)]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
def test_numbers(kind: ConvKind, many_registers: Target) -> None:
    assert errors([parse(kind, line) for line in LINES], many_registers) == []


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_on_this_machine(kind: ConvKind) -> None:
    assert errors([parse(kind, line) for line in LINES], cpu.host_target(8)) == []


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
def test_random_problems(kind: ConvKind, many_registers: Target) -> None:
    rng = np.random.default_rng(60)
    layouts = [("NHWC", "HWIO", "NHWC"), ("NHWC", "OHWI", "NCHW"), ("NCHW", "OIHW", "NHWC")]
    given = [random_problem(rng, kind, max_flop=1e6, layouts=layouts) for _ in range(8)]
    assert errors(given, many_registers) == []


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_images(kind: ConvKind, many_registers: Target) -> None:
    p = parse(kind, "n=1 c=18 h=17 w=30 k=21 r=3 s=3 stride=1,2 pad=1,1,1,1")
    func = cpu.prim_func(replace(p, n=tirx.Var("n", "int64")), many_registers)
    kernel = tvm.compile(func, target=many_registers)["main"]
    for images in (1, 3):
        assert error_of(replace(p, n=images), kernel) <= tolerance(p)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
def test_images_stay_near_weights_that_do_not(
    kind: ConvKind, many_registers: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block of weights after another reads some images, not all: as many as copies would be."""
    p = parse(kind, "n=6 c=40 h=16 w=17 k=40 r=3 s=3 pad=1,1,1,1")

    def tasks(func: tirx.PrimFunc) -> int:
        return max(map(int, re.findall(r"T\.parallel\(T\.int64\((\d+)\)", func.script())))

    of_all = tasks(cpu.prim_func(p, many_registers))
    chosen, l2_bytes = cpu.machine, 2 * 40 * 16 * 17 * 4 // 8
    monkeypatch.setattr(
        cpu, "machine", lambda target: replace(chosen(target), l2_bytes=l2_bytes, cores=8)
    )
    func = cpu.prim_func(p, many_registers)
    assert tasks(func) * 6 == of_all
    assert error_of(p, tvm.compile(func, target=many_registers)["main"]) <= tolerance(p)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stays_with_its_pixels(kind: ConvKind, many_registers: Target) -> None:
    """Products with the pixel of another row are computed, and must leave no trace."""
    p = parse(kind, "n=2 c=8 h=17 w=15 k=8 r=3 s=3 pad=1,1,1,1")
    kernel = tvm.compile(cpu.prim_func(p, many_registers), target=many_registers)["main"]
    a, b = random_operands(p, np.random.default_rng(0))
    a[0, 5, -1] = np.inf
    a[1, 3, 0] = np.nan
    out = tvm.runtime.tensor(poisoned(p))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    got, want = out.numpy(), torch_reference(p, a, b)
    assert np.array_equal(np.isfinite(got), np.isfinite(want))
    there = np.isfinite(want)
    assert relative_error(got[there], want[there]) <= tolerance(p)


@contextmanager
def alone(count: int, at_end: bool) -> Iterator[Any]:
    """So many floats between pages that nobody may read, at the beginning or the end of theirs."""
    page = mmap.PAGESIZE
    inside = -(-count * 4 // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    sides = (begin, begin + page + inside)
    for side in sides:
        assert libc.mprotect(ctypes.c_void_p(side), ctypes.c_size_t(page), 0) == 0
    try:
        offset = page + (inside - count * 4 if at_end else 0)
        yield np.frombuffer(memory, np.float32, count, offset)
    finally:
        for side in sides:
            libc.mprotect(ctypes.c_void_p(side), ctypes.c_size_t(page), 3)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "line",
    [
        "n=1 c=8 h=15 w=16 k=8 r=3 s=3 pad=1,1,1,1",
        "n=1 c=8 h=16 w=24 k=8 r=3 s=5 stride=2,2 pad=2,7,1,6 dil=2,1",
    ],
)
def test_nothing_beside_the_operand_is_read(
    line: str, kind: ConvKind, at_end: bool, many_registers: Target
) -> None:
    """It would be a segmentation fault."""
    p = parse(kind, line)
    kernel = tvm.compile(cpu.prim_func(p, many_registers), target=many_registers)["main"]
    a, b = random_operands(p, np.random.default_rng(0))
    with alone(a.size, at_end) as memory:
        memory[:] = a.ravel()
        out = tvm.runtime.tensor(poisoned(p))
        operand = tvm.runtime.from_dlpack(memory.reshape(a.shape))
        kernel(operand, tvm.runtime.tensor(b), out)
        assert relative_error(out.numpy(), torch_reference(p, a, b)) <= tolerance(p)


def test_no_copy_of_the_operand(many_registers: Target) -> None:
    """But of one with channels outside, of another dtype, and where many sums would be kept."""
    for line, is_copied in (
        ("n=4 c=32 h=40 w=40 k=96 r=3 s=3 pad=1,1,1,1", False),
        ("n=4 c=32 h=40 w=40 k=96 r=3 s=3 stride=2,2 pad=1,1,1,1 layout=NHWC/OHWI/NCHW", False),
        ("n=4 c=32 h=40 w=40 k=96 r=3 s=3 pad=1,1,1,1 layout=NCHW/OHWI/NHWC", True),
        ("n=4 c=32 h=40 w=40 k=96 r=3 s=3 pad=1,1,1,1 dtype=f16/f16/f16", True),
        ("n=4 c=8 h=28 w=28 k=64 r=5 s=5 pad=2,2,2,2", True),
    ):
        func = cpu.prim_func(parse(ConvKind.FPROP, line), many_registers)
        assert ("data_core" in func.script()) == is_copied, line


def test_few_registers_want_weights_that_are_near() -> None:
    """Others wait in the level-1 cache for groups of tiles, which read a copy."""
    target = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    for channels, is_copied in ((64, False), (160, True)):
        line = f"n=4 c={channels} h=40 w=40 k={channels} r=3 s=3 pad=1,1,1,1"
        func = cpu.prim_func(parse(ConvKind.FPROP, line), target)
        assert ("data_core" in func.script()) == is_copied


def test_outputs_that_lack_taps() -> None:
    def edges(*given: int) -> tuple[int, int]:
        return Axis(*given).edges  # dgrad, size, out, kernel, stride, dilation, before

    assert edges(False, 8, 8, 3, 1, 1, 1) == (1, 1)
    assert edges(False, 8, 4, 3, 2, 1, 1) == (1, 0)
    assert edges(False, 9, 5, 3, 2, 1, 1) == (1, 1)
    assert edges(False, 8, 8, 3, 1, 2, 2) == (2, 2)
    assert edges(True, 4, 8, 3, 2, 1, 1) == (0, 1)
    assert edges(False, 1, 2, 9, 1, 1, 5) == (2, 2)
