"""A convolution and a tensor of the result's shape that is added to it, for CUTLASS."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax

import byoc_cudnn
from byoc_cudnn.backends.cutlass.codegen import generate
from byoc_cudnn.codegen.regions import read_region
from relay_wgrad.problem import ConvProblem
from tests.support.partition_cases import conv_call, module, only, regions, same_numbers

pytestmark = pytest.mark.usefixtures("registered")

LINE = "{} n=2 c=8 h=6 w=5 k=16 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"


def added(kind: str, *, left: bool = False, relu: bool = False, shape: Any = None) -> Any:
    p = ConvProblem.parse(LINE.format(kind))
    first, second, result = p.roles

    def body(emit: Any, a: Any, b: Any, other: Any) -> Any:
        y = emit(conv_call(p, a, b))
        y = emit(relax.op.add(other, y) if left else relax.op.add(y, other))
        return emit(relax.op.nn.relu(y)) if relu else y

    shapes = {"a": p.shape(first), "b": p.shape(second), "other": shape or p.shape(result)}
    return module(shapes, body)


def one_region(out: Any) -> Any:
    (func,) = regions(out).values()
    return read_region(func)


@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_it_goes_along(kind: str, left: bool, relu: bool) -> None:
    mod = added(kind, left=left, relu=relu)
    out, report = byoc_cudnn.partition_for_cutlass(mod, strict=True)
    assert only(report).row == f"{kind}_residual" + ("_relu" if relu else "")
    region = one_region(out)
    assert region.epilogue == (("residual", "relu") if relu else ("residual",))
    assert region.operands[2] == "residual"
    assert ("_residualrelu_" if relu else "_residual_") in generate([region])
    same_numbers(mod, out)


def test_a_bias_stays_one() -> None:
    out, report = byoc_cudnn.partition_for_cutlass(added("fprop", shape=(16,)), strict=True)
    assert only(report).row == "fprop_bias"
    assert one_region(out).operands[2] == "bias"


@pytest.mark.parametrize("shape", [(1, 6, 5, 16), (2, 6, 5, 1), (5, 16)])
def test_another_shape_stays_behind(shape: tuple[int, ...]) -> None:
    out, report = byoc_cudnn.partition_for_cutlass(added("fprop", shape=shape), strict=True)
    entry = only(report)
    assert entry.row == "fprop"
    assert any("not of the result's shape" in reason for _, reason in entry.tried)
    same_numbers(added("fprop", shape=shape), out)


def test_one_pixel_is_a_bias() -> None:
    """A result of one pixel of one image: the two are the same, and called one name."""
    p = ConvProblem.parse("fprop n=1 c=8 h=3 w=3 k=16 r=3 s=3 layout=NHWC/OHWI/NHWC")

    def body(emit: Any, a: Any, b: Any, other: Any) -> Any:
        return emit(relax.op.add(emit(conv_call(p, a, b)), other))

    mod = module({"a": (1, 3, 3, 8), "b": (16, 3, 3, 8), "other": (1, 1, 1, 16)}, body)
    out, report = byoc_cudnn.partition_for_cutlass(mod, strict=True)
    assert only(report).row == "fprop_bias"
    assert one_region(out).epilogue == ("bias",)


def test_two_gradients_that_are_added() -> None:
    """As of a tensor that two convolutions take: one of them takes the other's along."""
    p = ConvProblem.parse(LINE.format("dgrad"))

    def body(emit: Any, g: Any, w: Any, v: Any) -> Any:
        return emit(relax.op.add(emit(conv_call(p, g, w)), emit(conv_call(p, g, v))))

    weight = p.shape("weight")
    mod = module({"g": p.shape("grad"), "w": weight, "v": weight}, body)
    out, report = byoc_cudnn.partition_for_cutlass(mod, strict=True)
    assert sorted(entry.row for entry in report.entries) == ["dgrad", "dgrad_residual"]
    same_numbers(mod, out)


def test_cudnn_has_no_such_row() -> None:
    _, report = byoc_cudnn.partition_for_cudnn(added("fprop"), strict=True)
    assert only(report).row == "fprop"
