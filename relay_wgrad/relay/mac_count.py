"""How many products of two numbers the convolutions and matrix products of a program add up."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from .ast import Call, Expr, Op, post_order
from .infer import span_text
from .layout_rules.named import Layout
from .records import attributes_of
from .types import TensorType


def get_total_mac_number(expr: Expr) -> int:
    """The products of the calls of `nn.conv2d` and its kin, `nn.dense` and `nn.batch_matmul`.

    As Relay's, it counts each number of a transposed convolution's result as if the whole kernel
    met it.

    Raises ValueError for a call without a type, or of sizes that only the run knows.
    """
    total = 0
    for node in post_order(expr):
        if isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in _COUNTS:
            total += _COUNTS[node.op.name](node)
    return total


def _shape(node: Expr, of: Call) -> tuple[int, ...]:
    ty = node.checked_type
    if not isinstance(ty, TensorType):
        assert isinstance(of.op, Op)
        raise ValueError(
            f"get_total_mac_number: {of.op.name} has no type; InferType finds it{span_text(of)}"
        )
    return ty.concrete_shape


def _axes_product(node: Call, index: int, layout: str, letters: str) -> int:
    """The product of an argument's sizes along these axes, blocks among them."""
    axes = Layout.parse(layout).axes
    shape = _shape(node.args[index], node)
    sizes = zip(axes, shape, strict=True)
    return prod(size for (axis, _), size in sizes if axis in letters)


def _convolution(node: Call) -> int:
    a = attributes_of(node)
    window = _axes_product(node, 1, a["kernel_layout"], "HW")
    channels = _axes_product(node, 0, a["data_layout"], "C") // a["groups"]
    return prod(_shape(node, node)) * window * channels


def _weight_gradient(node: Call) -> int:
    """Those of its convolution; the fields name the layouts of gradient and data."""
    a = attributes_of(node)
    channels = _axes_product(node, 1, a["kernel_layout"], "C") // a["groups"]
    return prod(_shape(node.args[0], node)) * prod(a["kernel_size"]) * channels


def _dense(node: Call) -> int:
    return prod(_shape(node, node)) * _shape(node.args[0], node)[-1]


def _batch_matmul(node: Call) -> int:
    inner = 1 if attributes_of(node)["transpose_a"] else 2
    return prod(_shape(node, node)) * _shape(node.args[0], node)[inner]


_COUNTS: dict[str, Callable[[Call], int]] = {
    "nn.conv2d": _convolution,
    "nn.conv2d_transpose": _convolution,
    "nn.conv2d_backward_weight": _weight_gradient,
    "nn.dense": _dense,
    "nn.batch_matmul": _batch_matmul,
}
