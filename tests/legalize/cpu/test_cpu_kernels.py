"""CPU kernels against PyTorch in float64, on random data, into outputs full of NaN."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import relax as R
from tvm.target import Target

from legalize import cpu
from legalize.cpu.direct.product import as_product
from legalize.cpu.emitters import axes, memory
from legalize.cpu.machine import machine
from relay_wgrad.cores import configure_threads, usable_cores
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.cpu_kernels import TARGET, error_of, run
from tests.support.problems import (
    poisoned,
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)

# Everything after the kind; each line is run for fprop, dgrad and wgrad.
EDGES = """
n=1 c=1 h=1 w=1 k=1 r=1 s=1
n=1 c=1 h=6 w=5 k=1 r=3 s=3 pad=1,1,1,1
n=2 c=64 h=5 w=5 k=1 r=1 s=1
n=2 c=1 h=9 w=9 k=40 r=3 s=3
n=3 c=17 h=7 w=11 k=13 r=3 s=5 pad=1,2,1,2
n=8 c=48 h=7 w=7 k=96 r=1 s=1 layout=NHWC/OHWI/NHWC
n=2 c=32 h=8 w=8 k=32 r=1 s=1
n=1 c=32 h=4 w=2 k=32 r=3 s=3 dil=1,1 pad=1,1,1,1
n=2 c=48 h=7 w=7 k=80 r=1 s=1 stride=2,2
n=2 c=12 h=6 w=6 k=8 r=1 s=1 pad=1,0,2,1
n=3 c=261 h=7 w=5 k=40 r=1 s=1 layout=NHWC/HWIO/NHWC
n=2 c=256 h=9 w=9 k=72 r=1 s=1 stride=2,1 layout=NHWC/OHWI/NHWC
n=3 c=256 h=5 w=7 k=270 r=1 s=1 layout=NHWC/HWIO/NHWC
n=3 c=131 h=9 w=11 k=137 r=3 s=3 stride=2,2 pad=1,1,1,1 layout=NHWC/OHWI/NHWC
n=2 c=270 h=9 w=11 k=24 r=2 s=3 stride=2,3 layout=NHWC/HWIO/NHWC
n=2 c=512 h=8 w=8 k=64 r=2 s=2 stride=2,2 groups=2
n=2 c=3 h=23 w=20 k=32 r=7 s=7 stride=2,2 pad=3,3,3,3 layout=NHWC/HWIO/NHWC
n=2 c=3 h=23 w=20 k=32 r=7 s=7 stride=2,2 pad=3,3,3,3
n=2 c=2 h=9 w=40 k=20 r=1 s=31 pad=0,15,0,15
n=2 c=8 h=13 w=14 k=16 r=2 s=2 stride=3,3
n=2 c=32 h=1 w=9 k=32 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=32 layout=NHWC/HWIO/NHWC
n=2 c=48 h=2 w=3 k=96 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=48
n=2 c=8 h=14 w=13 k=16 r=3 s=3 stride=2,3 pad=1,1,1,1
n=2 c=8 h=17 w=13 k=16 r=3 s=3 stride=2,2 pad=2,2,2,2 dil=2,2
n=2 c=8 h=15 w=13 k=16 r=3 s=2 stride=3,2 pad=1,0,2,3 dil=2,3
n=2 c=5 h=4 w=4 k=6 r=3 s=3 pad=5,4,6,3
n=3 c=48 h=4 w=4 k=20 r=4 s=4 layout=NHWC/HWIO/NHWC
n=3 c=12 h=3 w=5 k=40 r=3 s=5 stride=2,3
n=3 c=24 h=3 w=3 k=17 r=3 s=3 layout=NHWC/OHWI/NCHW dtype=f16/f32/bf16
n=16 c=8 h=2 w=3 k=24 r=2 s=3 layout=CHWN/IHWO/CHWN
n=3 c=8 h=2 w=3 k=24 r=2 s=3 layout=NCHW/HWIO/NHWC
n=2 c=32 h=14 w=14 k=40 r=5 s=3 pad=4,1,4,1 dil=2,1 layout=NHWC/HWIO/NHWC
n=1 c=16 h=8 w=8 k=16 r=3 s=3 pad=0,2,1,0 groups=2
n=2 c=32 h=8 w=6 k=64 r=3 s=3 pad=1,1,1,1 groups=4 layout=NHWC/HWIO/NHWC
n=2 c=12 h=8 w=6 k=20 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=4
n=2 c=33 h=9 w=10 k=33 r=3 s=3 pad=1,1,1,1 groups=33
n=2 c=16 h=9 w=41 k=16 r=3 s=3 pad=4,3,2,5 groups=16 layout=NHWC/HWIO/NHWC
n=2 c=16 h=11 w=10 k=16 r=3 s=5 stride=2,3 pad=3,4,2,1 groups=16 layout=NHWC/HWIO/NHWC
n=1 c=7 h=1 w=1 k=7 r=3 s=3 pad=1,1,1,1 groups=7
n=2 c=32 h=9 w=10 k=32 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=32 layout=NHWC/HWOI/NHWC
n=2 c=10 h=9 w=30 k=20 r=5 s=7 pad=2,3,2,3 groups=10
n=2 c=10 h=9 w=9 k=20 r=3 s=3 stride=2,2 dil=2,2 groups=10 layout=NHWC/HWIO/NHWC
n=17 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=CHWN/OIHW/CHWN
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=NCHW/HWIO/NHWC
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=CHWN/OHWI/NCHW
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=NHWC/OIHW/CHWN dtype=f16/f16/f32
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 dtype=f16/f16/f16
n=2 c=40 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 dtype=bf16/bf16/bf16
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC dtype=bf16/f32/f16
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 dtype=f64/f64/f64
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype=f32/f64/bf16
"""
CASES = [
    ConvProblem.parse(f"{kind.value} {line}")
    for line in EDGES.strip().splitlines()
    for kind in ConvKind
]


@pytest.mark.share(17)
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_edges(problem: ConvProblem) -> None:
    assert run(problem) <= tolerance(problem)


@pytest.mark.share(17)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("seed", range(16))
def test_random(kind: ConvKind, seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), kind, max_flop=2e6)
    assert run(problem) <= tolerance(problem), problem.repro()


# Lines of which copies of some activation are made.
PARTS = """
n=6 c=17 h=7 w=11 k=13 r=3 s=5 pad=1,2,1,2
n=5 c=32 h=8 w=8 k=32 r=1 s=1 layout=NCWH/OIHW/NCWH
n=6 c=3 h=23 w=20 k=32 r=7 s=7 stride=2,2 pad=3,3,3,3 layout=NHWC/HWIO/NHWC dtype=f16/f16/f16
n=4 c=24 h=9 w=9 k=72 r=1 s=1 stride=2,1
n=6 c=40 h=9 w=10 k=40 r=3 s=3 pad=1,1,1,1 groups=40
n=6 c=10 h=9 w=30 k=20 r=5 s=7 pad=2,3,2,3 groups=10
n=6 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1 layout=CHWN/OHWI/NCHW
n=6 c=64 h=9 w=9 k=64 r=3 s=3 pad=1,1,1,1
"""


def extra_bytes(function: tvm.tirx.PrimFunc) -> int:
    """Bytes of memory that a kernel takes beyond operands and result, for one thread."""
    total = 0

    def visit(node: tvm.tirx.AllocBuffer) -> None:
        nonlocal total
        if node.buffer.scope() == "global":
            bytes_ = np.dtype(str(node.buffer.dtype)).itemsize
            total += math.prod(int(x) for x in node.buffer.shape) * bytes_

    tvm_ffi.structural_walk(function.body, [(tvm.tirx.AllocBuffer, visit)], order="post")
    return total


@pytest.mark.share(17)
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("line", PARTS.strip().splitlines())
def test_images_are_copied_in_parts(
    line: str, kind: ConvKind, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ConvProblem.parse(f"{kind.value} {line}")
    whole = extra_bytes(cpu.prim_func(problem, TARGET))
    roles = (role for role in problem.roles if role != "weight")
    copies = sum(4 * math.prod(problem.shape(role)) for role in roles)
    monkeypatch.setattr(memory, "MOST_COPIED", copies * images // problem.n)
    if images == 1:
        assert extra_bytes(cpu.prim_func(problem, TARGET)) < whole
    assert run(problem) <= tolerance(problem)


@pytest.mark.parametrize("kind", [ConvKind.FPROP, ConvKind.DGRAD], ids=lambda kind: kind.value)
def test_pixels_that_come_from_memory(kind: ConvKind) -> None:
    """What is asked for ahead of time is never more than asked for."""
    for line in (
        "n=2 c=40 h=5 w=6 k=104 r=1 s=1 layout=NHWC/HWIO/NHWC",
        "n=2 c=17 h=5 w=6 k=72 r=1 s=1 layout=NCHW/HWIO/NHWC dtype=f64/f64/f64",
    ):
        problem = ConvProblem.parse(f"{kind.value} {line}")
        assert "prefetch" in cpu.prim_func(problem, TARGET).script()
        assert run(problem) <= tolerance(problem)


def test_weights_are_copied_by_many_tasks_or_by_one() -> None:
    """A 1x1 kernel's weights are one run of lanes; a few of them are not worth other threads."""

    def tasks(line: str) -> list[int]:
        text = cpu.with_tasks(ConvProblem.parse(line), cpu.host_target(2)).func.script()
        return [int(x) for x in re.findall(r"T\.parallel\(T\.int64\((\d+)\)", text)]

    last = "r=1 s=1 layout=NHWC/HWIO/NHWC"
    copy, _ = tasks(f"dgrad n=2 c=512 h=7 w=7 k=64 {last}")
    assert copy == 32
    assert len(tasks(f"fprop n=2 c=16 h=7 w=7 k=64 {last}")) == 1


