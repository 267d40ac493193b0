"""bfloat16 on AMX's tiles, emulated, and on what this CPU has of them and of AVX512_BF16."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target
from tvm.tirx.script import builder as T
from tvm_ffi.structural import structural_walk

import relay_wgrad
from legalize import cpu
from legalize.cpu.emitters import memory
from legalize.cpu.emitters.loops import int64, local
from legalize.cpu.machine import (
    Machine,
    bfloat16_units,
    host_target,
    machine,
    tiles_are_permitted,
)
from legalize.cpu.matrix import affine as matrix
from legalize.cpu.matrix import tiles
from legalize.cpu.matrix.work_split import Work, best_split, run_length
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.fuzz.special import runner
from tests.support.compiled import virtual_machine
from tests.support.cpu_kernels import error_of
from tests.support.emulated_tiles import Emulated
from tests.support.problems import random_problem, relative_error, tolerance, torch_reference
from tests.support.special_values import wrong

# Everything after the kind.
LINES = """
n=1 c=1 h=1 w=1 k=1 r=1 s=1
n=2 c=64 h=9 w=9 k=64 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC
n=2 c=64 h=9 w=9 k=64 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC
n=3 c=40 h=7 w=5 k=48 r=1 s=1 layout=NHWC/HWIO/NHWC
n=2 c=64 h=9 w=20 k=72 r=3 s=3 stride=2,2 pad=1,1,1,1 layout=NHWC/OHWI/NHWC
n=1 c=3 h=23 w=20 k=32 r=7 s=7 stride=2,2 pad=3,3,3,3 layout=NHWC/HWIO/NHWC
n=3 c=5 h=11 w=13 k=17 r=3 s=3 pad=1,2,1,0 stride=2,1 layout=NCHW/OHWI/NCHW
n=2 c=24 h=5 w=6 k=40 r=3 s=3 pad=1,1,1,1
n=2 c=17 h=7 w=11 k=13 r=3 s=5 pad=1,2,1,2
n=2 c=12 h=6 w=6 k=8 r=1 s=1 pad=1,0,2,1
n=2 c=62 h=13 w=9 k=22 r=1 s=1 pad=1,0,1,0 layout=NHWC/OHWI/NHWC
n=2 c=48 h=7 w=7 k=80 r=1 s=1 stride=2,2 layout=NHWC/OHWI/NHWC
n=2 c=8 h=15 w=13 k=16 r=3 s=2 stride=3,2 pad=1,0,2,3 dil=2,3
n=2 c=26 h=11 w=6 k=30 r=3 s=3 stride=3,2 pad=0,5,1,4 dil=1,2
n=2 c=32 h=8 w=6 k=64 r=3 s=3 pad=1,1,1,1 groups=4 layout=NHWC/HWIO/NHWC
n=2 c=33 h=8 w=37 k=64 r=2 s=3 pad=1,1,1,1 layout=CHWN/IHWO/CHWN
""".strip().splitlines()
SPECIAL = (
    "n=2 c=5 h=9 w=8 k=18 r=3 s=2 stride=2,3 pad=1,0,2,1 dil=2,1",
    "n=2 c=16 h=8 w=7 k=16 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
    "n=3 c=16 h=7 w=5 k=16 r=1 s=1 layout=NHWC/HWIO/NHWC",
    "n=2 c=5 h=8 w=7 k=6 r=3 s=3 stride=1,2 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
)
CASES = [
    ConvProblem.parse(f"{kind.value} {line} dtype=bf16/bf16/bf16")
    for line in LINES
    for kind in ConvKind
]
# Of the sums without rounding.
CASES += [
    replace(CASES[3 * 2], grad_dtype="float32"), replace(CASES[3 * 3 + 1], data_dtype="float32"),
    replace(CASES[3 * 7 + 2], weight_dtype="float32"),
]  # fmt: skip
BF16 = ml_dtypes.bfloat16
HOST = machine(host_target())


def given(monkeypatch: pytest.MonkeyPatch, **facts: bool) -> None:
    """Kernels are for this host with other facts."""

    def changed(target: Target) -> Machine:
        return replace(machine(target), **facts)

    monkeypatch.setattr(cpu, "machine", changed)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's kernels take tiles, which are loops over memory, and what comes with them."""
    monkeypatch.setattr(tiles, "TILES", Emulated())
    given(monkeypatch, has_tiles=True, has_bfloat16=True)


def error(problem: ConvProblem, target: Target, name: str) -> float:
    made = cpu.kernel(problem, target)
    assert made.name == name + " wgrad" * (problem.kind is ConvKind.WGRAD)
    return error_of(problem, tvm.compile(made.func, target=target)["main"])


@pytest.mark.usefixtures("emulated")
@pytest.mark.share(6)
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_emulated(problem: ConvProblem) -> None:
    assert error(problem, host_target(2), "tiles") <= tolerance(problem)


