"""The model that chooses CUTLASS kernels: what it must prefer, and what bounds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm

from byoc_cudnn.backends.cutlass.check import ARCHS, Options
from byoc_cudnn.backends.cutlass.kernels import candidates
from byoc_cudnn.backends.cutlass.model import (
    MACHINES,
    MOST_WORKSPACE,
    choose,
    machine_of,
    predict,
    ranked,
    shares,
    slice_counts,
)
from relay_wgrad.problem import ConvKind, ConvProblem

F16 = "layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
LAYER = f"n=64 c=256 h=28 w=28 k=256 r=3 s=3 pad=1,1,1,1 {F16}"


def problem(line: str) -> ConvProblem:
    return ConvProblem.parse(line)


def area(line: str, **options: Any) -> int:
    tile = choose(problem(line), (), Options(**options), 90).kernel.tile
    return tile.m * tile.n


def test_much_work_takes_large_tiles_and_little_small_ones() -> None:
    assert area(f"fprop {LAYER}") >= 128 * 128
    assert area(f"fprop n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1,1,1,1 {F16}") == 64 * 64


def test_no_tile_is_far_wider_than_the_result() -> None:
    """64 filters leave half of a tile of 128 empty."""
    line = f"fprop n=64 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {F16}"
    assert choose(problem(line), (), Options(), 90).kernel.tile.n == 64


@pytest.mark.parametrize("kind", list(ConvKind))
def test_expectations_grow_with_the_batch(kind: ConvKind) -> None:
    p = problem(f"{kind.value} {LAYER}")
    for kernel in candidates(p, (), Options()):
        times = [predict(replace(p, n=n), kernel, 1, MACHINES[90]) for n in (8, 64, 512)]
        assert times == sorted(times)
        assert times[2] > 4 * times[1]


def test_a_last_wave_costs_a_whole_one() -> None:
    """One block more than fits is the step from one wave to two."""
    kernel = candidates(problem(f"fprop {LAYER}"), (), Options())[0]  # 256x128, one on each SM
    assert (kernel.tile.m, kernel.tile.n) == (256, 128)
    sms = MACHINES[80].sms

    def cycles(blocks: int) -> float:
        line = f"fprop n={blocks} c=256 h=16 w=16 k=128 r=3 s=3 pad=1,1,1,1 {F16}"
        return predict(problem(line), kernel, 1, MACHINES[80])

    assert cycles(1) == cycles(sms) < cycles(sms + 1) == cycles(2 * sms)


def test_slices_where_the_result_is_small_and_the_sum_long() -> None:
    small = problem(f"wgrad n=256 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {F16}")
    large = problem(f"wgrad n=1 c=1024 h=7 w=7 k=1024 r=3 s=3 pad=1,1,1,1 {F16}")
    assert choose(small, (), Options(), 90).slices >= 16
    assert choose(large, (), Options(), 90).slices == 1
    for kind in ("fprop", "dgrad"):
        assert choose(problem(f"{kind} {LAYER}"), (), Options()).slices == 1


@pytest.mark.parametrize("split", [1, 7, 256])
def test_slices_that_are_asked_for(split: int) -> None:
    p = problem(f"wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {F16}")
    assert choose(p, (), Options(split_k=split)).slices == split


@pytest.mark.parametrize("split", [None, 256])
def test_slices_fit_the_workspace(split: int | None) -> None:
    for c in (64, 512, 2048):
        p = problem(f"wgrad n=256 c={c} h=14 w=14 k={c} r=3 s=3 pad=1,1,1,1 {F16}")
        options = Options(split_k=split)
        for kernel in candidates(p, (), options):
            for slices in slice_counts(p, kernel, options):
                assert slices == 1 or slices * 4 * c * c * 9 <= MOST_WORKSPACE


@pytest.mark.parametrize("arch", ARCHS)
def test_every_gpu_has_a_kernel_that_fits_it(arch: int) -> None:
    for kind in ConvKind:
        for dtype in ("f16/f16/f16", "f32/f32/f32"):
            p = problem(f"{kind.value} {LAYER}".replace("f16/f16/f16", dtype))
            choice = choose(p, (), Options(arch=arch))
            assert choice.kernel.shared_bytes <= MACHINES[arch].shared_bytes
            assert choice.kernel.sm <= arch


HOPPER_OPTIONS = Options(arch=90, wgmma=True)
LAYERS = [
    f"n=256 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {F16}",
    f"n=256 c=512 h=14 w=14 k=512 r=3 s=3 stride=2,2 pad=1,1,1,1 {F16}",
    f"n=256 c=256 h=14 w=14 k=1024 r=1 s=1 {F16}",
    f"n=256 c=512 h=28 w=28 k=1024 r=1 s=1 stride=2,2 {F16}",
]


@pytest.mark.parametrize("kind", [kind.value for kind in ConvKind])
@pytest.mark.parametrize("layer", LAYERS)
def test_hopper_does_large_layers_itself(kind: str, layer: str) -> None:
    """Its own instructions are twice as fast; what waits for memory is as fast with either."""
    best, *_ = ranked(problem(f"{kind} {layer}"), (), HOPPER_OPTIONS)
    assert best.kernel.sm == 90
    assert best.cycles <= choose(problem(f"{kind} {layer}"), (), Options(), 90).cycles


def test_hopper_takes_large_tiles_for_much_work() -> None:
    for kind in ConvKind:
        tile = choose(problem(f"{kind.value} {LAYER}"), (), HOPPER_OPTIONS).kernel.tile
        assert tile.m * tile.n >= 128 * 128


def test_pixels_that_no_tap_meets_are_not_read() -> None:
    """A quarter of the data, then; a data gradient writes zeros there."""
    line = f"n=256 c=256 h=56 w=56 k=512 r=1 s=1 stride=2,2 {F16}"
    for kind, whole in (("fprop", False), ("wgrad", False), ("dgrad", True)):
        p = problem(f"{kind} {line}")
        floor = p.bytes / (16 * MACHINES[90].sms)
        assert (choose(p, (), HOPPER_OPTIONS).cycles >= floor) is whole


def test_slices_fill_whole_waves_of_blocks_that_stay() -> None:
    p = problem(f"wgrad {LAYERS[0]}")
    (kernel,) = (
        k for k in candidates(p, (), HOPPER_OPTIONS)
        if k.sm == 90 and (k.tile.m, k.tile.n) == (64, 64)
    )  # fmt: skip
    counts = slice_counts(p, kernel, HOPPER_OPTIONS)
    assert 132 // 9 in counts  # a tile for each tap
    assert 2 * 132 // 9 in counts
    assert {1, 2, 4, 8, 16} <= set(counts)
    assert counts == sorted(set(counts))
    assert slice_counts(p, kernel, replace(HOPPER_OPTIONS, split_k=5)) == [5]


@pytest.mark.parametrize(
    ("tiles", "slices", "expected"),
    [
        (144, 1, False),  # no slices at all
        (44, 3, False),  # one wave of them
        (144, 2, True),  # a tile meets two shares at most
        (67, 2, False),  # or three,
        (67, 3, True),
        (45, 3, False),  # or four
        (45, 4, True),
    ],
)
def test_when_blocks_get_equal_shares(tiles: int, slices: int, expected: bool) -> None:
    assert shares(tiles, 196, slices, 132) is expected


def test_few_channels_take_tiles_of_several_taps() -> None:
    assert choose(problem(f"wgrad {LAYERS[0]}"), (), HOPPER_OPTIONS).kernel.tile.taps > 1


def test_hopper_kernels_get_slower_with_the_batch() -> None:
    for kind in ConvKind:
        p = problem(f"{kind.value} {LAYER}")
        for kernel in candidates(p, (), HOPPER_OPTIONS):
            times = [predict(replace(p, n=n), kernel, 1, MACHINES[90]) for n in (8, 64, 512)]
            assert times == sorted(times)
            assert times[2] > 4 * times[1]


def test_groups_run_one_after_another() -> None:
    line = f"wgrad n=8 c=64 h=28 w=28 k=128 r=3 s=3 pad=1,1,1,1 {{}} {F16}"
    one, four = problem(line.format("")), problem(line.format("").replace("c=64", "c=256"))
    four = replace(four, k=512, groups=4)
    single, whole = choose(one, (), Options()), choose(four, (), Options())
    assert (whole.kernel, whole.slices) == (single.kernel, single.slices)
    assert whole.cycles > 4 * single.cycles


def test_a_newer_gpu_counts_as_the_newest_known() -> None:
    assert machine_of(100) is MACHINES[90]
    assert machine_of(87) is MACHINES[86]
    assert machine_of(70) is MACHINES[75]


def test_symbolic_sizes_are_assumed() -> None:
    n, h, w = (tvm.tirx.Var(name, "int64") for name in "nhw")
    p = problem(f"wgrad {LAYER}")
    choice = choose(replace(p, n=n, h=h, w=w), (), Options(), 90)
    assert choice == choose(replace(p, n=32, h=56, w=56), (), Options(), 90)


def test_the_choice_is_the_same_every_time() -> None:
    p = problem(f"wgrad {LAYER}")
    assert choose(p, (), Options()) == choose(p, (), Options())
