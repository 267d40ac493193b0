"""Stock Relax's own gradients, raised before and after layout conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relay_wgrad
from legalize.composite import StockLegalize
from relay_wgrad.transform import ConvertLayout, raise_conv_backward
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.problems import relative_error
from tests.support.raise_cases import evaluate, integers, names, nn, op, program

WGRAD = "nn.conv2d_backward_weight"


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    pass


NETWORK = {
    "x": (2, 4, 8, 8), "plain": (6, 4, 3, 3), "strided": (6, 6, 3, 3), "grouped": (6, 3, 3, 3),
    "depthwise": (6, 1, 3, 3), "pointwise": (4, 6, 1, 1), "skewed": (4, 4, 2, 3),
    "target": (2, 4, 3, 5),
}  # fmt: skip


def network(emit: Any, x: Any, plain: Any, strided: Any, grouped: Any, depthwise: Any,
            pointwise: Any, skewed: Any, target: Any) -> Any:  # fmt: skip
    """One convolution of each kind that stock Relax can differentiate; linear but for the loss."""
    y = emit(nn.conv2d(x, plain, padding=1))
    y = emit(nn.conv2d(y, strided, strides=2, padding=1))
    y = emit(nn.conv2d(y, grouped, padding=1, groups=2))
    y = emit(nn.conv2d(y, depthwise, padding=1, groups=6))
    y = emit(nn.conv2d(y, pointwise))
    y = emit(nn.conv2d(y, skewed, padding=(0, 1, 0, 2)))
    return emit(op.sum(emit(op.multiply(y, target))))


@pytest.fixture
def stock_gradient() -> tvm.IRModule:
    """The network's gradient by upstream's own rules."""
    relay_wgrad.unregister()
    mod = relax.transform.Gradient("main")(program(NETWORK, network))
    relay_wgrad.register()
    return tvm.IRModule({"main": mod["main_adjoint"].with_attr("global_symbol", "main")})


LAYOUTS = {
    "as it was": lambda mod: mod,
    "stock NHWC": relax.transform.ConvertLayout(
        {"relax.nn.conv2d": ["NHWC", "OHWI"], "relax.nn.conv2d_transpose": ["NHWC", "IHWO"]}
    ),
    "stock NHWC, HWIO": relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}),
    "ours NHWC": lambda mod: ConvertLayout("NHWC")(mod),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stock_gradient(stock_gradient: tvm.IRModule, layout: str) -> None:
    """All six, in any layout, with the same numbers and no convolution more."""
    mod = LAYOUTS[layout](stock_gradient)
    assert names(mod).count("nn.conv2d") == 12
    out, report = raise_conv_backward(mod)
    assert (len(report.raised), report.left) == (6, ()), report.reasons()
    assert (names(out).count("nn.conv2d"), names(out).count(WGRAD)) == (6, 6)
    inputs = integers(stock_gradient)
    wanted = evaluate_all(stock_gradient, inputs)
    for got, want in zip(evaluate_all(out, inputs), wanted, strict=True):
        assert got.shape == want.shape
        assert relative_error(got, want) < 1e-13


def test_images_last_are_not_told_from_channels(stock_gradient: tvm.IRModule) -> None:
    """A weight gradient in CHWN is, letter by letter, a forward convolution in NHWC."""
    mod = ConvertLayout("CHWN")(stock_gradient)
    out, report = raise_conv_backward(mod)
    assert out.same_as(mod)
    assert report.raised == ()


def evaluate_all(mod: tvm.IRModule, inputs: list[np.ndarray[Any, Any]]) -> list[Any]:
    loss, partials = evaluate(mod, *inputs)
    return [np.asarray(loss), *partials]


@pytest.mark.longer
def test_compiled(stock_gradient: tvm.IRModule) -> None:
    """The evaluator aside: TVM's own kernels of the composite against the op's, in NHWC."""
    mod = ConvertLayout("NHWC")(stock_gradient)
    out, _ = raise_conv_backward(mod)
    inputs = [x.astype("float32") for x in integers(mod)]
    results = []
    for given in (StockLegalize()(mod), out):
        vm = virtual_machine(given, FAST)
        loss, partials = vm["main"](*map(tvm.runtime.tensor, inputs))
        results.append([loss.numpy(), *(partial.numpy() for partial in partials)])
    for got, want, exact in zip(*results, evaluate_all(mod, inputs), strict=True):
        assert relative_error(got, exact) < 1e-6
        assert relative_error(want, exact) < 1e-6
