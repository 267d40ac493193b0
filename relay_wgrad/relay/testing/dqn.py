"""The network that learned to play Atari's games (Mnih and others, Nature 518, 2015)."""

from __future__ import annotations

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from .init import Workload, create_workload
from .layers import closed, conv2d, conv_kernel_layout, dense_add_bias

# Channels, size and stride of each convolution.
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


def get_net(
    batch_size: int,
    num_actions: int = 18,
    image_shape: tuple[int, ...] = (4, 84, 84),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Function:
    """The function; weights have no types."""
    net: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    for i, (channels, size, stride) in enumerate(_CONVOLUTIONS, 1):
        bias = var(f"conv{i}_bias")
        net = conv2d(
            net,
            name=f"conv{i}",
            kernel_size=(size, size),
            strides=(stride, stride),
            padding=(0, 0),
            channels=channels,
            data_layout=layout,
            kernel_layout=conv_kernel_layout(layout),
        )
        net = nn.relu(nn.bias_add(net, bias, layout.index("C")))
    net = nn.relu(dense_add_bias(nn.batch_flatten(net), units=512, name="dense1"))
    return closed(dense_add_bias(net, units=num_actions, name="dense2"))


def get_workload(
    batch_size: int,
    num_actions: int = 18,
    image_shape: tuple[int, ...] = (4, 84, 84),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Workload:
    """The module and its parameters."""
    return create_workload(get_net(batch_size, num_actions, image_shape, dtype, layout))
