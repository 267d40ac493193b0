"""Channels of zeros, where CUTLASS would read odd ones one by one."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax

import byoc_cudnn
from byoc_cudnn.backends.cutlass import model as cutlass_model
from byoc_cudnn.backends.cutlass.check import Options
from byoc_cudnn.backends.cutlass.model import wider_channels
from byoc_cudnn.codegen.regions import read_region
from relay_wgrad.problem import ConvProblem
from tests.support.partition_cases import (
    conv_call,
    module,
    only,
    problem_module,
    regions,
    same_numbers,
)

pytestmark = pytest.mark.usefixtures("registered")

NHWC = "layout=NHWC/OHWI/NHWC"
LINES = [
    f"fprop n=2 c=3 h=16 w=15 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 {NHWC}",
    f"wgrad n=2 c=3 h=16 w=15 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 {NHWC}",
    f"wgrad n=2 c=3 h=16 w=15 k=6 r=3 s=2 stride=2,1 pad=1,0,2,1 {NHWC}",
    f"dgrad n=2 c=3 h=16 w=15 k=62 r=4 s=4 stride=2,2 pad=1,1,1,1 {NHWC}",
    f"fprop n=1 c=30 h=9 w=8 k=21 r=1 s=1 {NHWC}",
    # another layout: the zeros come after the permutation
    "wgrad n=2 c=3 h=16 w=15 k=10 r=3 s=3 pad=1,1,1,1",
]


@pytest.fixture
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies cost nothing, so that they pay for small problems too."""
    monkeypatch.setattr(cutlass_model, "LAUNCH", 0)
    monkeypatch.setattr(cutlass_model, "MEMORY", 1e6)


@pytest.mark.share(4)
@pytest.mark.usefixtures("_free")
@pytest.mark.parametrize("line", LINES)
def test_the_numbers_are_the_same(line: str) -> None:
    mod = problem_module(ConvProblem.parse(line))
    out, report = byoc_cudnn.partition_for_cutlass(mod, strict=True)
    assert "channels" in only(report).adapted
    assert only(report).problem == ConvProblem.parse(line).repro()  # the program's own
    (func,) = regions(out).values()
    inner = read_region(func).problem
    assert inner.c % 4 == 0 or inner.k % 4 == 0
    same_numbers(mod, out)


@pytest.mark.usefixtures("_free")
def test_zeros_for_a_weight_are_made_once() -> None:
    """fprop and wgrad of one image share its wider copy."""
    p = ConvProblem.parse(LINES[0])
    wgrad = ConvProblem.parse(LINES[1])

    def body(emit: Any, x: Any, w: Any, g: Any) -> Any:
        return emit(relax.Tuple([emit(conv_call(p, x, w)), emit(conv_call(wgrad, g, x))]))

    shapes = {"x": p.shape("data"), "w": p.shape("weight"), "g": p.shape("grad")}
    out, report = byoc_cudnn.partition_for_cutlass(module(shapes, body), strict=True)
    assert [entry.adapted for entry in report.entries] == ["channels", "channels"]
    assert out["main"].script().count("R.nn.pad(x") == 1


def test_what_follows_is_still_fused() -> None:
    """fprop's result has its own channels, so a bias and ReLU go along."""
    p = ConvProblem.parse(LINES[0])

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return emit(relax.op.nn.relu(emit(relax.op.add(emit(conv_call(p, x, w)), b))))

    mod = module({"x": p.shape("data"), "w": p.shape("weight"), "b": (64,)}, body)
    out, report = byoc_cudnn.partition_for_cutlass(mod, strict=True)
    assert (only(report).row, only(report).adapted) == ("fprop_bias_relu", "channels")
    same_numbers(mod, out)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (f"wgrad n=2 c=64 h=16 w=16 k=64 r=3 s=3 {NHWC}", {}),
        # single elements are read in any case; copies are too dear
        (f"wgrad n=64 c=3 h=64 w=64 k=64 r=3 s=3 {NHWC}", {"allow_tf32": False}),
        (f"wgrad n=1 c=3 h=8 w=8 k=64 r=3 s=3 {NHWC}", {}),
    ],
)
def test_where_it_does_not_pay(line: str, options: dict[str, Any]) -> None:
    assert wider_channels(ConvProblem.parse(line), Options(**options)) is None
    _, report = byoc_cudnn.partition_for_cutlass(
        problem_module(ConvProblem.parse(line)), strict=True, **options
    )
    assert only(report).adapted == ""


def test_cudnn_keeps_them() -> None:
    _, report = byoc_cudnn.partition_for_cudnn(problem_module(ConvProblem.parse(LINES[1])))
    assert only(report).adapted == ""
