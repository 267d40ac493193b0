"""MobileNet (Howard et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from .init import Workload, create_workload
from .layers import batch_norm_infer, closed, conv2d, conv_kernel_layout

# (channels, stride) of each separable block after the first convolution.
_BEGIN = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2))
_DEEP = (*((512, 1),) * 5, (1024, 2), (1024, 1))
_SHALLOW = ((1024, 2), (1024, 2))


def mobile_net(
    num_classes: int = 1000,
    data_shape: Sequence[int] = (1, 3, 224, 224),
    dtype: str = "float32",
    alpha: float = 1.0,
    is_shallow: bool = False,
    layout: str = "NCHW",
) -> Function:
    """The function; weights have no types, but for those of depthwise convolutions.

    `alpha` scales the number of channels.
    """
    dense, depthwise = conv_kernel_layout(layout), conv_kernel_layout(layout, True)
    axis = layout.index("C")

    def act(x: Expr, name: str, axis: int) -> Expr:
        return nn.relu(batch_norm_infer(x, epsilon=1e-5, axis=axis, name=name))

    width = int(32 * alpha)
    net: Expr = conv2d(
        var("data", shape=data_shape, dtype=dtype),
        channels=width,
        kernel_size=(3, 3),
        strides=(2, 2),
        padding=(1, 1),
        data_layout=layout,
        kernel_layout=dense,
        name="conv_block_1_conv",
    )
    net = act(net, "conv_block_1_bn", axis)
    for i, (channels, stride) in enumerate(_BEGIN + (_SHALLOW if is_shallow else _DEEP), 1):
        name = f"separable_conv_block_{i}"
        shape = (width, 1, 3, 3) if layout == "NCHW" else (3, 3, width, 1)
        net = nn.conv2d(
            net,
            var(f"{name}_weight", shape=shape, dtype=dtype),
            channels=width,
            groups=width,
            kernel_size=(3, 3),
            strides=(stride, stride),
            padding=(1, 1),
            data_layout=layout,
            kernel_layout=depthwise,
        )
        width = int(channels * alpha)
        net = conv2d(
            act(net, f"{name}_bn1", axis),
            channels=width,
            kernel_size=(1, 1),
            data_layout=layout,
            kernel_layout=dense,
            name=f"{name}_conv2",
        )
        net = act(net, f"{name}_bn2", axis)
    net = nn.batch_flatten(nn.global_avg_pool2d(net, layout=layout))
    net = nn.dense(net, var("fc_weight"), units=num_classes)
    return closed(nn.softmax(nn.bias_add(net, var("fc_bias"))))


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, ...] = (3, 224, 224),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Workload:
    """The module and its parameters."""
    shape = (batch_size, *image_shape)
    return create_workload(mobile_net(num_classes, shape, dtype, layout=layout))
