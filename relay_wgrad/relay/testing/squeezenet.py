"""SqueezeNet (Iandola et al., 2016)."""

from __future__ import annotations

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from ..op.tensor import concatenate
from .init import Workload, create_workload
from .layers import closed, conv2d

# The first convolution (channels, size, padding), then numbers of fire modules between pools.
_VERSIONS = {"1.0": ((96, 7, 3), (3, 4, 1)), "1.1": ((64, 3, 1), (2, 2, 4))}
# A fire module's squeeze and expand channels.
_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


def _conv(x: Expr, channels: int, size: int, padding: int, name: str, stride: int = 1) -> Expr:
    out = conv2d(
        x,
        channels=channels,
        kernel_size=(size, size),
        strides=(stride, stride),
        padding=(padding, padding),
        name=name,
    )
    return nn.relu(nn.bias_add(out, var(f"{name}_bias")))


def get_net(
    batch_size: int, image_shape: tuple[int, ...], num_classes: int, version: str, dtype: str
) -> Function:
    """The function; weights have no types.

    Raises ValueError for another version than 1.0 and 1.1.
    """
    if version not in _VERSIONS:
        raise ValueError(f"squeezenet: version must be '1.0' or '1.1', got {version!r}")
    (channels, size, padding), counts = _VERSIONS[version]
    data = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    net = _conv(data, channels, size, padding, "conv1", stride=2)
    fires = iter(enumerate(_FIRES, 1))
    for count in counts:
        net = nn.max_pool2d(net, pool_size=(3, 3), strides=(2, 2))
        for _ in range(count):
            i, (squeeze, expand) = next(fires)
            net = _conv(net, squeeze, 1, 0, f"fire{i}_input_conv")
            left = _conv(net, expand, 1, 0, f"fire{i}_left_conv")
            right = _conv(net, expand, 3, 1, f"fire{i}_right_conv")
            net = concatenate((left, right), axis=1)
    net = _conv(nn.dropout(net, rate=0.5), num_classes, 1, 0, "conv_final")
    return closed(nn.softmax(nn.batch_flatten(nn.global_avg_pool2d(net))))


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    version: str = "1.0",
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
) -> Workload:
    """The module and its parameters."""
    return create_workload(get_net(batch_size, image_shape, num_classes, version, dtype))
