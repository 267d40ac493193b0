"""Small networks as ONNX training graphs, with the operators of ONNX Runtime's gradient builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch

from tests.support.onnx.training import Tape


def _block(t: Tape, x: str, k: int, size: int = 3, **given: Any) -> str:
    return t.relu(t.norm(t.conv(x, k, size, **given)))


def _cnn(t: Tape, w: int) -> str:
    x = t.pool(t.relu(t.conv("x", w, 5, bias=True)), "Max", (2, 2), 2)
    return t.relu(t.conv(x, 2 * w, bias=True))


def _vgg(t: Tape, w: int) -> str:
    x = "x"
    for k in (w, 2 * w):
        x = t.pool(_block(t, _block(t, x, k, bias=True), k, bias=True), "Max", (2, 2), 2)
    return x


def _resnet(t: Tape, w: int) -> str:
    x = _block(t, "x", w)
    for k, stride in ((w, 1), (2 * w, 2)):
        y = t.norm(t.conv(_block(t, x, k, stride=stride), k))
        short = x if stride == 1 else t.norm(t.conv(x, k, 1, stride=stride))
        x = t.relu(t.add(y, short))
    return x


def _bottleneck(t: Tape, w: int, groups: int = 1) -> str:
    x = t.pool(_block(t, "x", w, 7, stride=2), "Max", (3, 3), 2, 1)
    for stride in (1, 2):
        y = _block(t, _block(t, x, w, 1), w, stride=stride, groups=groups)
        y = t.norm(t.conv(y, 2 * w, 1))
        x = t.relu(t.add(y, t.norm(t.conv(x, 2 * w, 1, stride=stride))))
    return x


def _resnext(t: Tape, w: int) -> str:
    return _bottleneck(t, w, 4)


def _mobile(t: Tape, w: int) -> str:
    x = _block(t, "x", w, stride=2)
    for stride in (1, 2):
        y = _block(t, _block(t, x, 3 * w, 1), 3 * w, stride=stride, groups=3 * w)
        y = t.norm(t.conv(y, w, 1))
        x = t.add(x, y) if stride == 1 else y
    return x


def _squeeze(t: Tape, w: int) -> str:
    x = t.pool(t.relu(t.conv("x", w, 3, stride=2, bias=True)), "Max", (3, 3), 2, 1)
    for _ in range(2):
        s = t.relu(t.conv(x, w // 2, 1, bias=True))
        x = t.concat(*(t.relu(t.conv(s, w, size, bias=True)) for size in (1, 3)))
    return x


def _dense(t: Tape, w: int) -> str:
    x = t.conv("x", w)
    for _ in range(3):
        x = t.concat(x, t.conv(t.relu(t.norm(x)), w // 2))
    return t.pool(_block(t, x, w, 1), "Average", (2, 2), 2)


def _inception(t: Tape, w: int) -> str:
    x = _block(t, "x", w, stride=2)
    pooled = t.pool(x, "Average", (3, 3), 1, 1)
    five = _block(t, _block(t, x, w // 2, 1), w, 5)
    return t.concat(_block(t, x, w, 1), five, _block(t, pooled, w // 2, 1))


def _dilated(t: Tape, w: int) -> str:
    x = "x"
    for dilation in (1, 2, 4):
        x = _block(t, x, w, dilation=dilation)
    return x


FAMILIES: dict[str, Callable[[Tape, int], str]] = {
    "CNN": _cnn, "VGG": _vgg, "ResNet": _resnet, "ResNet with bottlenecks": _bottleneck,
    "ResNeXt": _resnext, "MobileNet": _mobile, "SqueezeNet": _squeeze, "DenseNet": _dense,
    "Inception": _inception, "dilated": _dilated,
}  # fmt: skip
SIZES: dict[str, tuple[tuple[int, int, int, int], int]] = {
    "small": ((2, 3, 12, 12), 4), "uneven": ((3, 3, 15, 18), 8), "wide": ((4, 3, 16, 16), 16),
}  # fmt: skip
"""Name -> the images, and the filters that a network begins with."""


def names() -> list[str]:
    """A family and a size each."""
    return [f"{family}, {size}" for size in SIZES for family in FAMILIES]


def step(
    name: str, dtype: torch.dtype = torch.float64
) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(the training graph, its inputs, what PyTorch has for its outputs in a type)."""
    family, _, size = name.rpartition(", ")
    images, width = SIZES[size]
    tape = Tape(images, dtype=dtype)
    model, wanted = tape.finish(FAMILIES[family](tape, width))
    return model, tape.inputs, wanted
