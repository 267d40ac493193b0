"""DenseNet (Huang et al., 2016) as Relay 0.19 has it, whose names and sizes are kept.

It differs from the paper: within a block each layer sees the one before it alone, and a block's
result is what its layers give, without its input.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from ..op.tensor import concatenate
from .init import Workload, create_workload
from .layers import batch_norm_infer, closed, conv2d, dense_add_bias

# Features of the first convolution, growth, layers of each block.  169 begins with 69 in Relay.
_SIZES: dict[int, tuple[int, int, tuple[int, ...]]] = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (69, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}
_BOTTLENECK = 4  # channels of a layer's first convolution, in units of growth


def _act(x: Expr, name: str) -> Expr:
    return nn.relu(batch_norm_infer(x, name=name))


def _point(x: Expr, channels: int, name: str) -> Expr:
    return conv2d(x, channels=channels, kernel_size=(1, 1), name=name)


def get_net(
    densenet_size: int, classes: int, batch_size: int, image_shape: tuple[int, ...], dtype: str
) -> Function:
    """The function; weights have no types.

    Raises ValueError for another size than 121, 161, 169, 201.
    """
    if densenet_size not in _SIZES:
        raise ValueError(f"densenet: size must be one of {list(_SIZES)}, got {densenet_size}")
    features, growth, blocks = _SIZES[densenet_size]
    net: Expr = conv2d(
        var("data", shape=(batch_size, *image_shape), dtype=dtype),
        channels=features,
        kernel_size=(7, 7),
        strides=(2, 2),
        padding=(3, 3),
        name="conv1",
    )
    net = nn.max_pool2d(_act(net, "batch1"), pool_size=(3, 3), strides=(2, 2), padding=(1, 1))
    for block, count in enumerate(blocks):
        net = concatenate(_layers(net, count, growth, block), 1)
        features += count * growth
        if block != len(blocks) - 1:
            features //= 2
            net = _point(_act(net, f"batch_t_{block}"), features, f"conv_t_{block}")
            net = nn.avg_pool2d(net, pool_size=(2, 2), strides=(2, 2))
    net = nn.batch_flatten(nn.avg_pool2d(_act(net, "batch2"), pool_size=(7, 7)))
    return closed(dense_add_bias(net, units=classes, name="dense"))


def _layers(net: Expr, count: int, growth: int, block: int) -> Sequence[Expr]:
    out = []
    for i in range(count):
        index = f"{block}_{i}"
        wide = _point(_act(net, f"batch_1_{index}"), _BOTTLENECK * growth, f"conv2d_1_{index}")
        net = conv2d(
            _act(wide, f"batch_2_{index}"),
            channels=growth,
            kernel_size=(3, 3),
            padding=(1, 1),
            name=f"conv2d_2_{index}",
        )
        out.append(net)
    return out


def get_workload(
    densenet_size: int = 121,
    classes: int = 1000,
    batch_size: int = 4,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
) -> Workload:
    """The module and its parameters."""
    return create_workload(get_net(densenet_size, classes, batch_size, image_shape, dtype))
