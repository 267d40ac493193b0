"""What kernels on tensor cores compute, on a device that is the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from byoc_cudnn.backends.cuda_direct.check import check
from byoc_cudnn.backends.cuda_direct.grouped import Shape
from byoc_cudnn.backends.cuda_direct.model import ranked
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.direct_emulated import run, share
from tests.support.grouped_cases import FAMILY_NAMES, KINDS_OF, SPECIAL
from tests.support.special_values import wrong
from tests.support.warps_emulated import Case, cases, together

SEED, COUNT = 11, 3  # problems of a family and kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def _off(folder: Path, found: list[Case]) -> list[str]:
    library = together(folder, [kernel for _, _, kernel in found], races=True)
    shares = [share(library, kernel, p, after) for p, after, kernel in found]
    named = zip(shares, found, strict=True)
    off = [f"{x:.3g} {kernel.name} {p}" for x, (p, _, kernel) in named if not x <= 1]
    races = library.races_found()
    return [*off, f"{races} races"] if races else off


@pytest.mark.share(3)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_random_problems(folder: Path, family: str) -> None:
    assert _off(folder, cases(family, KINDS_OF[family], COUNT, SEED)) == []


@pytest.mark.longer
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_many_random_problems(folder: Path, family: str) -> None:
    assert _off(folder, cases(family, KINDS_OF[family], 30, SEED + 1)) == []


@pytest.mark.longer
def test_special_values(folder: Path) -> None:
    """What is no number reaches the results whose taps read it, and not those of other groups."""
    problems = [
        ConvProblem.parse(f"{kind.value} {line} dtype=f16/f16/f16")
        for line in SPECIAL
        for kind in ConvKind
    ]
    # Some depthwise ones have no kernel on tensor cores.
    first = {
        p: choice.kernel
        for p in problems
        for choice in reversed(ranked(p, (), 90))
        if choice.kernel.family in FAMILY_NAMES
    }
    assert any(k.family == "grouped" and Shape(*k.numbers).merged > 1 for k in first.values())
    library = together(folder, list(first.values()))
    found = []
    for problem, kernel in first.items():
        found += wrong(problem, lambda given, k=kernel, p=problem: run(library, k, p, given))
    assert found == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("c=24 k=24 groups=8", "C=3 and K=3 a group of 8 do not come by 8 channels"),
        ("c=8 k=8 groups=4 h=9 stride=1,2", "strides=(1, 2)"),
        ("c=256 k=256 groups=2", "C=128 and K=128 a group: more than 64 channels"),
        ("c=16 k=16 groups=2 r=9 h=9", "a kernel of 9x3: there are up to 7 taps"),
        ("c=16 k=16 groups=2 dtype=f32/f32/f32", "dtype float32: grouped convolutions are"),
        ("c=16 k=16 groups=2 layout=NCHW/OIHW/NCHW", "layout NCHW: grouped convolutions are"),
        ("c=16 k=16 groups=2 dtype=f16/f16/f32", "float16 to float32: grouped convolutions have"),
        ("c=16 k=16 stride=1,1", ""),
        ("c=64 k=64", "C=64 and K=64, 3x3: no tile fits into a multiprocessor"),
        ("c=128 k=40", "C=128 and K=40: dense ones of few channels have up to 128, together 4096"),
        ("c=120 k=16 stride=2,2", "dense ones of few channels have 1 and 1"),
        ("c=16 k=9", "K=9: there are kernels of up to 8 filters"),
        ("c=20 k=4", "C=20: channels do not come by 8"),
        ("c=136 k=8 r=7 s=7 h=9 w=9", "8 filters of 7x7: more than 160 filters times taps"),
        ("c=3 k=12", "K=12: filters of first layers do not come by 8"),
        ("c=3 k=16 h=9 w=9 dil=2,2", "dilation=(2, 2): first layers have none"),
        ("c=3 k=16 r=17 h=20", "a kernel of 17x3, strides=(1, 1): there are first layers of up to"),
        ("c=3 k=16 pad=40,0,0,0", "padding=(40, 0, 0, 0): of first layers up to 32"),
        ("c=3 k=768 r=16 s=16 h=32 w=32 stride=16,16", "768 filters of 16x16x3: more than shared"),
    ],
)  # fmt: skip
def test_refusals(line: str, reason: str) -> None:
    words = {"n": "2", "h": "5", "w": "5", "r": "3", "s": "3", "layout": "NHWC/OHWI/NHWC",
             "dtype": "f16/f16/f16"}  # fmt: skip
    words.update(word.split("=") for word in line.split())
    text = " ".join(f"{key}={value}" for key, value in words.items())
    decision = check(ConvProblem.parse(f"fprop {text}"), "")
    assert bool(decision) is not bool(reason)
    assert reason in decision.reason


def test_an_images_gradient_is_refused() -> None:
    line = "n=2 c=3 h=9 w=9 k=16 r=3 s=3 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
    assert check(ConvProblem.parse(f"fprop {line}"), "")
    reason = check(ConvProblem.parse(f"dgrad {line}"), "").reason
    assert "C=3: there is no kernel for the gradient of an image" in reason


def test_old_gpus_are_refused() -> None:
    line = "fprop n=2 c=16 h=5 w=5 k=16 r=3 s=3 groups=2 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
    problem = ConvProblem.parse(line)
    assert check(problem, "")
    assert "arch 75: grouped needs 80" in check(problem, "", 75).reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("c=24", "C=24 and K=32: kernels of planes have channels and filters by 32"),
        ("c=96", "fprop of C=96 and K=32: kernels of planes read up to 64 channels"),
        (
            "stride=2,2,2",
            "strides=(2, 2, 2) dilation=(1, 1, 1): kernels of planes have 3x3x3, 1, 1",
        ),
        ("r=1 pad=1,0,1,1,0,1", "taps=(3, 1, 3)"),
        ("pad=3,0,0,0,0,0", "padding=(3, 0, 0, 0, 0, 0): kernels of planes have up to 2"),
        ("dtype=f32/f32/f32", "dtype float32: kernels of planes are in float16 and bfloat16"),
        ("layout=NCDHW/OIDHW/NCDHW", "layouts NCDHW/OIDHW/NCDHW"),
        ("c=3 stride=2,2,1", "strides=(2, 2, 1)"),
        ("c=3 t=1 stride=2,2,2", "one tap in depth, strides=(2, 2, 2)"),
        ("groups=4", "three dimensions: kernels of grouped are of two"),
        ("kind=wgrad h=6", "6x16 pixels: kernels of planes have rows by 4 and columns by 16"),
    ],
)
def test_refusals_of_volumes(line: str, reason: str) -> None:
    words = {"kind": "fprop", "n": "2", "c": "32", "d": "5", "h": "8", "w": "16", "k": "32",
             "t": "3", "r": "3", "s": "3", "pad": "1,1,1,1,1,1", "layout": "NDHWC/ODHWI/NDHWC",
             "dtype": "f16/f16/f16"}  # fmt: skip
    words.update(word.split("=") for word in line.split())
    kind = words.pop("kind")
    text = " ".join(f"{key}={value}" for key, value in words.items())
    decision = check(ConvProblem.parse(f"{kind} {text}"), "")
    assert not decision
    assert reason in decision.reason