def test_a_sum_is_split_before_channels_are_cut_thin() -> None:
    """Tasks of eight channels would read a fraction of every line of all pixels."""
    target = Target({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 16})
    for line, is_split in (
        ("n=16 c=64 h=56 w=56 k=64", True), ("n=16 c=512 h=7 w=7 k=512", False),
    ):  # fmt: skip
        problem = ConvProblem.parse(f"wgrad {line} r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC")
        made = cpu.kernel(problem, target)
        assert made.name == "direct wgrad"
        assert ("parts" in made.func.script()) == is_split


def test_rows_of_taps_off_the_image_are_left_out() -> None:
    """One pixel spread over 4 x 4: each row of the result meets one row of taps, not four."""
    spread = axes.Axis(True, size=1, out=4, kernel=4, stride=1, dilation=1, before=0)
    assert spread.rows_of_taps(1) == 4
    assert spread.rows_of_taps(4) == 16
    padded = axes.Axis(False, size=7, out=7, kernel=3, stride=1, dilation=1, before=1)
    assert padded.rows_of_taps(1) == 2 + 5 * 3 + 2


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
def test_copies_of_a_symbolic_batch_are_of_some_images(
    kind: ConvKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_COPIED", 40_000)
    n = tvm.tirx.Var("n", "int64")
    for line in ("c=24 h=8 w=9 k=32 r=3 s=3 pad=1,1,1,1", "c=64 h=5 w=6 k=32 r=1 s=1"):
        problem = ConvProblem.parse(f"{kind.value} n=1 {line}")
        kernel = tvm.compile(cpu.prim_func(replace(problem, n=n), TARGET), target=TARGET)["main"]
        for size in (1, 5, 8):
            assert error_of(replace(problem, n=size), kernel) <= tolerance(problem)


# Other instruction sets than the host's own; their code runs here if the host has them all.
TARGETS: list[dict[str, Any]] = [
    {"kind": "llvm"},
    {"kind": "llvm", "mattr": ["+avx2", "+fma"], "num-cores": 3},
    {"kind": "llvm", "mattr": ["+avx512f"], "num-cores": 64},
]


@pytest.mark.share(7)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_targets(target: dict[str, Any], kind: ConvKind) -> None:
    chosen = Target(target)
    needed = {feature[1:] for feature in target.get("mattr", [])}
    if not needed <= set(tvm.target.codegen.llvm_get_cpu_features(TARGET)):
        pytest.skip("this host lacks some of the target's instructions")
    for line in (
        "n=3 c=40 h=9 w=11 k=72 r=3 s=3 stride=2,1 pad=1,1,1,1",
        "n=3 c=20 h=9 w=11 k=20 r=3 s=3 pad=1,1,1,1 groups=20",
    ):
        problem = ConvProblem.parse(f"{kind.value} {line}")
        assert run(problem, chosen) <= tolerance(problem)


def test_aarch64_is_generated() -> None:
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 4})
    assert machine(target).registers == 32
    problem = ConvProblem.parse("wgrad n=1 c=8 h=5 w=5 k=8 r=3 s=3")
    assert cpu.prim_func(problem, target).attrs["tirx.is_scheduled"]


