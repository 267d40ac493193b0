"""VGG (Simonyan and Zisserman, 2014)."""

from __future__ import annotations

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from .init import Workload, create_workload
from .layers import batch_norm_infer, closed, conv2d, dense_add_bias

# Convolutions of each block, by the number of layers with weights.
_BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)


def get_net(
    batch_size: int,
    image_shape: tuple[int, ...],
    num_classes: int,
    dtype: str,
    num_layers: int = 11,
    batch_norm: bool = False,
) -> Function:
    """The function; weights have no types.

    Raises ValueError for another number of layers than 11, 13, 16, 19.
    """
    if num_layers not in _BLOCKS:
        raise ValueError(f"vgg: num_layers must be one of {list(_BLOCKS)}, got {num_layers}")
    net: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    for block, (count, filters) in enumerate(zip(_BLOCKS[num_layers], _FILTERS, strict=True), 1):
        for i in range(1, count + 1):
            name = f"conv{block}_{i}"
            net = conv2d(net, kernel_size=(3, 3), padding=(1, 1), channels=filters, name=name)
            net = nn.bias_add(net, var(f"{name}_bias"))
            if batch_norm:
                net = batch_norm_infer(net, name=f"bn{block}_{i}")
            net = nn.relu(net)
        net = nn.max_pool2d(net, pool_size=(2, 2), strides=(2, 2))
    net = nn.batch_flatten(net)
    for name in ("fc6", "fc7"):
        net = nn.dropout(nn.relu(dense_add_bias(net, units=4096, name=name)), rate=0.5)
    return closed(nn.softmax(dense_add_bias(net, units=num_classes, name="fc8")))


def get_workload(
    batch_size: int,
    num_classes: int = 1000,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
    num_layers: int = 11,
    batch_norm: bool = False,
) -> Workload:
    """The module and its parameters."""
    net = get_net(batch_size, image_shape, num_classes, dtype, num_layers, batch_norm)
    return create_workload(net)
