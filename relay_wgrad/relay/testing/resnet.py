"""ResNet with pre-activation (He et al., Identity Mappings in Deep Residual Networks, 2016).

The parameters' names follow tornadomeet/ResNet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from ..op.tensor import add
from .init import Workload, create_workload
from .layers import batch_norm_infer, closed, conv2d, conv_kernel_layout, dense_add_bias

_EPSILON = 2e-5
# Units of each stage, for images of more than 28 rows.
_UNITS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    269: (3, 30, 48, 8),
}


class _Blocks:
    """The building blocks in one layout."""

    def __init__(self, layout: str) -> None:
        self.layouts: dict[str, Any] = {
            "data_layout": layout,
            "kernel_layout": conv_kernel_layout(layout),
        }
        self.axis = layout.index("C")

    def norm(self, x: Expr, name: str, **kwargs: Any) -> Expr:
        return batch_norm_infer(x, epsilon=_EPSILON, axis=self.axis, name=name, **kwargs)

    def act(self, x: Expr, name: str) -> Expr:
        return nn.relu(self.norm(x, name))

    def conv(self, x: Expr, channels: int, size: int, stride: int, name: str) -> Expr:
        return conv2d(
            x,
            channels=channels,
            kernel_size=(size, size),
            strides=(stride, stride),
            padding=(size // 2, size // 2),
            name=name,
            **self.layouts,
        )

    def unit(
        self, x: Expr, channels: int, stride: int, same: bool, name: str, bottleneck: bool
    ) -> Expr:
        """Normalize, activate, convolve, two or three times, and a shortcut."""
        narrow = channels // 4
        sizes = (
            [(narrow, 1, stride), (narrow, 3, 1), (channels, 1, 1)]
            if bottleneck
            else [(channels, 3, stride), (channels, 3, 1)]
        )
        first = out = x
        for i, (width, size, step) in enumerate(sizes, 1):
            out = self.act(out, f"{name}_bn{i}")
            if i == 1:
                first = out
            out = self.conv(out, width, size, step, f"{name}_conv{i}")
        shortcut = x if same else self.conv(first, channels, 1, stride, f"{name}_sc")
        return add(out, shortcut)


def resnet(
    units: Sequence[int],
    num_stages: int,
    filter_list: Sequence[int],
    num_classes: int,
    data_shape: Sequence[int],
    bottle_neck: bool = True,
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Function:
    """The function; weights have no types.

    Raises ValueError if there is not one number of units for each stage.
    """
    if len(units) != num_stages or len(filter_list) != num_stages + 1:
        raise ValueError(
            f"resnet: {num_stages} stages need as many units and one filter more,"
            f" got {list(units)} and {list(filter_list)}"
        )
    make = _Blocks(layout)
    body = make.norm(var("data", shape=data_shape, dtype=dtype), "bn_data", scale=False)
    if data_shape[layout.index("H")] <= 32:
        body = make.conv(body, filter_list[0], 3, 1, "conv0")
    else:
        body = make.act(make.conv(body, filter_list[0], 7, 2, "conv0"), "bn0")
        body = nn.max_pool2d(body, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), layout=layout)
    for stage, count in enumerate(units):
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            name = f"stage{stage + 1}_unit{i + 1}"
            body = make.unit(body, filter_list[stage + 1], stride, i > 0, name, bottle_neck)
    pool = nn.global_avg_pool2d(make.act(body, "bn1"), layout=layout)
    fc = dense_add_bias(nn.batch_flatten(pool), units=num_classes, name="fc1")
    return closed(nn.softmax(fc))


def get_net(
    batch_size: int,
    num_classes: int,
    num_layers: int = 50,
    image_shape: tuple[int, ...] = (3, 224, 224),
    layout: str = "NCHW",
    dtype: str = "float32",
    **kwargs: Any,
) -> Function:
    """The function for images like CIFAR's (28 rows at most) or ImageNet's.

    Raises ValueError for a number of layers that there is not.
    """
    small = image_shape[layout.index("H") - 1] <= 28
    if small:
        deep = num_layers >= 164
        per_stage, rest = divmod(num_layers - 2, 9 if deep else 6)
        if rest:
            raise ValueError(
                f"resnet: for images of at most 28 rows num_layers - 2 must be a multiple of"
                f" {9 if deep else 6}, got {num_layers}"
            )
        units: Sequence[int] = (per_stage,) * 3
        filters: Sequence[int] = (16, 64, 128, 256) if deep else (16, 16, 32, 64)
    else:
        deep = num_layers >= 50
        if num_layers not in _UNITS:
            raise ValueError(f"resnet: num_layers must be one of {list(_UNITS)}, got {num_layers}")
        units = _UNITS[num_layers]
        filters = (64, 256, 512, 1024, 2048) if deep else (64, 64, 128, 256, 512)
    shape = (batch_size, *image_shape)
    return resnet(units, len(units), filters, num_classes, shape, deep, layout, dtype)


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    num_layers: int = 18,
    image_shape: tuple[int, ...] = (3, 224, 224),
    layout: str = "NCHW",
    dtype: str = "float32",
    **kwargs: Any,
) -> Workload:
    """The module and its parameters."""
    net = get_net(batch_size, num_classes, num_layers, image_shape, layout, dtype, **kwargs)
    return create_workload(net)
