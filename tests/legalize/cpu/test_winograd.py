"""Winograd kernels against PyTorch in float64, into outputs full of NaN, at sizes of every kind."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.target import Target

from legalize import cpu
from legalize.cpu.machine import WINOGRAD, machine
from legalize.cpu.winograd import algorithm as winograd
from legalize.cpu.winograd import kernels as winograd_kernels
from legalize.cpu.winograd import weights as winograd_weights
from legalize.cpu.winograd import wgrad as winograd_wgrad
from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.program import compiled_functions
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.problems import (
    poisoned,
    random_operands,
    relative_error,
    tolerance,
    torch_reference,
)

TARGET = cpu.host_target(allow_winograd=True)
# The transforms' own rounding: what the documentation promises, and what PyTorch's users accept.
ERROR = 1e-5


def run(problem: ConvProblem, target: Target = TARGET) -> float:
    """Relative error of the kernel."""
    kernel = tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    a, b = random_operands(problem, np.random.default_rng(0))
    out = tvm.runtime.tensor(poisoned(problem))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    return relative_error(out.numpy(), torch_reference(problem, a, b))


def functions(problem: ConvProblem, target: Target) -> str:
    return str(cpu.prim_func(problem, target).script())


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd wherever the algebra allows, however small the problem."""
    monkeypatch.setattr(winograd, "pays", lambda problem, m, in_tasks: winograd.applies(problem))


EDGES = """
n=1 c=1 h=1 w=1 k=1 pad=1,1,1,1
n=1 c=1 h=3 w=3 k=1
n=2 c=16 h=1 w=7 k=16 pad=1,1,1,1
n=1 c=17 h=13 w=11 k=37 pad=1,1,1,1
n=3 c=32 h=8 w=8 k=48 pad=0,0,0,0 layout=NHWC/HWIO/NHWC
n=2 c=16 h=9 w=6 k=32 pad=0,2,1,0 layout=NHWC/OHWI/NHWC
n=2 c=5 h=4 w=5 k=6 pad=4,3,5,6
n=2 c=31 h=7 w=19 k=16 pad=1,1,1,1 layout=CHWN/IHWO/NCHW
n=2 c=24 h=6 w=6 k=40 pad=1,1,1,1 dtype=f16/f16/f16
n=2 c=32 h=6 w=6 k=32 pad=1,1,1,1 layout=NHWC/HWIO/NHWC dtype=bf16/f32/f16
n=5 c=64 h=14 w=14 k=64 pad=1,1,1,1 layout=NHWC/HWIO/NHWC
"""
CASES = [
    ConvProblem.parse(f"{kind.value} r=3 s=3 {line}")
    for line in EDGES.strip().splitlines()
    for kind in ConvKind
]