# Rows of pixels of all images, of one, of a strided kernel; phases; groups; channels outside.
IN_RUNS = (
    "fprop n=2 c=24 h=9 w=11 k=80 r=1 s=1 layout=NHWC/OHWI/NHWC",
    "fprop n=3 c=40 h=7 w=23 k=72 r=1 s=1 layout=NCHW/OIHW/NHWC",
    "fprop n=2 c=17 h=20 w=9 k=70 r=3 s=3 stride=2,1 pad=1,1,1,1 layout=NHWC/OHWI/NHWC",
    "dgrad n=2 c=68 h=11 w=10 k=16 r=3 s=2 stride=2,2 pad=1,1,1,1 layout=NHWC/OHWI/NHWC",
    "fprop n=1 c=32 h=9 w=20 k=160 r=1 s=1 groups=2 layout=NHWC/OHWI/NHWC",
    "dgrad n=2 c=72 h=5 w=21 k=16 r=1 s=1",
)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("run", [1, 3])
@pytest.mark.parametrize("line", IN_RUNS)
def test_runs_of_steps(line: str, run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a task's steps leave over, beside what asks for lines ahead."""
    problem = ConvProblem.parse(f"{line} dtype=bf16/bf16/bf16")
    monkeypatch.setattr(matrix, "run_length", lambda *_: run)
    given(monkeypatch, has_tiles=True, has_bfloat16=True, l2_bytes=8 << 10)
    assert error(problem, host_target(2), "tiles") <= tolerance(problem)


def of_zeros(problem: ConvProblem, cores: int) -> np.ndarray:
    """What a kernel leaves in a result of zeros, of operands that are zeros."""
    target = host_target(cores)
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    tensors = [
        tvm.runtime.tensor(np.zeros(problem.shape(role), np.dtype(problem.dtype(role))))
        for role in problem.roles
    ]
    kernel(*tensors)
    return np.asarray(tensors[2].numpy(), "float32")


class Numbered(Emulated):
    """Sums are the number of the step and the block that they are stored by."""

    def configure(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        super().configure(rows, columns)
        self.number = local("number", 1, "float32")
        T.buffer_store(self.number, tirx.const(0, "float32"), [int64(0)])

    def store(self, tile: int, buffer: Any, at: Any, step: Any) -> None:
        if tile == 0:
            T.buffer_store(self.number, self.number[int64(0)] + 1, [int64(0)])
        self._each(tile, 4, lambda m, n: self._put(tile, m, n, self.number[int64(0)]))
        super().store(tile, buffer, at, step)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("run", [0, 1, 2])
def test_a_run_has_all_channels_before_the_next(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 bytes of a row at a time would be written far apart from each other."""
    problem = ConvProblem.parse("fprop n=2 c=8 h=8 w=16 k=80 r=1 s=1 layout=NHWC/OHWI/NHWC"
                                " dtype=bf16/bf16/f32")  # fmt: skip
    monkeypatch.setattr(tiles, "TILES", Numbered())
    monkeypatch.setattr(matrix, "run_length", lambda *_: run)
    steps, blocks = 8, 3
    got = of_zeros(problem, 1).reshape(steps, 32, 80)[:, 0, [0, 32, 64]]
    of_run = run or steps
    step, block = np.indices((steps, blocks))
    want = step // of_run * of_run * blocks + block * of_run + step % of_run + 1
    np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("run", [1, 3])
@pytest.mark.parametrize("l2_bytes", [8 << 10, 1 << 20])
def test_a_run_asks_for_the_next_ones_lines(
    run: int, l2_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of a result once, but those of the first run, unless caches hold it."""
    problem = ConvProblem.parse("fprop n=2 c=8 h=8 w=16 k=96 r=1 s=1 layout=NHWC/OHWI/NHWC"
                                " dtype=bf16/bf16/bf16")  # fmt: skip

    def mark(buffer: Any, at: Any, *, write: bool, level: int) -> None:
        if write and level == 1:
            with T.If(at < buffer.shape[0]), T.Then():
                T.buffer_store(buffer, buffer[int64(at)] + tirx.const(1, "bfloat16"), [int64(at)])

    monkeypatch.setattr(matrix, "prefetch", mark)
    monkeypatch.setattr(matrix, "run_length", lambda *_: run)
    monkeypatch.setattr(tiles, "put", lambda *_: T.evaluate(0))
    given(monkeypatch, has_tiles=True, has_bfloat16=True, l2_bytes=l2_bytes)
    steps, line = 8, 32
    got = of_zeros(problem, 1).reshape(steps, -1, line)
    want = np.zeros_like(got)
    if l2_bytes < got.size * 2:
        want[run:, :, 0] = 1
    # After the last run comes the last tile again.
    np.testing.assert_array_equal(got[:-1], want[:-1])


@pytest.mark.skipif(not HOST.has_tiles, reason="this CPU has no AMX, or Linux refuses it")
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_tiles_of_this_cpu(problem: ConvProblem) -> None:
    assert error(problem, host_target(), "tiles") <= tolerance(problem)


@pytest.mark.skipif(not HOST.has_bfloat16, reason="this CPU has no AVX512_BF16")
@pytest.mark.share(8)
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_pairs_of_this_cpu(problem: ConvProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, has_tiles=False)
    assert error(problem, host_target(2), "pairs") <= tolerance(problem)


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", range(24))
def test_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any layouts, strides, dilations and groups; images copied one at a time, or all."""
    monkeypatch.setattr(tiles, "TILES", Emulated())
    rng = np.random.default_rng(seed)
    has_tiles = not HOST.has_bfloat16 or seed % 2 == 0
    given(monkeypatch, has_tiles=has_tiles)
    monkeypatch.setattr(memory, "MOST_COPIED", int(rng.choice([1, 32 << 20])))
    kind = list(ConvKind)[seed % 3]
    problem = random_problem(rng, kind, dtypes=("bfloat16",), max_flop=1e6)
    target = host_target(int(rng.choice([1, 2, 16])))
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    assert error_of(problem, kernel) <= tolerance(problem), problem.repro()


@pytest.mark.skipif(not HOST.has_bfloat16, reason="this CPU has no AVX512_BF16")
@pytest.mark.share(3)
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("has_tiles", [False, True], ids=["pairs", "tiles"])
def test_special_values(kind: ConvKind, has_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is off the image is multiplied by nothing but zeros of the data's border."""
    monkeypatch.setattr(tiles, "TILES", Emulated())
    given(monkeypatch, has_tiles=has_tiles)
    for line in SPECIAL:
        problem = ConvProblem.parse(f"{kind.value} {line} dtype=bf16/bf16/bf16")
        target = host_target(1)
        kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
        assert wrong(problem, runner(kernel, problem)) == []


@pytest.mark.parametrize("cpu_name", ["sapphirerapids", "cooperlake", "znver4"])
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
def test_llvm_writes_the_instructions(kind: ConvKind, cpu_name: str) -> None:
    problem = ConvProblem.parse(f"{kind.value} {LINES[1]} dtype=bf16/bf16/bf16")
    target = Target({"kind": "llvm", "mcpu": cpu_name, "num-cores": 4})
    code = tvm.compile(cpu.prim_func(problem, target), target=target).mod.inspect_source("asm")
    tile = ("ldtilecfg", "tdpbf16ps", "tileloadd", "tilestored", "tilerelease", "syscall")
    for word in tile if cpu_name == "sapphirerapids" else ("vdpbf16ps",):
        assert word in code
    assert "vfmadd" not in code
    assert "callq\trelay_wgrad" not in code  # the function between is a part of what calls it


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        # `asked`: whether lines are written.
        ("fprop n=8 c=24 h=56 w=56 k=144 r=1 s=1", {False, True}),
        ("fprop n=1 c=24 h=14 w=14 k=144 r=1 s=1", set()),  # a cache has them
        ("dgrad n=8 c=96 h=56 w=56 k=64 r=1 s=1", {True}),  # 22 lines of pixels at a time
        ("dgrad n=8 c=96 h=112 w=112 k=16 r=1 s=1", {False, True}),
        ("fprop n=8 c=24 h=56 w=56 k=144 r=1 s=1 groups=2", set()),  # lines of half a pixel
        ("fprop n=8 c=24 h=56 w=56 k=144 r=3 s=3 pad=1,1,1,1", set()),
    ],
)
def test_what_is_asked_for(line: str, asked: set[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ConvProblem.parse(f"{line} layout=NHWC/OHWI/NHWC dtype=bf16/bf16/bf16")
    found: set[bool] = set()
    monkeypatch.setattr(matrix, "prefetch", lambda *_, write, level: found.add(write))
    cpu.prim_func(problem, Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 16}))
    assert found == asked


@pytest.mark.parametrize("channels", [64, 48, 40], ids=str)
def test_sums_leave_tiles_in_whole_lines(channels: int) -> None:
    """A row of a tile is a cache line of the stack, and two are rounded by one instruction, those
    of the last channels too."""
    problem = ConvProblem.parse(f"fprop n=2 c=32 h=9 w=8 k={channels} r=1 s=1 layout=NHWC/OHWI/NHWC"
                                " dtype=bf16/bf16/bf16")  # fmt: skip
    target = Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 1})
    code = tvm.compile(cpu.prim_func(problem, target), target=target).mod.inspect_source("asm")
    loads = re.findall(r"(vmov[au]ps)\t\S*\(\S*\), %zmm", code)
    assert len(loads) >= 16
    assert set(loads) == {"vmovaps"}
    assert "vpmovdw" not in code  # what rounding takes without AVX512_BF16


