"""What the model expects of our own convolution kernels, against what an H200 took."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import byoc_cudnn
from byoc_cudnn.backends.cuda_direct.families import FAMILIES
from byoc_cudnn.backends.cuda_direct.family import of_planes
from byoc_cudnn.backends.cuda_direct.faster import (
    BEGIN,
    COPY,
    CUDNN,
    MARGIN,
    TIMES,
    Shape,
    faster,
    microseconds,
    shape_of,
    slower,
)
from byoc_cudnn.backends.cuda_direct.kernels import PREFIX, Kernel
from byoc_cudnn.backends.cuda_direct.model import ranked
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.partition_cases import problem_module

MEASURED = (
    "depthwise", "grouped", "first", "first_bf16", "depthwise_bf16", "grouped_bf16",
    "volume_layers",
)  # fmt: skip
RESULTS = Path(__file__).parents[4] / "benchmarks/results"


def _measured(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"gpu_{name}_h200.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "near", "worst", "mean", "rms"),
    [
        ("depthwise", 46, 1.1, 1.02, 0.1),
        ("grouped", 49, 1.17, 1.02, 0.2),
        ("first", 15, 1.07, 1.025, 0.1),
    ],
)
def test_the_first_choice_is_nearly_the_best(
    name: str, near: int, worst: float, mean: float, rms: float
) -> None:
    """Among the kernels that were measured, of which all is expected that is still considered."""
    lost, errors = [], []
    for row in _measured(name)["rows"]:
        problem = ConvProblem.parse(row["problem"])
        considered = {choice.kernel for choice in ranked(problem, (), 90)}
        times = {Kernel.parse(f"{PREFIX}_{text}"): us for text, us in row["kernels"]}
        times = {kernel: us for kernel, us in times.items() if kernel in considered}
        took = list(times.values())
        said = [FAMILIES[k.family].predict(problem, k.numbers, 90) for k in times]
        errors += [math.log(a / b) for a, b in zip(said, took, strict=True)]
        lost.append(took[said.index(min(said))] / min(took))
    assert sum(ratio <= 1.05 for ratio in lost) >= near
    assert max(lost) < worst
    assert math.exp(sum(map(math.log, lost)) / len(lost)) < mean
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < rms


def test_cudnns_times_are_those_measured() -> None:
    """The least of the sizes, so that none of them is thought to be slower than it is."""
    sizes: dict[tuple[int, str, Shape], list[tuple[float, float, float]]] = {}
    for name in MEASURED:
        for row in _measured(name)["rows"]:
            p = of_planes(ConvProblem.parse(row["problem"]))
            moved = (row["torch_us"] - BEGIN[p.kind]) / (p.bytes / COPY)
            found = (p.bytes / 1e6, moved, row["us"] / row["torch_us"])
            sizes.setdefault((p.rank, p.data_dtype, shape_of(p)), []).append(found)
    known = {
        (rank, dtype, shape): row
        for rank, dtypes in TIMES.items()
        for dtype, rows in dtypes.items()
        for shape, row in rows.items()
    }
    assert sizes.keys() == known.keys()
    for key, (moved, share, least) in known.items():
        from_on = [size for size in sizes[key] if size[0] >= least]
        fewest = min(size[1] for size in from_on)
        assert 0.96 * fewest < moved <= fewest + 0.02
        assert share == pytest.approx(max(size[2] for size in from_on), abs=0.01)
        assert all(size[2] > MARGIN for size in sizes[key] if size not in from_on)


def test_all_that_was_faster_is_taken() -> None:
    """But for shapes of which one size was slower."""
    for name in MEASURED:
        for row in _measured(name)["rows"]:
            p = of_planes(ConvProblem.parse(row["problem"]))
            _, share, least = TIMES[p.rank][p.data_dtype][shape_of(p)]
            expected = share <= MARGIN and p.bytes >= least * 1e6
            assert bool(faster(p, "", 90)) is expected, row["problem"]


def test_depthwise_layers_that_were_slower_are_refused() -> None:
    """By name and ratio, of all 222 of batch 64 and 256; for that nothing else is refused."""
    for row in _measured("depthwise_batches")["rows"]:
        p, ratio = ConvProblem.parse(row["problem"]), row["us"] / row["torch_us"]
        if ratio > MARGIN:
            assert slower(p) == pytest.approx(ratio, abs=0.006), row["problem"]
            assert "of cuDNN's time, measured" in faster(p, "").reason
        else:
            assert slower(p) is None, row["problem"]
    p = ConvProblem.parse(LINE.format("wgrad").replace("n=64", "n=256 ").replace("144", "96"))
    assert slower(p) is None


LINE = (
    "{} n=64 c=144 h=56 w=56 k=144 r=3 s=3 pad=1,1,1,1 groups=144 layout=NHWC/OHWI/NHWC"
    " dtype=f16/f16/f16"
)


SIZES = LINE.removeprefix("{} ").split(" layout")[0]
SMALL = "n=32 c=8 h=28 w=28 k=8 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=8"


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        ("fprop", (), ""),
        ("dgrad", ("n=64", "n=256"), ""),
        ("wgrad", (), ""),
        ("wgrad", ("groups=144", "groups=9"), "1.00 of cuDNN's time"),
        ("fprop", ("h=56 w=56", "h=28 w=28 stride=2,2"), ""),
        ("fprop", (SIZES, SMALL), "µs are expected, and"),
        ("fprop", ("f16/f16/f16", "f32/f32/f32"), "measured is float16"),
        ("fprop", ("NHWC/OHWI/NHWC", "NCHW/OIHW/NCHW"), "µs are expected, and"),
        ("fprop", ("r=3 s=3", "r=9 s=9"), "fprop of 9x9, strides (1, 1)"),
        ("fprop", ("groups=144", "groups=12"), "not known to be faster"),
        ("dgrad", ("groups=144", "groups=144 dil=2,2"), "µs are expected, and"),
    ],
)
def test_what_is_known_to_be_faster(kind: str, changed: tuple[str, str], reason: str) -> None:
    line = LINE.replace(*changed) if changed else LINE
    decision = faster(ConvProblem.parse(line.format(kind)), "")
    assert bool(decision) is not bool(reason)
    assert reason in decision.reason


def test_what_is_faster_from_a_size_on(monkeypatch: pytest.MonkeyPatch) -> None:
    p = ConvProblem.parse(LINE.format("fprop"))
    monkeypatch.setitem(CUDNN, shape_of(p), (1.52, 0.8, 192))
    assert "known to be faster from 192 MB on" in faster(p, "").reason


NARROW = "{} n=64 c=24 h=56 w=56 k=32 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        *((kind, (), "") for kind in ConvKind),
        (ConvKind.FPROP, ("f16/f16/f16", "bf16/bf16/bf16"), ""),
        (ConvKind.DGRAD, ("h=56 w=56 k=32", "h=28 w=28 k=64"), "of one group, of 50176 pixels"),
        (ConvKind.FPROP, ("n=64", "n=8"), "of one group, of 25088 pixels"),
        (ConvKind.FPROP, ("h=56 w=56", "h=240 w=17"), "rows of 17 were not measured"),
        (ConvKind.FPROP, ("c=24", "c=56"), "C=56 and K=32 of one group was not measured"),
        (ConvKind.FPROP, ("k=32", "k=72"), "C=24 and K=72 of one group was not measured"),
        (ConvKind.FPROP, ("k=32", "k=32 dil=2,2"), "dilation (2, 2), C=24 and K=32"),
        (ConvKind.WGRAD, ("dtype=f16/f16/f16", "dtype=f16/f32/f16"), "measured is float16"),
    ],
)
def test_which_narrow_ones_are_known_to_be_faster(
    kind: ConvKind, changed: tuple[str, str], reason: str
) -> None:
    line = NARROW.format(kind.value)
    decision = faster(ConvProblem.parse(line.replace(*changed) if changed else line), "")
    assert bool(decision) is not bool(reason)
    assert reason in decision.reason


STEM = (
    "{} n=64 c=3 h=224 w=224 k=64 r=3 s=3 stride=1,1 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    " dtype=f16/f16/f16"
)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ((), ""),
        (("n=64", "n=256"), ""),
        (("k=64", "k=72"), "C=3 and K=72 of 1 groups was not measured in float16"),
        (("c=3", "c=4"), "C=4 and K=64 of 1 groups was not measured in float16"),
        (("h=224 w=224", "h=299 w=299"), "rows of 299x3 were not measured"),
        (("f16/f16/f16", "f16/f32/f16"), "float16"),
    ],
)
def test_first_layers_that_are_faster(changed: tuple[str, str], reason: str) -> None:
    line = STEM.replace(*changed) if changed else STEM
    problems = [ConvProblem.parse(line.format(kind)) for kind in ("fprop", "wgrad")]
    for p in problems:
        decision = faster(p, "")
        assert bool(decision) is not bool(reason)
        assert re.search(reason, decision.reason)
    took = microseconds(problems[0])
    assert (took is None) is bool(reason)
    if took is not None:
        assert took == sum(ranked(p, (), 90)[0].us for p in problems)


def test_groups_are_no_first_layers() -> None:
    line = STEM.replace("c=3", "c=24").replace("k=64", "k=512 groups=8").format("fprop")
    assert (ConvProblem.parse(line).c // 8, shape_of(ConvProblem.parse(line))[1]) == (3, 3)
    assert shape_of(ConvProblem.parse(STEM.format("fprop")))[1] == -3


@pytest.mark.usefixtures("registered")
def test_cudnn_gets_what_is_not() -> None:
    both, options = ("cuda_direct", "cudnn"), {"faster": True}
    for kind, groups, backend in (("wgrad", 144, "cuda_direct"), ("wgrad", 9, "cudnn")):
        line = LINE.replace("groups=144", f"groups={groups}")
        module = problem_module(ConvProblem.parse(line.format(kind)))
        report = byoc_cudnn.partition(module, both, strict=True, cuda_direct=options)[1]
        assert report.rows() == {f"{backend}.{kind}": 1}