@pytest.mark.parametrize("kind", ConvKind)
@pytest.mark.parametrize(
    "sizes",
    ["n=2 c=128 h=14 w=19 k=128 pad=1,1,1,1", "n=2 c=128 h=8 w=12 k=128 pad=1,1,1,1",
     "n=1 c=128 h=68 w=60 k=128 pad=0,2,1,0", "n=4 c=512 h=7 w=7 k=512 pad=1,1,1,1",
     "n=1 c=128 d=4 h=8 w=14 k=128 t=3 pad=1,1,1,1,1,1"],
)  # fmt: skip
def test_transforms_that_are_compiled_apart(sizes: str, kind: ConvKind, registered: None) -> None:
    """Windows within an image and at its borders, all of whose results exist and that have less;
    planes off a volume; tasks that transform their own weights."""
    problem = ConvProblem.parse(f"{kind.value} r=3 s=3 {sizes}")
    kernel = cpu.prim_func(problem, TARGET)
    assert "winograd_evaluate_B" in kernel.script()
    module = tvm.IRModule({"kernel": kernel})
    made = compiled_functions(module, TARGET, DiskCache())["kernel"]
    a, b = random_operands(problem, np.random.default_rng(0))
    out = tvm.runtime.tensor(poisoned(problem))
    made(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    assert relative_error(out.numpy(), torch_reference(problem, a, b)) < ERROR


def test_few_channels_have_them_written_out() -> None:
    problem = ConvProblem.parse("fprop r=3 s=3 n=4 c=64 h=56 w=56 k=64 pad=1,1,1,1")
    text = functions(problem, TARGET)
    assert "points" in text
    assert "winograd_" not in text


VOLUMES = """
n=2 c=32 d=7 h=17 w=16 k=48 t=3 pad=2,1,1,2,1,1 dil=2,1,1 layout=NDHWC/OIDHW/NDHWC
n=2 c=16 d=3 h=9 w=6 k=32 t=3 pad=1,1,1,1,1,1 layout=NDHWC/DHWIO/NDHWC
n=3 c=17 d=4 h=5 w=7 k=37 t=3 pad=0,0,2,2,1,0
n=1 c=48 d=9 h=13 w=11 k=16 t=2 pad=1,1,1,0,1,1 layout=NDHWC/ODHWI/NCDHW
n=1 c=1 d=1 h=1 w=1 k=1 t=3 pad=1,1,1,1,1,1
n=2 c=8 d=2 h=4 w=5 k=6 t=5 pad=4,3,5,4,4,6
n=2 c=24 d=5 h=6 w=6 k=40 t=3 pad=3,1,1,0,1,1 dtype=f16/f32/bf16
n=4 c=64 d=4 h=4 w=4 k=64 t=3 pad=1,1,1,1,1,1 layout=NDHWC/OIDHW/NDHWC
"""
OF_VOLUMES = [
    ConvProblem.parse(f"{kind.value} r=3 s=3 {line}")
    for line in VOLUMES.strip().splitlines()
    for kind in ConvKind
]


@pytest.mark.share(8)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("problem", OF_VOLUMES, ids=str)
def test_volumes(problem: ConvProblem) -> None:
    assert cpu.kernel(problem, TARGET).name.startswith("depth as taps, Winograd")
    assert run(problem) <= tolerance(problem) + ERROR


@pytest.mark.longer_cases(
    "fprop n=2 c=24 h=6 w=6 k=40",
    "fprop n=2 c=31 h=7 w=19 k=16",
    "fprop n=2 c=16 h=9 w=6 k=32",
    "dgrad n=2 c=24 h=6 w=6 k=40",
    "dgrad n=2 c=31 h=7 w=19 k=16",
    "dgrad n=2 c=16 h=9 w=6 k=32",
    "wgrad n=2 c=24 h=6 w=6 k=40",
    "wgrad n=2 c=31 h=7 w=19 k=16",
    "wgrad n=2 c=16 h=9 w=6 k=32",
)
@pytest.mark.share(11)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("problem", CASES, ids=str)
def test_edges(problem: ConvProblem) -> None:
    assert run(problem) <= tolerance(problem) + ERROR


@pytest.mark.share(2)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("problem", CASES[-3:] + OF_VOLUMES[3:6] + OF_VOLUMES[-3:], ids=str)
def test_many_chunks(problem: ConvProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and weights a little at a time, the last chunk not full."""
    for name in ("_TOTAL", "_MOST_CHUNK"):
        monkeypatch.setattr(winograd_kernels, name, 1 << 19)
    assert run(problem) <= tolerance(problem) + ERROR


MANY_CORES = Target(
    {"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 16, "keys": ["cpu", WINOGRAD]}
)


def test_even_tasks_for_many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 channels are two blocks of four slices: less than 16 cores, so slices are halved."""
    target = MANY_CORES
    monkeypatch.setattr(winograd_wgrad, "pays", lambda problem, m: False)
    problem = ConvProblem.parse("wgrad n=8 c=64 h=28 w=28 k=64 r=3 s=3 pad=1,1,1,1")
    lanes = machine(target).lanes("float32")
    tasks = 64 * 64 // lanes // (2 * lanes) * 2
    assert f"T.parallel(T.int64({tasks}))" in functions(problem, target)
    # 392 tiles are 14 pieces of 28, or 16 of 25: one for each core.
    line = "fprop n=8 c=128 h=28 w=28 k=128 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC"
    assert "T.parallel(T.int64(16))" in functions(ConvProblem.parse(line), target)


@pytest.mark.share(7)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", [ConvKind.FPROP, ConvKind.DGRAD], ids=lambda kind: kind.value)
@pytest.mark.parametrize(
    "line",
    [
        "n=1 c=64 h=1 w=1 k=64 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
        "n=3 c=128 h=9 w=11 k=192 pad=1,1,1,1 layout=NHWC/OHWI/NHWC",
        "n=2 c=192 h=8 w=5 k=64 pad=0,2,1,0 layout=NHWC/OIHW/NHWC",
        "n=2 c=64 h=5 w=6 k=64 pad=1,1,1,1",
        "n=2 c=64 d=5 h=7 w=4 k=128 t=3 pad=1,1,1,1,1,1 layout=NDHWC/ODHWI/NDHWC",
        "n=1 c=128 d=4 h=5 w=9 k=64 t=2 pad=2,0,2,1,1,0 dil=2,1,1",
    ],
)
def test_weights_transformed_in_tasks(
    line: str, kind: ConvKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd_weights, "pays", lambda problem, m: True)
    problem = ConvProblem.parse(f"{kind.value} r=3 s=3 {line}")
    assert run(problem) <= tolerance(problem) + ERROR


@pytest.mark.share(4)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", [ConvKind.FPROP, ConvKind.DGRAD], ids=lambda kind: kind.value)
@pytest.mark.parametrize(("c", "k", "parts"), [(64, 64, 1), (128, 192, 2), (192, 128, 2)])
@pytest.mark.parametrize(
    "line",
    ["n=3 h=9 w=11 pad=1,1,1,1 layout=NHWC/HWIO/NHWC", "n=2 h=14 w=14 pad=0,2,1,0"],
)
def test_pieces_whose_tasks_transform_weights(
    line: str, c: int, k: int, parts: int, kind: ConvKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some channels of them at a time, of some blocks of channels."""
    monkeypatch.setattr(winograd_weights, "pays", lambda problem, m: False)
    best_cut = winograd_kernels.best_cut
    problem = ConvProblem.parse(f"{kind.value} r=3 s=3 c={c} k={k} {line}")
    length = 64 if problem.canonical_shape(problem.roles[0])[1] % 128 else 128

    def owning(*given: Any) -> winograd_kernels.Cut:
        return best_cut(*given)._replace(owns=True, length=length, parts=parts)

    monkeypatch.setattr(winograd_kernels, "best_cut", owning)
    assert cpu.kernel(problem, TARGET).name == "Winograd"
    assert run(problem) <= tolerance(problem) + ERROR


def test_many_cores_transform_their_own_weights() -> None:
    """Where the sum has whole parts of channels; a few cores read them from each other's caches."""
    line = "fprop n=8 c=256 h=14 w=14 k=256 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC"
    problem, m = ConvProblem.parse(line), replace(machine(MANY_CORES), l2_bytes=2 << 20)
    for given, cores, owns in (
        (problem, 16, True), (problem, 2, False), (replace(problem, c=272), 16, False),
    ):  # fmt: skip
        cut = winograd_kernels.best_cut(given, replace(m, cores=cores), 8, 8)
        assert cut.owns == owns
        assert cut.length == (64 if owns else given.c)


@pytest.mark.share(4)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("cores", [1, 3, 16])
@pytest.mark.parametrize(
    "line",
    [
        "n=1 c=1 h=1 w=1 k=1 pad=1,1,1,1",
        "n=2 c=16 h=1 w=7 k=16 pad=1,1,1,1",
        "n=3 c=40 h=30 w=21 k=80 pad=0,2,1,0 layout=NHWC/HWIO/NHWC",
        "n=5 c=64 h=14 w=14 k=64 pad=1,1,1,1 layout=NHWC/OHWI/NHWC",
        "n=6 c=50 h=19 w=33 k=37 pad=1,1,1,1",
        "n=2 c=24 h=6 w=6 k=40 pad=4,3,5,6 dtype=f16/f32/bf16",
        "n=2 c=96 h=28 w=28 k=90 pad=1,1,1,1 layout=NHWC/HWIO/NHWC",
    ],
)
def test_wgrad_in_tasks(line: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that are a part's only one and that are not, the last of fewer tiles; blocks of
    filters and slices of channels that are not full; images that are copied some at a time."""
    cut = winograd_wgrad.best_cut  # of which there is none with half a MiB for these weights
    monkeypatch.setattr(
        winograd_wgrad, "best_cut",
        lambda problem, m, images: cut(problem, replace(m, l2_bytes=2 << 20), images),
    )  # fmt: skip
    monkeypatch.setattr(winograd_wgrad, "pays", lambda problem, m: problem.rank == 2)
    monkeypatch.setattr(winograd_wgrad, "MOST", 20)
    target = cpu.host_target(cores, allow_winograd=True)
    problem = ConvProblem.parse(f"wgrad r=3 s=3 {line}")
    assert cpu.kernel(problem, target).name == "Winograd wgrad in tasks"
    assert run(problem, target) <= tolerance(problem) + ERROR


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("n=8 c=64 h=56 w=56 k=64", (False, True, True)),
        ("n=8 c=64 h=112 w=112 k=96", (False, True, True)),
        ("n=8 c=128 h=28 w=28 k=128", (False, False, False)),
    ],
)
def test_tasks_of_their_own_are_for_many_cores(line: str, taken: tuple[bool, ...]) -> None:
    """And for few weights."""
    problem = ConvProblem.parse(f"wgrad {line} r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC")
    m = replace(machine(MANY_CORES), l2_bytes=2 << 20)
    found = tuple(winograd_wgrad.pays(problem, replace(m, cores=cores)) for cores in (1, 2, 16))
    assert found == taken


def test_cuts_of_tasks_are_even_and_held() -> None:
    """64 channels, 1,568 tiles: a piece for each of 16 cores if its level-2 cache is large, or
    pieces of which each core has as many; few tiles are for fewer tasks."""
    problem = ConvProblem.parse("wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1")
    for size, cut in ((4, (98, 16)), (2, (49, 16)), (1, (20, 16))):
        m = replace(machine(MANY_CORES), l2_bytes=size << 20)
        assert winograd_wgrad.best_cut(problem, m, 8) == winograd_wgrad.Cut(*cut)
    small = replace(problem, h=14, w=14)
    assert winograd_wgrad.best_cut(small, m, 8) == winograd_wgrad.Cut(13, 10)
    assert not winograd_wgrad.pays(small, m)


@pytest.mark.parametrize("feature", ["+avx2", "+avx512f"])
def test_weights_are_transformed_in_tasks_where_there_are_many(feature: str) -> None:
    target = Target({"kind": "llvm", "mattr": [feature, "+fma"], "num-cores": 2})
    line = "n=8 c=512 h=7 w=7 k=512 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC"
    for kind in (ConvKind.FPROP, ConvKind.DGRAD):
        problem = ConvProblem.parse(f"{kind.value} {line}")
        assert winograd_weights.pays(problem, machine(target))
        assert not winograd_weights.pays(replace(problem, n=128), machine(target))
        assert not winograd_weights.pays(replace(problem, c=80), machine(target))
        # Copies of all images at once, or weights would be transformed again.
        outside = replace(problem, data_layout="NCHW", grad_layout="NCHW")
        assert winograd_weights.pays(outside, machine(target))
        assert winograd_weights.pays(replace(problem, n=16), machine(target))
        assert not winograd_weights.pays(replace(outside, n=16), machine(target))
        # Tasks have a block of channels each: with 12 cores some would have one more than others.
        assert not winograd_weights.pays(problem, replace(machine(target), cores=12))
        assert winograd_weights.pays(problem, replace(machine(target), cores=16))


def test_weights_that_pass_through_memory_are_not_worth_it_for_few_pixels() -> None:
    target = Target(
        {"kind": "llvm", "mattr": ["+avx512f"], "num-cores": 2, "keys": ["cpu", WINOGRAD]}
    )
    problem = ConvProblem.parse("fprop n=8 c=512 h=7 w=7 k=512 r=3 s=3 pad=1,1,1,1")
    assert winograd.pays(problem, machine(target), True)
    assert not winograd.pays(problem, machine(target), False)
    assert winograd.pays(replace(problem, h=14, w=14), machine(target), False)


@pytest.mark.share(7)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize("mattr", [[], ["+avx2", "+fma"], ["+avx512f"]], ids=str)
def test_targets(mattr: list[str], kind: ConvKind) -> None:
    config: dict[str, Any] = {
        "kind": "llvm", "num-cores": 3, "mattr": mattr, "keys": ["cpu", WINOGRAD],
    }  # fmt: skip
    if not {x[1:] for x in mattr} <= set(tvm.target.codegen.llvm_get_cpu_features(TARGET)):
        pytest.skip("this host lacks some of the target's instructions")
    problem = ConvProblem.parse(f"{kind.value} n=2 c=20 h=9 w=11 k=24 r=3 s=3 pad=1,1,1,1")
    assert run(problem, Target(config)) <= tolerance(problem) + ERROR


@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
def test_taken_where_it_is_worth_it_and_allowed(kind: ConvKind) -> None:
    large = f"{kind.value} n=8 c=64 h=28 w=28 k=64 r=3 s=3 pad=1,1,1,1"
    allowed, not_allowed = (cpu.host_target(2, allow_winograd=x) for x in (True, False))
    texts = [
        functions(ConvProblem.parse(line), target)
        for line, target in (
            (large, allowed), (large, not_allowed), (f"{large} dtype=f64/f64/f64", allowed),
            (f"{large} stride=2,2", allowed), (f"{large} dil=2,2", allowed),
            (f"{large} groups=2", allowed), (large.replace("c=64", "c=3"), allowed),
        )
    ]  # fmt: skip
    # The buffers of transformed operands tell the algorithm.
    assert ["points" in text for text in texts] == [True] + [False] * 6


@pytest.mark.longer("a layer of ResNet-50")
def test_float32_is_more_exact_than_promised() -> None:
    """On a ResNet-50 layer: a few times the error of a direct sum, far below the promise."""
    line = "n=1 c=256 h=14 w=14 k=256 r=3 s=3 pad=1,1,1,1 layout=NHWC/HWIO/NHWC"
    for kind in ConvKind:
        assert run(ConvProblem.parse(f"{kind.value} {line}")) < 2e-6


def test_matrices_are_a_trilinear_algorithm() -> None:
    """Exactly: the sum of products equals the tile's trilinear form, coefficient by coefficient."""
    a, b, g = winograd.A, winograd.B, winograd.G
    for y in range(winograd.TILE):
        for w in range(winograd.TAPS):
            for x in range(winograd.SIZE):
                total = sum(
                    (a[e][y] * b[e][x] * g[e][w] for e in range(winograd.SIZE)), Fraction(0)
                )
                assert total == (x == y + w)


def test_aarch64_is_generated() -> None:
    target = Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 4, "keys": ["cpu", WINOGRAD]}
    )
    assert machine(target).registers == 32
    for kind in ConvKind:
        line = f"{kind.value} n=4 c=32 h=28 w=28 k=32 r=3 s=3 pad=1,1,1,1"
        assert "points" in functions(ConvProblem.parse(line), target)