def test_copies_are_of_tiles_of_16() -> None:
    """What a kernel's compiling takes goes with these: 64 shuffles of 16 lanes for each copy."""
    problem = ConvProblem.parse("fprop n=2 c=64 h=9 w=9 k=64 r=3 s=3 dtype=bf16/bf16/bf16")
    found: list[tirx.Shuffle] = []
    target = Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 4})
    structural_walk(cpu.prim_func(problem, target).body, (tirx.Shuffle, found.append))
    assert [len(shuffle.indices) for shuffle in found] == [16] * 64 * 2


class Asking(Emulated):
    """Emulated, but for the request to Linux."""

    permit = tiles.Tiles.permit


XEON = Machine(64, 32, 16, l2_bytes=2 << 20)


@pytest.mark.parametrize(
    ("work", "split"),
    [
        # 512 channels on 7x7 pixels: the weights are what each core must not read all of.
        (Work(1, 28, 16, 9216, 14336, 294912), (1, 16)),
        # 64 channels on 56x56: the pixels are.
        (Work(1, 896, 2, 1152, 3584, 36864), (16, 1)),
        # 128 groups are tasks themselves.
        (Work(128, 4, 1, 100, 1000, 1000), (1, 1)),
        # Pixels of a task stay in half of a level-2 cache.
        (Work(1, 3200, 2, 128, 1 << 14, 4096), (64, 1)),
    ],
)
def test_tasks_are_cut_for_the_slowest_core(work: Work, split: tuple[int, int]) -> None:
    assert best_split(work, XEON) == split


