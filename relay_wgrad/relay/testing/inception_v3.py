"""Inception v3 (Szegedy et al., 2015).

A module is several towers over one input, side by side; a tower is a chain of convolutions.  The
tables give each tower's steps: (end of the name, channels, kernel, stride), padded to keep the size
where the stride is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ast import Expr, Function
from ..expr import var
from ..op import nn
from ..op.tensor import concatenate
from .init import Workload, create_workload
from .layers import batch_norm_infer, closed, conv2d

Kernel = tuple[int, int]
Step = tuple[str, int, Kernel, int]
Tower = Sequence[Step]


def _conv(
    x: Expr,
    name: str,
    channels: int,
    kernel: Kernel = (1, 1),
    stride: int = 1,
    pad: Kernel = (0, 0),
) -> Expr:
    out = conv2d(
        x,
        channels=channels,
        kernel_size=kernel,
        strides=(stride, stride),
        padding=pad,
        name=f"{name}_conv1",
    )
    return nn.relu(batch_norm_infer(out, epsilon=2e-5, scale=False, name=f"{name}_bn"))


def _pool(x: Expr, kind: str, size: int, stride: int, pad: int) -> Expr:
    sizes: dict[str, Any] = {
        "pool_size": (size, size),
        "strides": (stride, stride),
        "padding": (pad, pad),
    }
    if kind == "max":
        return nn.max_pool2d(x, **sizes)
    return nn.avg_pool2d(x, count_include_pad=True, **sizes)


def _tower(x: Expr, name: str, steps: Iterable[Step]) -> Expr:
    for end, channels, kernel, stride in steps:
        pad = (kernel[0] // 2, kernel[1] // 2) if stride == 1 else (0, 0)
        x = _conv(x, f"{name}{end}", channels, kernel, stride, pad)
    return x


def _same_size(x: Expr, name: str, pool: str, project: int, towers: Sequence[Tower]) -> Expr:
    """Towers, and a pool with a convolution after it."""
    made = [_tower(x, name, steps) for steps in towers]
    made.append(_conv(_pool(x, pool, 3, 1, 1), f"{name}_tower_2_conv", project))
    return concatenate(made, axis=1)


def _half_size(x: Expr, name: str, towers: Sequence[Tower]) -> Expr:
    """Towers that end with a stride of 2, and such a pool."""
    made = [_tower(x, name, steps) for steps in towers]
    return concatenate([*made, _pool(x, "max", 3, 2, 0)], axis=1)


def _module_a(x: Expr, name: str, project: int) -> Expr:
    towers: Sequence[Tower] = [
        [("_conv", 64, (1, 1), 1)],
        [("_tower_conv", 48, (1, 1), 1), ("_tower_conv_1", 64, (5, 5), 1)],
        [
            ("_tower_1_conv", 64, (1, 1), 1),
            ("_tower_1_conv_1", 96, (3, 3), 1),
            ("_tower_1_conv_2", 96, (3, 3), 1),
        ],
    ]
    return _same_size(x, name, "avg", project, towers)


def _module_b(x: Expr, name: str) -> Expr:
    towers: Sequence[Tower] = [
        [("_conv", 384, (3, 3), 2)],
        [
            ("_tower_conv", 64, (1, 1), 1),
            ("_tower_conv_1", 96, (3, 3), 1),
            ("_tower_conv_2", 96, (3, 3), 2),
        ],
    ]
    return _half_size(x, name, towers)


def _module_c(x: Expr, name: str, width: int) -> Expr:
    row, column = (1, 7), (7, 1)
    towers: Sequence[Tower] = [
        [("_conv", 192, (1, 1), 1)],
        [
            ("_tower_conv", width, (1, 1), 1),
            ("_tower_conv_1", width, row, 1),
            ("_tower_conv_2", 192, column, 1),
        ],
        [
            ("_tower_1_conv", width, (1, 1), 1),
            ("_tower_1_conv_1", width, column, 1),
            ("_tower_1_conv_2", width, row, 1),
            ("_tower_1_conv_3", width, column, 1),
            ("_tower_1_conv_4", 192, row, 1),
        ],
    ]
    return _same_size(x, name, "avg", 192, towers)


def _module_d(x: Expr, name: str) -> Expr:
    towers: Sequence[Tower] = [
        [("_tower_conv", 192, (1, 1), 1), ("_tower_conv_1", 320, (3, 3), 2)],
        [
            ("_tower_1_conv", 192, (1, 1), 1),
            ("_tower_1_conv_1", 192, (1, 7), 1),
            ("_tower_1_conv_2", 192, (7, 1), 1),
            ("_tower_1_conv_3", 192, (3, 3), 2),
        ],
    ]
    return _half_size(x, name, towers)


def _module_e(x: Expr, name: str, pool: str) -> Expr:
    """The towers fork at their ends."""
    made = [_conv(x, f"{name}_conv", 320)]
    stems: Sequence[tuple[str, Tower]] = [
        ("_tower", [("_tower_conv", 384, (1, 1), 1)]),
        ("_tower_1", [("_tower_1_conv", 448, (1, 1), 1), ("_tower_1_conv_1", 384, (3, 3), 1)]),
    ]
    for end, steps in stems:
        stem = _tower(x, name, steps)
        made += [
            _tower(stem, f"{name}{end}", [("_mixed_conv", 384, (1, 3), 1)]),
            _tower(stem, f"{name}{end}", [("_mixed_conv_1", 384, (3, 1), 1)]),
        ]
    made.append(_conv(_pool(x, pool, 3, 1, 1), f"{name}_tower_2_conv", 192))
    return concatenate(made, axis=1)


def get_net(
    batch_size: int, num_classes: int, image_shape: tuple[int, ...], dtype: str
) -> Function:
    """The function; weights have no types.  Images must be 299×299 or so: the end pools 8×8."""
    net: Expr = var("data", shape=(batch_size, *image_shape), dtype=dtype)
    net = _conv(net, "conv", 32, (3, 3), 2)
    net = _conv(net, "conv_1", 32, (3, 3))
    net = _conv(net, "conv_2", 64, (3, 3), pad=(1, 1))
    net = _pool(net, "max", 3, 2, 0)
    net = _conv(net, "conv_3", 80)
    net = _conv(net, "conv_4", 192, (3, 3))
    net = _pool(net, "max", 3, 2, 0)
    for name, project in (("mixed", 32), ("mixed_1", 64), ("mixed_2", 64)):
        net = _module_a(net, name, project)
    net = _module_b(net, "mixed_3")
    for i, width in enumerate((128, 160, 160, 192), 4):
        net = _module_c(net, f"mixed_{i}", width)
    net = _module_d(net, "mixed_8")
    net = _module_e(net, "mixed_9", "avg")
    net = _module_e(net, "mixed_10", "max")
    net = nn.batch_flatten(_pool(net, "avg", 8, 1, 0))
    net = nn.dense(net, var("fc1_weight"), units=num_classes)
    # Relay's name for the first layer's bias.
    return closed(nn.softmax(nn.bias_add(net, var("fc2_bias"), axis=-1)))


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: tuple[int, ...] = (3, 299, 299),
    dtype: str = "float32",
) -> Workload:
    """The module and its parameters."""
    return create_workload(get_net(batch_size, num_classes, image_shape, dtype))
