"""ConvertLayout: users' own conversions of an operator, right and wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.text import astext
from tests.support.relay.layout_bodies import (
    NEW,
    OLD,
    back,
    equal,
    module,
    unchanged_numbers,
)
from tests.support.relay.layout_fixtures import CONV

X, W = relay.var("x", shape=(2, 4, 8, 8)), relay.var("w", shape=(4, 4, 3, 3))


@pytest.fixture
def hook() -> Iterator[Callable[[str, Any], None]]:
    names: list[str] = []

    def register(name: str, function: Any) -> None:
        names.append(name)
        relay.op.register_convert_op_layout(name, function)

    yield register
    for name in names:
        relay.op.get(name).reset_attr("FTVMConvertOpLayout")


def test_a_users_conversion(hook: Callable[[str, Any], None]) -> None:
    """As Relay's own are written: attributes as a dict, the builder, desired layouts of its own."""
    seen = []

    def convert(attrs: Any, inputs: Any, tinfos: Any, desired: Any) -> Any:
        seen.append((attrs.padding, [tuple(t.shape) for t in tinfos], desired))
        assert inputs[0].checked_type.shape == (2, 4, 6, 8)
        new = dict(attrs)
        new["data_layout"], new["kernel_layout"] = "NHWC", desired[0]
        return relay.nn.conv2d(*inputs, **new)

    hook("nn.conv2d", convert)
    mod = module(f"nn.relu({OLD})")
    got = T.ConvertLayout({"nn.conv2d": ["OHWI"]})(mod)
    assert equal(got, back(f"nn.relu({NEW})")), astext(got)
    assert seen == [((1, 1, 1, 1), [(2, 4, 6, 8), (4, 4, 3, 3)], ["OHWI"])]


def test_a_conversion_that_leaves_a_call(hook: Callable[[str, Any], None]) -> None:
    hook("nn.conv2d", lambda attrs, inputs, tinfos, desired: None)
    mod = module(f"nn.relu({OLD})")
    assert relay.structural_equal(T.ConvertLayout({"nn.conv2d": []})(mod), mod)


def test_a_conversion_to_other_operators(hook: Callable[[str, Any], None]) -> None:
    """Of an operator whose attributes name no layout: its operands and result have the old one."""

    def convert(attrs: Any, inputs: Any, tinfos: Any, desired: Any) -> Any:
        moved = relay.layout_transform(inputs[0], "NCHW", desired[0])
        return relay.layout_transform(relay.tanh(moved), desired[0], "NCHW")

    hook("tanh", convert)
    mod = module(f"tanh({OLD})")
    got = T.ConvertLayout({**CONV, "tanh": ["NHWC"]})(mod)
    body = got["main"].body
    assert body.args[0].op == relay.Op("tanh")
    unchanged_numbers(mod, got)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda x: 3, r"tanh: the registered layout conversion must be .*expression, got 3"),
        (lambda x: relay.sum(x), r"tanh: .*conversion must give .*\(2, 4, 6, 8\).*got float32"),
        (lambda x: relay.nn.bias_add(x, x), r"tanh: the registered layout conversion: nn.bias_add"),
    ],
)
def test_wrong_conversions(hook: Callable[[str, Any], None], made: Any, message: str) -> None:
    hook("tanh", lambda attrs, inputs, tinfos, desired: made(inputs[0]))
    with pytest.raises((TypeError, ValueError), match=message):
        T.ConvertLayout({"tanh": []})(module("tanh(%x)"))


def test_a_conversion_to_letters_that_an_operator_has_not(hook: Callable[[str, Any], None]) -> None:
    def convert(attrs: Any, inputs: Any, tinfos: Any, desired: Any) -> Any:
        return relay.nn.conv2d(*inputs, **{**attrs, "data_layout": "NABC"})

    hook("nn.conv2d", convert)
    with pytest.raises(ValueError, match=r"nn\.conv2d: .*can't make 'NABC' of 'NCHW' \(.*:\d+:"):
        T.ConvertLayout({"nn.conv2d": []})(module(OLD))


def test_some_convolutions_are_left() -> None:
    one = relay.nn.conv2d(X, W, padding=1)
    mod = T.InferType()(relay.IRModule.from_expr(relay.nn.conv2d(one, W, padding=1)))

    def layouts(skip: list[int]) -> list[str]:
        with T.LayoutConfig(skip_layers=skip):
            body = T.ConvertLayout(CONV)(mod)["main"].body
        found: list[str] = []

        def note(node: Any) -> None:
            if isinstance(node, relay.Call) and node.op.name == "nn.conv2d":
                found.append(str(node.attrs.get("data_layout", "NCHW")))

        relay.analysis.post_order_visit(body, note)
        return found

    assert layouts([]) == ["NHWC", "NHWC"]
    assert layouts([0]) == ["NCHW", "NHWC"]
    assert layouts([1]) == ["NHWC", "NCHW"]
    with pytest.raises(TypeError, match="skip_layers must be integers, got 'a'"):
        T.LayoutConfig(["a"])  # type: ignore[list-item]


def test_operators_that_are_named() -> None:
    resized = relay.image.resize2d(X, (4, 4))
    mod = T.InferType()(relay.IRModule.from_expr(resized))
    got = T.ConvertLayout({"image.resize2d": ["NHWC"]})(mod)["main"].body
    assert (got.op.name, got.args[0].attrs["layout"]) == ("layout_transform", "NHWC")
    rois = relay.var("rois", shape=(3, 5))
    pooled = relay.vision.roi_align(X, rois, (2, 2), 1.0)
    mod = T.InferType()(relay.IRModule.from_expr(pooled))
    got = T.ConvertLayout({"vision.roi_align": ["NHWC", "default"]})(mod)["main"].body
    assert (got.op.name, got.args[0].attrs["layout"]) == ("layout_transform", "NHWC")
    with pytest.raises(ValueError, match="takes 1 desired layouts"):
        T.ConvertLayout({"vision.roi_align": ["NHWC", "NHWC"]})


def test_a_deformable_convolution_and_its_offsets(registered: None) -> None:
    """Its own kernels read either layout, so the values are the same."""
    shapes = ((2, 4, 6, 5), (2, 18, 4, 3), (6, 4, 3, 3))
    params = [relay.var(name, shape=shape) for name, shape in zip("dow", shapes, strict=True)]
    made = relay.nn.deformable_conv2d(*params, kernel_size=(3, 3), channels=6)
    mod = T.InferType()(relay.IRModule.from_expr(relay.Function(params, made)))
    changed = T.ConvertLayout({"nn.deformable_conv2d": ["NHWC", "default"]})(mod)
    call = changed["main"].body.args[0]
    assert (call.attrs["data_layout"], call.attrs["kernel_layout"]) == ("NHWC", "HWIO")
    assert [arg.op.name for arg in call.args] == ["layout_transform"] * 3
    rng = np.random.default_rng(8)
    values = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    one, other = (relay.create_executor(mod=m).evaluate()(*values).numpy() for m in (mod, changed))
    np.testing.assert_allclose(one, other, 1e-5, 1e-5)


def test_what_several_axes_give_an_index_of() -> None:
    """Height and width keep their order; channels and height do not."""
    for axes, follows in (([2, 3], True), ([1, 2], False)):
        body = relay.argmax(relay.nn.conv2d(X, W, padding=1), axis=axes)
        mod = T.InferType()(relay.IRModule.from_expr(body))
        got = T.ConvertLayout(CONV)(mod)["main"].body
        assert (got.op.name == "argmax" and got.args[0].op.name == "nn.conv2d") == follows
