"""`FRelaxInferLayout` of the family and of what upstream lacks, under the stock ConvertLayout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.ir import Op
from tvm.script import ir as I
from tvm.script import relax as R

import relay_wgrad
from relay_wgrad import opdef
from relay_wgrad.layout_rules.stock import ADDED
from relay_wgrad.ops import ALL
from relay_wgrad.transform import count_reasons, layout_changes
from tests.support.layout_cases import (
    assert_close,
    calls,
    case,
    module,
    nn,
    op,
    run,
    together,
    values_for,
)

CHANNELS_LAST = {
    "relax.nn.conv2d": ["NHWC", "OHWI"],
    "relax.nn.conv2d_backward_weight": ["NHWC", "OHWI"],
    "relax.nn.conv2d_backward_data": ["NHWC", "OHWI"],
    "relax.nn.conv2d_transpose": ["NHWC", "IHWO"],
}
CHANNELS_FIRST = {
    "relax.nn.conv2d": ["NCHW", "OIHW"],
    "relax.nn.conv2d_backward_weight": ["NCHW", "OIHW"],
    "relax.nn.conv2d_backward_data": ["NCHW", "OIHW"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}


@pytest.fixture(autouse=True)
def _registered() -> Any:
    relay_wgrad.register()


def convert(mod: tvm.IRModule, desired: dict[str, list[str]] = CHANNELS_LAST) -> tvm.IRModule:
    out = relax.transform.ConvertLayout(desired)(mod)
    relax.analysis.well_formed(out)
    return out


def attrs_of(call: relax.Call) -> dict[str, str]:
    return {k: str(v) for k, v in call.attrs.items() if k.endswith("_layout")}


def test_weight_gradient() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(
            g: R.Tensor((2, 4, 5, 5), "float32"), x: R.Tensor((2, 3, 7, 7), "float32")
        ) -> R.Tensor((4, 3, 3, 3), "float32"):
            with R.dataflow():
                dw = R.nn.conv2d_backward_weight(g, x, kernel_size=[3, 3])
                gv = R.nn.relu(dw)
                R.output(gv)
            return gv

    @I.ir_module
    class Expected:
        @R.function
        def main(
            g: R.Tensor((2, 4, 5, 5), "float32"), x: R.Tensor((2, 3, 7, 7), "float32")
        ) -> R.Tensor((4, 3, 3, 3), "float32"):
            with R.dataflow():
                a = R.permute_dims(g, axes=[0, 2, 3, 1])
                b = R.permute_dims(x, axes=[0, 2, 3, 1])
                dw = R.nn.conv2d_backward_weight(
                    a, b, kernel_size=[3, 3],
                    grad_layout="NHWC", data_layout="NHWC", kernel_layout="OHWI",
                )  # fmt: skip
                c = R.nn.relu(dw)
                gv = R.permute_dims(c, axes=[0, 3, 1, 2])
                R.output(gv)
            return gv

    tvm.ir.assert_structural_equal(convert(Before), Expected)


def test_data_gradient_permutes_its_shape() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(
            g: R.Tensor((2, 4, 5, 6), "float32"), w: R.Tensor((4, 3, 3, 3), "float32")
        ) -> R.Tensor((2, 3, 7, 8), "float32"):
            with R.dataflow():
                dx = R.nn.conv2d_backward_data(g, w, R.shape([2, 3, 7, 8]))
                gv = R.nn.relu(dx)
                R.output(gv)
            return gv

    @I.ir_module
    class Expected:
        @R.function
        def main(
            g: R.Tensor((2, 4, 5, 6), "float32"), w: R.Tensor((4, 3, 3, 3), "float32")
        ) -> R.Tensor((2, 3, 7, 8), "float32"):
            with R.dataflow():
                a = R.permute_dims(g, axes=[0, 2, 3, 1])
                b = R.permute_dims(w, axes=[0, 2, 3, 1])
                dx = R.nn.conv2d_backward_data(
                    a, b, R.shape([2, 7, 8, 3]),
                    grad_layout="NHWC", data_layout="NHWC", kernel_layout="OHWI",
                )  # fmt: skip
                c = R.nn.relu(dx)
                gv = R.permute_dims(c, axes=[0, 3, 1, 2])
                R.output(gv)
            return gv

    tvm.ir.assert_structural_equal(convert(Before), Expected)


def test_three_layouts_and_the_way_back() -> None:
    shapes = {"g": (2, 4, 5, 5), "x": (2, 3, 7, 7)}
    before = module(
        shapes,
        lambda emit, g, x: relay_wgrad.conv2d_backward_weight(g, x, (3, 3)),
    )
    name = "relax.nn.conv2d_backward_weight"
    there = convert(before, {name: ["NHWC", "HWIO", "CNHW"]})
    assert attrs_of(calls(there, "conv2d_backward_weight")[0]) == {
        "data_layout": "NHWC", "kernel_layout": "HWIO", "grad_layout": "CNHW",
    }  # fmt: skip
    back = relax.transform.CanonicalizeBindings()(convert(there, {name: ["NCHW", "OIHW"]}))
    assert attrs_of(calls(back, "conv2d_backward_weight")[0]) == {
        "data_layout": "NCHW", "kernel_layout": "OIHW", "grad_layout": "NCHW",
    }  # fmt: skip
    args = values_for(before["main"])
    mods = together(before, there, back)
    want = run(mods, args, "f0")
    assert_close(run(mods, args, "f1"), want)
    assert_close(run(mods, args, "f2"), want)


def test_given_layouts_are_propagated() -> None:
    """Only the forward convolution is named: its gradients take what they are given."""
    before = case("conv_bias_relu_conv")
    after = convert(before, {"relax.nn.conv2d": ["NHWC", "OHWI"]})
    wgrads = [attrs_of(c)["data_layout"] for c in calls(after, "conv2d_backward_weight")]
    assert "NHWC" in wgrads
    args = values_for(before["main"])
    mods = together(before, after)
    assert_close(run(mods, args, "f1"), run(mods, args, "f0"))


@pytest.mark.longer
@pytest.mark.parametrize("name", ["pools", "transposed"])
def test_same_numbers(name: str) -> None:
    before = case(name)
    after = convert(before)
    args = values_for(before["main"])
    mods = together(before, after, convert(after, CHANNELS_FIRST))
    want = run(mods, args, "f0")
    assert_close(run(mods, args, "f1"), want)
    assert_close(run(mods, args, "f2"), want)


def test_fewer_are_left_than_without_the_added_rules() -> None:
    before = case("transposed")
    with_rules = sum(count_reasons(layout_changes(convert(before)["main"])).values())
    upstream = {}
    for name in ADDED:
        upstream[name] = Op.get(name).get_attr(opdef.INFER_LAYOUT)
        Op.get(name).reset_attr(opdef.INFER_LAYOUT)
    try:
        without = sum(count_reasons(layout_changes(convert(before)["main"])).values())
    finally:
        for name, rule in upstream.items():
            tvm.ir.register_op_attr(name, opdef.INFER_LAYOUT, rule, 11)
    assert with_rules < without


# One op after a convolution's (2, 4, 5, 5): what the stock pass must leave channels last.
AFTER: dict[str, Callable[[Any], Any]] = {
    "where": lambda y: op.where(op.less(y, relax.const(0.0, "float64")), y, y),
    "clip": lambda y: op.clip(y, 0, 1),
    "collapse_sum_to": lambda y: op.collapse_sum_to(y, relax.ShapeExpr([1, 4, 1, 1])),
    "collapse_sum_like": lambda y: op.collapse_sum_like(y, y),
    "broadcast_to": lambda y: op.broadcast_to(y, relax.ShapeExpr([2, 4, 5, 5])),
    "zeros_like": op.zeros_like,
    "ones_like": op.ones_like,
    "full_like": lambda y: op.full_like(y, relax.const(2.0, "float64")),
    "grad.max_pool2d_backward": lambda y: op.grad.max_pool2d_backward(y, y),
    "grad.avg_pool2d_backward": lambda y: op.grad.avg_pool2d_backward(y, y),
    "grad.no_grad": op.grad.no_grad,
    "grad.start_checkpoint": op.grad.start_checkpoint,
    "grad.end_checkpoint": op.grad.end_checkpoint,
    "nn.log_softmax": lambda y: nn.log_softmax(y, axis=1),
    "nn.softplus": nn.softplus,
    "nn.leakyrelu": nn.leakyrelu,
    "nn.pad": lambda y: nn.pad(y, [0, 0, 1, 2, 0, 3, 0, 0]),
}


@pytest.mark.parametrize("name", ADDED)
def test_added_rule(name: str) -> None:
    made = AFTER[name.removeprefix("relax.")]
    shapes = {"x": (2, 3, 5, 5), "w": (4, 3, 1, 1)}
    # Only variables within the block may be left in another layout: hence an op behind it.
    before = module(shapes, lambda emit, x, w: op.abs(emit(made(emit(nn.conv2d(x, w))))))
    after = convert(before)
    short = name.rpartition(".")[2]
    (old,), (new,) = calls(before, short), calls(after, short)
    n, c, h, w = (int(v) for v in old.ty.shape.values)
    assert [int(v) for v in new.ty.shape.values] == [n, h, w, c]
    assert int(new.args[0].ty.shape[-1]) == 4


def test_unregister_takes_the_rules_away() -> None:
    def has(name: str) -> bool:
        found = Op.get(name)
        return found.has_attr(opdef.INFER_LAYOUT) and (
            found.get_attr(opdef.INFER_LAYOUT) is not None
        )

    assert all(has(name) for name in ADDED)
    relay_wgrad.unregister()
    try:
        assert not any(has(name) for name in ADDED)
        assert has("relax.nn.conv2d")  # upstream's
        assert has("relax.add")
    finally:
        relay_wgrad.register()
    assert all(has(name) for name in ADDED)
    registered = {d.name for d in ALL if opdef.INFER_LAYOUT in d.rules}
    assert registered >= {*ADDED, *(k for k in CHANNELS_LAST if "backward" in k)}


@pytest.mark.parametrize("desired", [["NHWC"], ["NHWK", "OHWI"], ["NHWC", "OHWI16o"]])
def test_bad_desired_layouts(desired: list[str]) -> None:
    before = module(
        {"g": (2, 4, 5, 5), "x": (2, 3, 7, 7)},
        lambda emit, g, x: nn.relu(emit(relay_wgrad.conv2d_backward_weight(g, x, (3, 3)))),
    )
    with pytest.raises(ValueError, match="conv2d_backward_weight: ConvertLayout takes"):
        convert(before, {"relax.nn.conv2d_backward_weight": desired})


def test_following_op_takes_no_desired_layout() -> None:
    before = module({"x": (2, 3, 5, 5)}, lambda emit, x: nn.relu(emit(op.clip(x, 0, 1))))
    with pytest.raises(ValueError, match="clip: follows the layouts of its operands"):
        convert(before, {"relax.clip": ["NHWC", "OHWI"]})