@pytest.mark.parametrize(
    ("work", "run"),
    [
        # 16->96 and 24->144: all weights stay in the level-1 cache.
        (Work(1, 3136, 3, 128, 1024, 1024), 1),
        (Work(1, 784, 5, 128, 1536, 1536), 1),
        # 64->256 and 128->512: a block of them, beside a run's pixels.
        (Work(1, 784, 8, 128, 4096, 4096), 4),
        (Work(1, 196, 16, 256, 8192, 8192), 2),
        # 256->1024: a step's; 512->2048: not even these.
        (Work(1, 49, 32, 512, 16384, 16384), 1),
        (Work(1, 13, 64, 1024, 32768, 32768), 0),
        # 3x3 of 64 channels: weights are what is read.
        (Work(1, 784, 2, 1152, 4096, 36864), 0),
    ],
)
def test_runs_stay_in_the_level_1_cache(work: Work, run: int) -> None:
    xeon = Machine(64, 32, 1, l2_bytes=2 << 20, l1_ways=12)
    assert run_length(work, 32 * 32 * 2, xeon) == run


@pytest.mark.parametrize(
    ("name", "words"),
    [("sapphirerapids", "AMX's tiles"), ("znver4", "AVX512_BF16's pairs"),
     ("haswell", "none, it is converted to float32")],
)  # fmt: skip
def test_what_a_target_has_is_said(name: str, words: str) -> None:
    assert bfloat16_units(Target({"kind": "llvm", "mcpu": name})) == words


@pytest.mark.usefixtures("emulated")
def test_a_kernel_asks_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may load a library: what is refused there raises, and kills nobody."""
    monkeypatch.setattr(tiles, "TILES", Asking())
    if tiles_are_permitted():
        assert error(CASES[3], host_target(2), "tiles") <= tolerance(CASES[3])
        return
    with pytest.raises(RuntimeError, match="Linux refuses the state of AMX's tiles"):
        error(CASES[3], host_target(2), "tiles")


@pytest.mark.usefixtures("emulated", "registered")
def test_a_compiled_module() -> None:
    """Through the whole pipeline for CPUs, whose passes for bfloat16 leave kernels alone."""
    shapes = {"x": (2, 9, 8, 32), "w": (24, 3, 3, 32)}
    given = [np.random.default_rng(0).standard_normal(s).astype(BF16) for s in shapes.values()]
    x, w = (relax.Var(n, relax.TensorType(s, "bfloat16")) for n, s in shapes.items())
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            call = relay_wgrad.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")
            out = bb.emit_output(relax.op.nn.relu(bb.emit(call)))
        bb.emit_func_output(out)
    vm = virtual_machine(bb.get(), host_target(2), cpu_pipeline())
    got = vm["main"](*map(tvm.runtime.tensor, given)).numpy().astype("float64")
    problem = ConvProblem.parse(
        "fprop n=2 c=32 h=9 w=8 k=24 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype=bf16/bf16/bf16"
    )
    want = np.maximum(torch_reference(problem, *given), 0)
    assert relative_error(got, want) <= tolerance(problem)
