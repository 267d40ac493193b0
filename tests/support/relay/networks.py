"""Networks that Relay 0.19 printed and ran, as Relax: `tests/fixtures/relay` has those texts.

Parameters have the fixtures' names and order.  `main` returns (loss, output).  As in Relay's
gradient, batch normalization is inference's, spelled out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from tests.support.built import built

op, nn = relax.op, relax.op.nn
Shapes = dict[str, tuple[int, ...]]
Emit = Callable[[relax.Expr], relax.Var]
EPSILON = 2e-5


def smallnet(emit: Emit, p: dict[str, relax.Var]) -> tuple[relax.Var, relax.Var]:
    """(loss, output): `smallnet_grad` has the sum as its loss."""
    y = emit(nn.conv2d(p["data"], p["w1"], padding=1))
    y = emit(nn.relu(emit(op.add(y, emit(op.expand_dims(p["b1"], [1, 2]))))))
    y = emit(nn.relu(emit(nn.conv2d(y, p["w2"], strides=2, padding=1))))
    return emit(op.sum(y)), y


def resnet8_cifar(emit: Emit, p: dict[str, relax.Var]) -> tuple[relax.Var, relax.Var]:
    """(loss, output): the squared sum, for a softmax's own sum is constant."""

    dtype = p["data"].ty.dtype.dtype

    def norm(x: relax.Var, name: str, scaled: bool = True) -> relax.Var:
        """x * a + b with a = gamma / sqrt(var + epsilon), b = beta - mean * a."""
        one, epsilon = (relax.const(value, dtype) for value in (1.0, EPSILON))
        deviation = emit(op.sqrt(emit(op.add(p[f"{name}_moving_var"], epsilon))))
        a = emit(op.divide(one, deviation))
        if scaled:
            a = emit(op.multiply(a, p[f"{name}_gamma"]))
        b = emit(op.subtract(p[f"{name}_beta"], emit(op.multiply(p[f"{name}_moving_mean"], a))))
        y = emit(op.multiply(x, emit(op.expand_dims(a, [1, 2]))))
        return emit(op.add(y, emit(op.expand_dims(b, [1, 2]))))

    def conv(x: relax.Var, name: str, strides: int = 1, padding: int = 1) -> relax.Var:
        return emit(nn.conv2d(x, p[f"{name}_weight"], strides=strides, padding=padding))

    y = conv(norm(p["data"], "bn_data", scaled=False), "conv0")
    for stage, strides in ((1, 1), (2, 2), (3, 2)):
        unit = f"stage{stage}_unit1"
        start = emit(nn.relu(norm(y, f"{unit}_bn1")))
        y = emit(nn.relu(norm(conv(start, f"{unit}_conv1", strides), f"{unit}_bn2")))
        y = conv(y, f"{unit}_conv2")
        y = emit(op.add(y, conv(start, f"{unit}_sc", strides, padding=0)))
    y = emit(op.mean(emit(nn.relu(norm(y, "bn1"))), [2, 3], keepdims=True))
    y = emit(op.matmul(emit(op.reshape(y, (2, 64))), emit(op.permute_dims(p["fc1_weight"]))))
    y = emit(nn.softmax(emit(op.add(y, p["fc1_bias"]))))
    return emit(op.sum(emit(op.multiply(y, y)))), y


def _resnet8_shapes() -> Shapes:
    shapes: Shapes = {"data": (2, 3, 28, 28)}

    def norm(name: str, channels: int) -> None:
        for part in ("gamma", "beta", "moving_mean", "moving_var"):
            shapes[f"{name}_{part}"] = (channels,)

    norm("bn_data", 3)
    shapes["conv0_weight"] = (16, 3, 3, 3)
    last = 16
    for stage, channels in ((1, 16), (2, 32), (3, 64)):
        unit = f"stage{stage}_unit1"
        norm(f"{unit}_bn1", last)
        shapes[f"{unit}_conv1_weight"] = (channels, last, 3, 3)
        norm(f"{unit}_bn2", channels)
        shapes[f"{unit}_conv2_weight"] = (channels, channels, 3, 3)
        shapes[f"{unit}_sc_weight"] = (channels, last, 1, 1)
        last = channels
    norm("bn1", last)
    return shapes | {"fc1_weight": (10, last), "fc1_bias": (10,)}


NETWORKS: dict[str, tuple[Any, Shapes]] = {
    "smallnet": (
        smallnet,
        {"data": (2, 3, 16, 16), "w1": (8, 3, 3, 3), "b1": (8,), "w2": (16, 8, 3, 3)},
    ),
    "resnet8_cifar": (resnet8_cifar, _resnet8_shapes()),
}


def relay_network(name: str, dtype: str = "float32") -> tvm.IRModule:
    """`main` of a network, one dataflow block: (parameters…) to (loss, output)."""
    body, shapes = NETWORKS[name]
    params = {n: relax.Var(n, relax.TensorType(s, dtype)) for n, s in shapes.items()}
    return built([*params.values()], lambda emit: list(body(emit, params)))
