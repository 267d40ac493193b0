"""Kernels that are cut for many cores, whatever runs them, against PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.target import Target

from benchmarks.cpu_tasks import Walk
from legalize import cpu
from relay_wgrad.problem import ConvProblem
from tests.support.problems import (
    poisoned,
    random_operands,
    relative_error,
    tolerance,
    torch_reference,
)


@pytest.mark.parametrize(
    "line",
    [
        "fprop n=1 c=100 h=7 w=9 k=100 r=3 s=3 groups=100 pad=1,1,1,1",
        "dgrad n=2 c=70 h=6 w=5 k=70 r=5 s=5 groups=70 stride=2,2 pad=2,2,2,2",
        "fprop n=1 c=40 h=5 w=5 k=80 r=3 s=3 groups=40",
        "wgrad n=1 c=340 h=9 w=7 k=340 r=5 s=5 groups=340 stride=2,2 pad=2,2,2,2",
        "fprop n=1 c=70 h=14 w=14 k=72 r=1 s=1",
        "dgrad n=1 c=130 h=7 w=7 k=90 r=1 s=1",
        "fprop n=1 c=33 h=11 w=9 k=64 r=1 s=1 layout=NCHW/OIHW/NCHW",
        "fprop n=2 c=500 h=11 w=7 k=80 r=1 s=1",
        "fprop n=2 c=50 h=7 w=7 k=192 r=1 s=1 stride=2,2",
        "fprop n=1 c=2048 h=7 w=7 k=512 r=1 s=1",
        "dgrad n=2 c=96 h=9 w=7 k=200 r=1 s=1 layout=NHWC/OHWI/NHWC",
        "dgrad n=2 c=72 h=9 w=7 k=330 r=3 s=3 pad=1,1,1,1",
        "dgrad n=1 c=112 h=14 w=14 k=700 r=1 s=1",
        "dgrad n=9 c=960 h=14 w=14 k=160 r=1 s=1",
        "dgrad n=2 c=110 h=11 w=7 k=500 r=1 s=1 layout=NCHW/OIHW/NCHW",
        "fprop n=4 c=512 h=14 w=14 k=256 r=1 s=1",
        "dgrad n=8 c=160 h=7 w=7 k=960 r=1 s=1",
        "dgrad n=8 c=24 h=14 w=14 k=480 r=1 s=1",
        "dgrad n=3 c=250 h=9 w=7 k=200 r=3 s=3 stride=2,2 pad=1,1,1,1",
        "fprop n=4 c=300 h=7 w=7 k=200 r=3 s=3 pad=1,1,1,1 layout=NCHW/OIHW/NCHW",
        "fprop n=4 c=300 h=7 w=9 k=200 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC",
        "wgrad n=3 c=70 h=14 w=14 k=40 r=1 s=1",
        "wgrad n=2 c=130 h=15 w=15 k=140 r=3 s=3 stride=2,2 pad=1,1,1,1",
    ],
)
def test_even_tasks_of_many_cores(line: str) -> None:
    """Rows of pixels whose channels are cut, small tiles of products, blocks of channels that are
    filled up, small units of pixels, weights where they are and in copies of blocks."""
    target = cpu.host_target(16)
    layout = "" if "layout" in line else " layout=NHWC/HWIO/NHWC"
    problem = ConvProblem.parse(line + layout)
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    a, b = random_operands(problem, np.random.default_rng(0))
    out = tvm.runtime.tensor(poisoned(problem))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    assert relative_error(out.numpy(), torch_reference(problem, a, b)) <= tolerance(problem)


def test_blocks_of_channels_are_filled_up_for_long_sums() -> None:
    """112 channels are seven vectors: of short sums each a block, of long ones two blocks of four,
    whose tiles of 6 pixels stay in a level-1 cache of 32 KiB."""
    target = Target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})
    line = "fprop n=8 c={} h=14 w=14 k=112 r=1 s=1 layout=NHWC/HWIO/NHWC"
    for channels, tasks in ((128, 98 * 7), (672, 262 * 2)):
        text = cpu.with_tasks(ConvProblem.parse(line.format(channels)), target).func.script()
        assert f"T.parallel(T.int64({tasks}))" in text


def test_weights_of_many_cores_stay_or_are_a_tasks_own() -> None:
    """What one core copies the others read slowly.  Two read copies as fast, 16 registers want
    them, and 2,048 rows of 2 KiB fall on 64 places of a level-2 cache's way of 128 KiB: there, for
    rows that blocks do not divide, and of weights that are transposed each task copies a block,
    unless a task of many that it would be copied for is short."""
    product = "h=7 w=7 r=1 s=1"
    for line, cores, features, copies in (
        (f"fprop c=160 k=960 {product}", 16, "x86-64-v4", []),
        (f"fprop c=160 k=960 {product}", 2, "x86-64-v4", ["weight_core"]),
        (f"fprop c=160 k=960 {product}", 16, "x86-64-v3", ["weight_core"]),
        (f"fprop c=2048 k=512 {product}", 16, "x86-64-v4", ["own_weights"]),
        (f"fprop c=160 k=968 {product}", 16, "x86-64-v4", ["own_weights"]),
        (f"dgrad c=160 k=960 {product}", 16, "x86-64-v4", ["own_weights"]),
        (f"dgrad c=160 k=960 {product}", 2, "x86-64-v4", ["weight_core"]),
        ("dgrad c=64 k=256 h=56 w=56 r=1 s=1", 16, "x86-64-v4", ["weight_core"]),
        ("fprop c=64 k=64 h=56 w=56 r=3 s=3 pad=1,1,1,1", 16, "x86-64-v4", ["weight_core"]),
    ):
        target = Target({"kind": "llvm", "mcpu": features, "num-cores": cores})
        kind, rest = line.split(" ", 1)
        problem = ConvProblem.parse(f"{kind} n=8 {rest} layout=NHWC/HWIO/NHWC")
        text = cpu.with_tasks(problem, target).func.script()
        assert [x for x in ("weight_core", "own_weights") if x in text] == copies, (line, cores)


def test_own_copies_keep_all_cores_at_work() -> None:
    """Of five blocks each is copied for some parts of the pixels, few enough to be worth it."""
    target = Target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 16})
    for line in ("c=160 h=7 w=7 k=960", "c=320 h=7 w=7 k=1280", "c=1024 h=14 w=14 k=256"):
        problem = ConvProblem.parse(f"dgrad n=8 {line} r=1 s=1 layout=NHWC/HWIO/NHWC")
        walk = Walk(cpu.with_tasks(problem, target).func, 16, False)
        assert walk.balance > 0.8, line
        assert len(walk.work) == 1, line


def test_a_core_copies_the_weights_that_it_reads_and_few_others() -> None:
    """Of 0.4 MB of copies each core reads a block or two for all of 0.3 MB of pixels, and of 1.5 MB
    of pixels and 0.2 of weights its own pixels."""
    target = Target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 16})
    for line, most in (("c=640 h=7 w=7 k=160", 0.35e6), ("c=120 h=28 w=28 k=240", 0.65e6)):
        problem = ConvProblem.parse(f"dgrad n=8 {line} r=1 s=1 layout=NHWC/HWIO/NHWC")
        walk = Walk(cpu.with_tasks(problem, target).func, 16, True)
        assert walk.read < most, line
