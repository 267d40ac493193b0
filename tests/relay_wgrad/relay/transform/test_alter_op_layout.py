"""AlterOpLayout: what is registered stands for the call, and what follows keeps its numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops
from relay_wgrad.relay.testing.temp_op_attr import TempOpAttr
from tests.support.relay.evaluate import evaluate
from tests.support.relay.layout_programs import arrays, program

KEY = "FTVMAlterOpLayout"
X = (1, 8, 6, 6)


def altered(expr: Any, form: Callable[..., Any], op: str = "nn.conv2d") -> relay.Function:
    mod = relay.IRModule.from_expr(relay.Function(relay.analysis.free_vars(expr), expr))
    with TempOpAttr(op, KEY, form):
        return T.AlterOpLayout()(mod)["main"]


def blocked(data: str, kernel: str = "OIHW") -> Callable[..., Any]:
    def form(attrs: Any, inputs: Any, tinfos: Any, out_type: Any) -> Any:
        changes = {"data_layout": data, "kernel_layout": kernel}
        return relay.nn.conv2d(*inputs, **{**attrs, **changes})

    return form


def conv(x: Any, name: str = "w") -> Any:
    return relay.nn.conv2d(x, relay.var(name, shape=(8, 8, 3, 3)), padding=1)


def test_what_follows_has_the_blocks() -> None:
    x, bias = relay.var("x", shape=X), relay.var("b", shape=(8, 1, 1))
    y = relay.nn.relu(relay.add(conv(x), bias))
    y = relay.nn.max_pool2d(conv(y, "w2"), (2, 2))
    out = altered(relay.sum(y, axis=[1], keepdims=True), blocked("NCHW4c"))

    def expected() -> Any:
        moved = relay.layout_transform
        x, b = relay.var("x", shape=X), relay.var("b", shape=(8, 1, 1))
        w, w2 = (relay.var(name, shape=(8, 8, 3, 3)) for name in ("w", "w2"))
        y = relay.nn.conv2d(moved(x, "NCHW", "NCHW4c"), w, padding=1, data_layout="NCHW4c")
        b4 = moved(relay.expand_dims(b, 0), "NCHW", "NCHW4c")
        y = relay.nn.relu(relay.add(y, b4))
        y = relay.nn.conv2d(y, w2, padding=1, data_layout="NCHW4c")
        y = relay.nn.max_pool2d(y, (2, 2), layout="NCHW4c")
        y = moved(relay.sum(y, axis=[1, 4], keepdims=True), "NCHW1c", "NCHW")
        return relay.Function([x, w, b, w2], y)

    want = T.InferType()(relay.IRModule.from_expr(expected()))["main"]
    assert relay.structural_equal(out, want)


@pytest.mark.parametrize(
    ("follow", "changes"),
    [
        (lambda y: relay.reshape(y, (8, -1)), 2),
        (lambda y: relay.nn.pad(y, ((0, 0), (0, 0), (1, 1), (0, 2))), 2),
        (lambda y: relay.nn.pad(y, ((0, 0), (1, 1), (0, 0), (0, 0))), 2),
        (lambda y: relay.concatenate([y, relay.tanh(y)], 1), 2),
        (lambda y: relay.strided_slice(y, [0, 4], [1, 8]), 2),
        (lambda y: relay.strided_slice(y, [0, 3], [1, 8]), 2),
        (lambda y: relay.argmax(y, axis=1), 2),
        (lambda y: relay.argmax(y, axis=2), 2),
        (lambda y: relay.transpose(y, (0, 2, 3, 1)), 2),
        (lambda y: relay.add(y, relay.const(2.0)), 2),
        (lambda y: relay.split(y, 2, 1)[1], 2),
    ],
)
def test_operators_after_it(follow: Callable[[Any], Any], changes: int) -> None:
    net = follow(conv(relay.var("x", shape=X)))
    out = altered(net, blocked("NCHW4c", "OIHW2o"))
    before = T.InferType()(relay.IRModule.from_expr(net))["main"]
    rng = np.random.default_rng(0)
    values = {p.name: rng.standard_normal(p.checked_type.shape) for p in before.params}
    np.testing.assert_allclose(evaluate(out, values), evaluate(before, values), rtol=1e-9)
    assert count_ops(out)["layout_transform"] == changes + 1  # and the weight's


def test_none_leaves_the_call_and_forms_are_checked() -> None:
    net = conv(relay.var("x", shape=X))
    same = altered(net, lambda *given: None)
    want = relay.Function(relay.analysis.free_vars(net), net)
    assert relay.structural_equal(same, T.InferType()(relay.IRModule.from_expr(want))["main"])
    with pytest.raises(TypeError, match="the altered form must be a call of an operator"):
        altered(net, lambda attrs, inputs, tinfos, out_type: inputs[0])
    with pytest.raises(ValueError, match="cannot be split into blocks of 3"):
        altered(net, blocked("NCHW3c"))
    relay.op.register_alter_op_layout("nn.conv2d", blocked("NHWC"))
    try:
        mod = T.AlterOpLayout()(relay.IRModule.from_expr(want))
    finally:
        relay.op.get("nn.conv2d").reset_attr(KEY)
    assert count_ops(mod["main"])["layout_transform"] == 2


def test_convert_layout_to_blocks() -> None:
    net = relay.nn.relu(conv(relay.nn.max_pool2d(conv(relay.var("x", shape=X)), (2, 2)), "w2"))
    mod = T.InferType()(relay.IRModule.from_expr(net))
    out = T.ConvertLayout({"nn.conv2d": ["NCHW4c", "OIHW4o4i"]})(mod)["main"]
    assert count_ops(out)["layout_transform"] == 4  # data, two weights, result
    rng = np.random.default_rng(0)
    values = {p.name: rng.standard_normal(p.checked_type.shape) for p in mod["main"].params}
    np.testing.assert_allclose(evaluate(out, values), evaluate(mod["main"], values), rtol=1e-9)


def _form(seed: int) -> Callable[..., Any]:
    """A layout that the sizes allow, at random."""
    rng = random.Random(seed)

    def form(attrs: Any, inputs: Any, tinfos: Any, out_type: Any) -> Any:
        if attrs["data_layout"] != "NCHW" or attrs["kernel_layout"] != "OIHW":
            return None
        channels, filters = tinfos[0].shape[1], tinfos[1].shape[0]
        choices = ["NHWC", "NCHW"]
        if channels % 2 == filters % 2 == 0:
            choices += ["NCHW2c", "NHWC2c"] * 3
        kernels = ["OIHW", "HWIO", *(["OIHW2o"] if filters % 2 == 0 else [])]
        changes = {"data_layout": rng.choice(choices), "kernel_layout": rng.choice(kernels)}
        return relay.nn.conv2d(*inputs, **{**attrs, **changes})

    return form


def _flat(value: Any) -> Iterator[Any]:
    for part in value if isinstance(value, tuple) else (value,):
        yield from _flat(part) if isinstance(part, tuple) else (part,)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_programs_keep_their_numbers(seed: int, steps: int) -> None:
    """`layout_programs.program(seed, steps)` with `_form(seed)` is what failed."""
    mod = program(seed, steps)
    with TempOpAttr("nn.conv2d", KEY, _form(seed)):
        out = T.AlterOpLayout()(mod)
    assert out["main"].checked_type == mod["main"].checked_type
    inputs = arrays(mod)
    with np.errstate(all="ignore"):
        want, got = evaluate(mod["main"], inputs), evaluate(out["main"], inputs)
    for ours, theirs in zip(_flat(got), _flat(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
