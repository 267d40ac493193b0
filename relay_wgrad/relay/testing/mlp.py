"""A perceptron of three layers."""

from __future__ import annotations

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from .init import Workload, create_workload
from .layers import closed, dense_add_bias


def get_net(
    batch_size: int,
    num_classes: int = 10,
    image_shape: tuple[int, ...] = (1, 28, 28),
    dtype: str = "float32",
) -> Function:
    """The function; weights have no types."""
    net: Expr = nn.batch_flatten(var("data", shape=(batch_size, *image_shape), dtype=dtype))
    for i, units in enumerate((128, 64)):
        net = nn.relu(dense_add_bias(net, units=units, name=f"fc{i + 1}"))
    return closed(nn.softmax(dense_add_bias(net, units=num_classes, name="fc3")))


def get_workload(
    batch_size: int,
    num_classes: int = 10,
    image_shape: tuple[int, ...] = (1, 28, 28),
    dtype: str = "float32",
) -> Workload:
    """The module and its parameters."""
    return create_workload(get_net(batch_size, num_classes, image_shape, dtype))