@pytest.mark.share(7)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize(
    "line",
    [
        "c=24 h=8 w=9 k=32 r=3 s=3 stride=2,1 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
        "c=24 h=8 w=9 k=32 r=3 s=3 pad=1,1,1,1",
        "c=24 h=4 w=4 k=32 r=1 s=1",
        "c=6 h=2 w=3 k=20 r=2 s=3",
        "c=24 h=4 w=4 k=24 r=3 s=3 pad=1,1,1,1 groups=24",
        "c=6 h=4 w=4 k=8 r=3 s=3 pad=1,1,1,1 layout=CHWN/OIHW/CHWN",
    ],
)
def test_symbolic_batch(kind: ConvKind, line: str) -> None:
    problem = ConvProblem.parse(f"{kind.value} n=3 {line}")
    n = tvm.tirx.Var("n", "int64")
    kernel = tvm.compile(cpu.prim_func(replace(problem, n=n), TARGET), target=TARGET)["main"]
    for size in (1, 5):
        sized = replace(problem, n=size)
        assert error_of(sized, kernel) <= tolerance(sized)


@pytest.mark.parametrize(
    ("line", "elements"),
    [
        ("n=3 c=5 h=2 w=3 k=4 r=2 s=3", 30),
        ("n=3 c=5 h=2 w=3 k=4 r=2 s=3 stride=2,2 layout=NHWC/HWIO/CHWN", 30),
        ("n=3 c=5 h=2 w=3 k=4 r=2 s=3 layout=NHWC/OIHW/NHWC", 5),  # in another order
        ("n=3 c=5 h=2 w=3 k=4 r=2 s=3 layout=HNWC/HWIO/NHWC", 5),  # no run of memory
        ("n=3 c=5 h=2 w=3 k=4 r=2 s=2", 5),
        ("n=3 c=5 h=2 w=3 k=4 r=2 s=3 pad=1,1,1,1", 5),
        ("n=3 c=6 h=2 w=3 k=4 r=2 s=3 groups=2", 6),
    ],
)
def test_kernels_of_whole_images_are_products(line: str, elements: int) -> None:
    problem = as_product(ConvProblem.parse(f"fprop {line}"))
    assert problem.c == elements
    assert (problem.r == 1) == (elements == 30)


