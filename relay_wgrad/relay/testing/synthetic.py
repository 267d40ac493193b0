"""A small network of dense layers and convolutions side by side, of Relay's own making."""

from __future__ import annotations

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from ..op.tensor import reshape, reshape_like
from .init import Constant, Workload, create_workload
from .layers import batch_norm_infer, closed


def get_net(
    input_shape: tuple[int, int, int, int] = (1, 3, 24, 12),
    dtype: str = "float32",
    wtype: str | None = None,
) -> Function:
    """The function; `wtype` is the weights' dtype, by default the data's."""
    wtype = wtype or dtype
    data = var("data", shape=input_shape, dtype=dtype)
    channels, width = input_shape[1], input_shape[3]

    def both(x: Expr, name: str) -> Expr:
        """What a dense layer of the last axis and a convolution make of `x`, added."""
        weight = var(f"dense{name}_weight", shape=(width, width), dtype=wtype)
        rows = nn.relu(nn.dense(reshape(x, (-1, width)), weight))
        kernel = var(f"conv{name}_weight", shape=(channels, channels, 3, 3), dtype=wtype)
        conv = nn.softmax(nn.conv2d(x, kernel, padding=1, kernel_size=3))
        return reshape_like(rows, data) + conv

    biased = nn.bias_add(both(data, ""), var("bias", dtype=wtype))
    return closed(both(batch_norm_infer(biased, name="batch_norm"), "2"))


def get_workload(
    input_shape: tuple[int, int, int, int] = (1, 3, 24, 12),
    dtype: str = "float32",
    wtype: str | None = None,
) -> Workload:
    """The module and its parameters, each one over its number of elements."""
    return create_workload(get_net(input_shape, dtype, wtype), initializer=Constant())
