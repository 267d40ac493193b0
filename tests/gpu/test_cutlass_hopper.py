"""CUTLASS's kernels of Hopper's own instructions on a device, against PyTorch in float64.

nvcc builds some hundred where the test runs, each in half a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from byoc_cudnn.backends.cutlass import check as cutlass
from byoc_cudnn.backends.cutlass import codegen as code
from byoc_cudnn.backends.cutlass.hopper import HOPPER
from byoc_cudnn.backends.cutlass.kernels import HOPPER_TILES, TAP_TILES, candidates
from byoc_cudnn.backends.cutlass.model import Choice
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu.cutlass_runner import (
    EPILOGUES,
    F16,
    SEED,
    load,
    needs_hopper,
    region_of,
    wrong_ones,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]

HALVES = "n=3 c=304 h=21 w=22 k=280 {} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
# The three forms of Hopper's kernels; sizes are no multiples of a tile's.
FORMS = {
    "implicit": ("r=3 s=3 pad=1,1,1,1", "r=3 s=2 pad=0,2,1,3 dil=2,1"),
    "plain": ("r=1 s=1",),
    "strided": (
        "r=3 s=3 pad=1,1,1,1 stride=2,2", "r=1 s=1 stride=2,2", "r=1 s=1 stride=2,3 pad=2,3,2,1",
        "r=1 s=3 pad=0,1,0,2 stride=3,2", "r=5 s=4 pad=2,1,1,2 stride=2,3",
    ),
}  # fmt: skip


def hopper_lines(form: str, kind: ConvKind) -> list[str]:
    return [f"{kind.value} {HALVES.format(shape)}" for shape in FORMS[form]]


def hopper_regions(
    lines: list[str],
    which: int,
    monkeypatch: pytest.MonkeyPatch,
    epilogue: tuple[str, ...] = (),
    slices: int = 3,
) -> list[Region]:
    """The model is not asked: all are done in one tile; a wgrad's sum in some slices."""

    def choose(p: ConvProblem, epilogue: tuple[str, ...], options: Any, arch: Any) -> Choice:
        found = [k for k in candidates(p, epilogue, options) if k.algorithm in HOPPER]
        return Choice(found[which], slices if p.kind is ConvKind.WGRAD else 1, 0)

    monkeypatch.setattr(code, "choose", choose)
    return [
        region_of(f"f{i}", ConvProblem.parse(line), epilogue, arch=90, wgmma=True)
        for i, line in enumerate(lines)
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", range(len(HOPPER_TILES)))
def test_every_hopper_tile(
    which: int, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kinds take turns, since nvcc takes half a minute for each kernel."""
    needs_hopper()
    kind = ConvKind.DGRAD if form == "strided" else list(ConvKind)[(which + len(form)) % 3]
    regions = hopper_regions(hopper_lines(form, kind), which, monkeypatch)
    assert wrong_ones(regions, tmp_path, SEED) == []


@pytest.mark.parametrize("which", range(len(TAP_TILES)))
def test_tiles_of_several_taps(which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_hopper()
    shapes = (*FORMS["implicit"], "r=1 s=5 stride=2,3 pad=0,1,0,3")
    lines = [f"wgrad {HALVES.format(shape)}" for shape in shapes]
    lines += [line.replace("c=304", "c=64").replace("k=280", "k=72") for line in lines]
    regions = hopper_regions(lines, len(HOPPER_TILES) + which, monkeypatch)
    assert wrong_ones(regions, tmp_path, SEED) == []


@pytest.mark.parametrize("kind", list(ConvKind))
def test_hopper_dtypes(kind: ConvKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_hopper()
    given = {
        ConvKind.FPROP: ("bf16/bf16/bf16", "f16/f16/f32"),
        ConvKind.DGRAD: ("bf16/bf16/bf16", "f32/f16/f16"),
        ConvKind.WGRAD: ("bf16/bf16/bf16", "f16/f32/f16"),
    }[kind]
    (line,) = hopper_lines("plain", kind)
    lines = [line.replace("f16/f16/f16", dtypes) for dtypes in given]
    regions = hopper_regions(lines, 6, monkeypatch)
    assert wrong_ones(regions, tmp_path, SEED) == []


@pytest.mark.parametrize(("kind", "epilogue"), EPILOGUES)
def test_hopper_epilogues(
    kind: ConvKind, epilogue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With zeros between the pixels of a strided dgrad, which get a bias or a residual too."""
    needs_hopper()
    lines = hopper_lines("implicit", kind) + hopper_lines("plain", kind)
    if kind is ConvKind.DGRAD:
        lines += hopper_lines("strided", kind)
    wide = lines[0].replace(
        "f16/f16/f16", "f16/f16/f32" if kind is ConvKind.FPROP else "f32/f16/f16"
    )
    regions = hopper_regions([*lines, wide], 6, monkeypatch, tuple(epilogue.split("_")))
    assert wrong_ones(regions, tmp_path, SEED) == []


def test_more_slices_than_steps(tmp_path: Path) -> None:
    """Slices with nothing to add are zeros."""
    needs_hopper()
    lines = [f"wgrad n=1 c=64 h=5 w=5 k=64 r={r} s={r} {F16}" for r in (1, 3)]
    regions = [
        region_of(f"f{i}", ConvProblem.parse(line), arch=90, wgmma=True, split_k=13)
        for i, line in enumerate(lines)
    ]
    assert wrong_ones(regions, tmp_path, SEED) == []


@pytest.mark.parametrize("split", [2, 3, 7])
@pytest.mark.parametrize("which", [0, 6])
def test_equal_shares_of_all_steps(
    which: int, split: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More slices than fit the GPU at once: a tile is in two or three blocks' shares, or in one."""
    needs_hopper()
    lines = [f"wgrad n=3 c=520 h={h} w=11 k=512 r=3 s=3 pad=1,1,1,1 {F16}" for h in (5, 11)]
    lines.append(f"wgrad n=5 c=1152 h=12 w=11 k=1024 r=1 s=1 {F16}")
    regions = hopper_regions(lines, which, monkeypatch, slices=split)
    assert wrong_ones(regions, tmp_path, SEED) == []


@pytest.mark.parametrize("r", [1, 3])
def test_more_than_two_gigabytes(r: int, tmp_path: Path) -> None:
    """The last image tells: of the data's or the gradient's, and for wgrad the whole."""
    needs_hopper()
    n, h, w = 701, 160, 160
    pad = ",".join([str(r // 2)] * 4)
    problems = [
        ConvProblem.parse(f"{kind.value} n={n} c=64 h={h} w={w} k=8 r={r} s={r} pad={pad} {F16}")
        for kind in ConvKind
    ]
    assert 2 * n * h * w * 64 > cutlass.MAX_BYTES
    regions = [region_of(f"f{i}", p, arch=90, wgmma=True) for i, p in enumerate(problems)]
    functions = load(regions, tmp_path)
    torch.manual_seed(SEED)

    def made(*shape: int) -> torch.Tensor:
        return torch.randint(-1, 2, shape, device="cuda", dtype=torch.int8).half()

    x, weight, grad = made(n, h, w, 64), made(8, r, r, 64), made(n, h, w, 8)
    out = [torch.full_like(t, float("nan")) for t in (grad, x, weight)]
    functions["f0"](x, weight, out[0])
    functions["f1"](grad, weight, out[1])
    functions["f2"](grad, x, out[2])
    filters = weight.permute(0, 3, 1, 2).double()
    last = [t[-1:].permute(0, 3, 1, 2).double() for t in (x, grad)]
    conv = torch.nn.functional.conv2d(last[0], filters, padding=r // 2)
    assert torch.equal(out[0][-1:].permute(0, 3, 1, 2).double(), conv)
    back = torch.nn.functional.conv_transpose2d(last[1], filters, padding=r // 2)
    assert torch.equal(out[1][-1:].permute(0, 3, 1, 2).double(), back)
    # Of the middle tap alone: sums of small integers, which float32 holds; the result is rounded.
    want = grad.reshape(-1, 8).T.float() @ x.reshape(-1, 64).float()
    torch.testing.assert_close(out[2][:, r // 2, r // 2].float(), want, rtol=2e-3, atol=1.0)