def test_call_tir_through_the_default_pipeline() -> None:
    problem = ConvProblem.parse("fprop n=1 c=4 h=6 w=6 k=8 r=3 s=3 pad=1,1,1,1")
    a, b = random_operands(problem, np.random.default_rng(0))
    bb = relax.BlockBuilder()
    x, w = (
        relax.Var(role, R.Tensor(problem.shape(role), problem.dtype(role)))
        for role in problem.roles[:2]
    )
    with bb.function("main", [x, w]):
        func = bb.add_func(cpu.prim_func(problem, TARGET).without_attr("global_symbol"), "conv")
        y = bb.emit(relax.call_tir(func, [x, w], R.Tensor(problem.shape("grad"), "float32")))
        bb.emit_func_output(y)
    vm = relax.VirtualMachine(tvm.compile(bb.get(), target=TARGET), tvm.cpu())
    got = vm["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy()
    assert relative_error(got, torch_reference(problem, a, b)) <= tolerance(problem)


def test_split_sums_are_reproducible() -> None:
    """One filter, one channel: only the sum over pixels can be split over cores."""
    target = Target({"kind": "llvm", "num-cores": 8})
    problem = ConvProblem.parse("wgrad n=8 c=2 h=16 w=16 k=4 r=1 s=1")
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    a, b = (tvm.runtime.tensor(x) for x in random_operands(problem, np.random.default_rng(0)))
    results = set()
    for _ in range(5):
        out = tvm.runtime.tensor(poisoned(problem))
        kernel(a, b, out)
        results.add(out.numpy().tobytes())
    assert len(results) == 1


def test_refuses_symbolic_channels_and_negative_padding() -> None:
    problem = ConvProblem.parse("fprop n=1 c=4 h=6 w=6 k=8 r=3 s=3")
    with pytest.raises(ValueError, match="static sizes"):
        cpu.prim_func(replace(problem, h=tvm.tirx.Var("h", "int64")), TARGET)
    with pytest.raises(ValueError, match="padding"):
        cpu.prim_func(replace(problem, padding=(-1, 0, 0, 0)), TARGET)


def test_caches_of_this_host() -> None:
    m, other = machine(TARGET), machine(Target({"kind": "llvm", "mcpu": "x86-64"}))
    assert 8 << 10 <= m.l1_ways * m.l1_way_bytes <= 1 << 20
    assert m.l1_ways * m.l1_way_bytes <= m.l2_bytes
    assert m.l1_way_bytes % m.line_bytes == 0
    assert (other.l1_ways, other.l1_way_bytes, other.l2_bytes) == (8, 4096, 1 << 20)


def test_threads() -> None:
    assert configure_threads() >= 1
    assert usable_cores()
    assert int(TARGET.attrs["num-cores"]) == len(usable_cores())


@pytest.mark.share(7)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("groups", [1, 32], ids=["dense", "depthwise"])
@pytest.mark.parametrize("mcpu", ["znver3", "znver4"])
def test_tiles_are_in_registers(mcpu: str, kind: ConvKind, groups: int) -> None:
    """A tile of accumulators that comes from TVM's workspace takes longer to get than to fill."""
    layouts = ("NHWC", "HWIO", "NHWC")
    problem = ConvProblem(
        kind, 2, 32, 16, 16, 32, 3, 3, (2, 2), (1, 1, 1, 1), (1, 1), groups, *layouts
    )
    target = Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 4})
    text = tvm.compile(cpu.prim_func(problem, target), target=target).mod.inspect_source("ll")
    tasks = re.findall(r"^define [^\n]*_parallel_lambda.*?^\}", text, re.M | re.S)
    assert tasks
    for task in tasks:  # only a task's packed operands and weights come from there
        asked = re.findall(r"%(\w+) = \w* ?call ptr %\d+\(", task)
        assert set(asked) <= {"grad_panels_memory", "data_panels_memory", "own_weights_memory"}
        assert len(asked) == task.count("@__TVMBackendAllocWorkspace")
    if mcpu == "znver4":  # with fewer registers, sums and places of a group are on the stack
        assert not any("alloca " in task for task in tasks)
