"""Depthwise weights (C, M, kh, kw) with `channels` = C·M, as Relay's front ends wrote them.

Its type relation takes them where `groups` and the weight's O are the data's channels: O counts
these, and I the filters of each.  TensorFlow's, TFLite's and Keras' front ends wrote OIHW beside
NCHW and HWOI beside NHWC.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm

import byoc_cudnn
from byoc_cudnn.relay.partition import offload_functions
from relay_wgrad import relay
from relay_wgrad.keys import COMPILER
from relay_wgrad.relay import transform

C, M = 3, 2
LAYOUTS = [("NCHW", "OIHW"), ("NHWC", "HWOI"), ("NHWC", "HWIO"), ("NHWC", "OHWI"), ("NCHW", "IHWO")]
WINDOW = {"strides": (2, 1), "padding": (1, 0, 1, 2), "dilation": (1, 2)}
Array = np.ndarray[Any, Any]


def moved(x: Any, src: str, dst: str) -> Array:
    return np.ascontiguousarray(np.asarray(x).transpose([src.index(axis) for axis in dst]))


class Case:
    """A convolution in two layouts, its operands, and what PyTorch makes of them."""

    def __init__(self, data_layout: str, kernel_layout: str) -> None:
        rng = np.random.default_rng(5)
        x, w = rng.standard_normal((2, C, 7, 9)), rng.standard_normal((C, M, 3, 3))
        given, weight = (torch.tensor(a, requires_grad=True) for a in (x, w))
        padded = torch.nn.functional.pad(given, (0, 2, 1, 1))
        y = torch.nn.functional.conv2d(
            padded,
            weight.reshape(C * M, 1, 3, 3),
            None,
            WINDOW["strides"],
            0,
            WINDOW["dilation"],
            C,
        )
        y.square().sum().backward()
        assert given.grad is not None
        assert weight.grad is not None
        self.value = moved(y.detach(), "NCHW", data_layout)
        self.gradients = (
            moved(given.grad, "NCHW", data_layout), moved(weight.grad, "OIHW", kernel_layout)
        )  # fmt: skip
        self.arrays = moved(x, "NCHW", data_layout), moved(w, "OIHW", kernel_layout)
        params = [
            relay.var(n, shape=a.shape, dtype="float64")
            for n, a in zip("xw", self.arrays, strict=True)
        ]
        body = relay.nn.conv2d(
            *params, **WINDOW, groups=C, channels=C * M, kernel_size=(3, 3),
            data_layout=data_layout, kernel_layout=kernel_layout,
        )  # fmt: skip
        self.mod = typed(relay.Function(params, body))
        self.squares = typed(relay.Function(params, relay.sum(relay.multiply(body, body))))

    def gradient(self) -> relay.IRModule:
        return typed(transform.gradient(self.squares["main"], mode="first_order"))

    def run(self, mod: relay.IRModule) -> Any:
        made = relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()
        return made(*self.arrays)

    def has_value(self, mod: relay.IRModule) -> bool:
        return close(self.run(mod).numpy(), self.value)

    def has_gradients(self, mod: relay.IRModule) -> bool:
        _, found = self.run(mod)
        pairs = zip(found, self.gradients, strict=True)
        return all(close(got.numpy(), want) for got, want in pairs)


def typed(function: relay.Function) -> relay.IRModule:
    return transform.InferType()(relay.IRModule.from_expr(function))


def close(got: Array, want: Array) -> bool:
    return bool(
        got.shape == want.shape and np.linalg.norm(got - want) <= 1e-12 * np.linalg.norm(want)
    )


@pytest.mark.share(3)
@pytest.mark.parametrize(("data_layout", "kernel_layout"), LAYOUTS)
def test_value_gradients_and_text(data_layout: str, kernel_layout: str) -> None:
    case = Case(data_layout, kernel_layout)
    assert case.has_value(case.mod)
    gradient = case.gradient()
    assert case.has_gradients(gradient)
    for mod in (case.mod, gradient):
        assert relay.structural_equal(relay.fromtext(relay.astext(mod)), mod)


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("data_layout", "kernel_layout", "desired"),
    [
        ("NCHW", "OIHW", ["NHWC", "default"]),
        ("NCHW", "OIHW", ["NHWC", "OHWI"]),
        ("NHWC", "HWOI", ["NCHW", "default"]),
    ],
)
def test_layouts_are_converted(data_layout: str, kernel_layout: str, desired: list[str]) -> None:
    case = Case(data_layout, kernel_layout)
    names = ("nn.conv2d", "nn.conv2d_transpose", "nn.conv2d_backward_weight")
    convert = transform.ConvertLayout(dict.fromkeys(names, desired))
    converted = convert(case.mod)
    assert f'data_layout="{desired[0]}"' in relay.astext(converted) or desired[0] == "NCHW"
    assert case.has_value(converted)
    assert case.has_gradients(convert(case.gradient()))


def test_blocked_layouts() -> None:
    case = Case("NCHW", "OIHW")
    params = [
        relay.var(n, shape=a.shape, dtype="float64") for n, a in zip("xw", case.arrays, strict=True)
    ]
    x = relay.layout_transform(params[0], "NCHW", "NCHW3c")
    w = relay.layout_transform(params[1], "OIHW", "OIHW3o")
    body = relay.nn.conv2d(
        x, w, **WINDOW, groups=C, channels=C * M, kernel_size=(3, 3),
        data_layout="NCHW3c", kernel_layout="OIHW3o", out_layout="NCHW",
    )  # fmt: skip
    assert case.has_value(typed(relay.Function(params, body)))
    whole = typed(relay.Function(params, relay.sum(relay.multiply(body, body))))
    assert case.has_gradients(typed(transform.gradient(whole["main"], mode="first_order")))


def test_partition() -> None:
    """Value and gradients to cuDNN, whose functions have the convolution in groups."""
    case = Case("NHWC", "HWOI")
    for mod, rows in ((case.mod, 1), (case.gradient(), 3)):
        single = transform.InferType()(
            relay.fromtext(relay.astext(mod).replace("float64", "float32"))
        )
        out, report = byoc_cudnn.partition(single, strict=True)
        assert report.total == rows
        taken = {n: f for n, f in out.functions.items() if COMPILER in f.attrs}
        assert len(taken) == rows
        offloaded = offload_functions(relay.lower(out, calls=list(taken)), taken)
        assert sum("Codegen" in f.attrs for _, f in offloaded.functions_items() if f.attrs) == rows


def test_volumes() -> None:
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((1, C, 4, 5, 6)), rng.standard_normal((C, M, 2, 3, 2))
    params = [relay.var(n, shape=a.shape, dtype="float64") for n, a in (("x", x), ("w", w))]
    body = relay.nn.conv3d(*params, groups=C, channels=C * M, kernel_size=(2, 3, 2))
    got = relay.create_executor().evaluate(relay.Function(params, body))(x, w).numpy()
    weight = torch.tensor(w).reshape(C * M, 1, 2, 3, 2)
    assert close(got, torch.nn.functional.conv3d(torch.tensor(x), weight, groups=C).numpy())


def test_one_filter_each_is_the_convolution_in_groups() -> None:
    x, w = relay.var("x", shape=(1, 4, 5, 5)), relay.var("w", shape=(4, 1, 3, 3))
    body = relay.nn.conv2d(x, w, groups=4, channels=4, kernel_size=(3, 3))
    text = str(relay.lower(typed(relay.Function([x, w], body))))
    assert "reshape" not in text


@pytest.mark.parametrize(
    ("shape", "groups", "channels", "words"),
    [
        ((3, 2, 3, 3), 3, 5, r"2 filters for each of 3 channels make 6, got channels=5 and the d"),
        ((3, 2, 3, 3), 3, None, r"requires that `1`, the input channels \(3\)"),
        ((3, 2, 3, 3), 1, 6, r"does not match the number of channels \(6\)"),
        ((2, 3, 3, 3), 3, 6, r"does not match the number of channels \(6\)"),
    ],
)  # fmt: skip
def test_refusals(shape: Any, groups: int, channels: int | None, words: str) -> None:
    x, w = relay.var("x", shape=(1, 3, 7, 7)), relay.var("w", shape=shape)
    body = relay.nn.conv2d(x, w, groups=groups, channels=channels, kernel_size=(3, 3))
    with pytest.raises(ValueError, match=f"conv2d.*{words}"):
        typed(relay.Function([x, w], body))


def test_numbers_of_tensorflows_kernel() -> None:
    """Filter m of channel c makes channel c M + m."""
    x, w = relay.var("x", shape=(1, 1, 1, 3)), relay.var("w", shape=(1, 1, 3, 2))
    body = relay.nn.conv2d(
        x, w, groups=3, channels=6, kernel_size=(1, 1), data_layout="NHWC", kernel_layout="HWOI"
    )
    made = relay.create_executor().evaluate(relay.Function([x, w], body))
    weight = np.array([[[[1, 10], [2, 20], [3, 30]]]], "float32")
    got = made(np.array([[[[1, 2, 3]]]], "float32"), weight).numpy()
    assert got.ravel().tolist() == [1, 10, 4, 40, 9, 90]
