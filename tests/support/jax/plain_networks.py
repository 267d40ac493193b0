"""Networks in plain JAX, in either layout, as losses of (parameters, images, labels).

Parameters are drawn as the network is written: `Net` hands them out, so that a network is one
function, run once for its parameters and then for its loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

CLASSES = 5
Array = Any


class Net:
    """Layers of a network in one layout, and its parameters.

    params : None: they are drawn, and are in `drawn` afterwards.
    """

    def __init__(
        self, layout: str, params: list[Array] | None = None, dtype: str = "float64"
    ) -> None:
        self.last = layout == "NHWC"
        self.numbers = ("NHWC", "HWIO", "NHWC") if self.last else ("NCHW", "OIHW", "NCHW")
        self.rng = np.random.default_rng(0)
        self.dtype = dtype
        self.params, self.drawn = params, list[Array]()

    @property
    def pixels(self) -> tuple[int, int]:
        return (1, 2) if self.last else (2, 3)

    @property
    def axis(self) -> int:
        """Of the channels."""
        return 3 if self.last else 1

    def param(self, shape: tuple[int, ...], scale: float, around: float = 0.0) -> Array:
        value = np.asarray(around + scale * self.rng.standard_normal(shape), self.dtype)
        self.drawn.append(value)
        return value if self.params is None else self.params[len(self.drawn) - 1]

    def channels(self, x: Array) -> int:
        return int(x.shape[self.axis])

    def shift(self, x: Array, scale: float = 0.1, around: float = 0.0) -> Array:
        """A number for each channel."""
        value = self.param((self.channels(x),), scale, around)
        return value if self.last else value[:, None, None]

    def conv(
        self, x: Array, k: int, size: int | tuple[int, int] = 3, stride: int = 1,
        padding: Any = "SAME", groups: int = 1, dilation: int = 1, bias: bool = True,
    ) -> Array:  # fmt: skip
        r, s = (size, size) if isinstance(size, int) else size
        c = self.channels(x) // groups
        shape = (r, s, c, k) if self.last else (k, c, r, s)
        weight = self.param(shape, (r * s * c) ** -0.5)
        y = lax.conv_general_dilated(
            x, weight, (stride, stride), padding, None, (dilation, dilation), self.numbers, groups
        )
        return y + self.shift(y) if bias else y

    def conv_transpose(self, x: Array, k: int, size: int = 4, stride: int = 2) -> Array:
        c = self.channels(x)
        shape = (size, size, c, k) if self.last else (c, k, size, size)
        weight = self.param(shape, (size * size * c / stride**2) ** -0.5)
        kernel = "HWIO" if self.last else "IOHW"
        numbers = (self.numbers[0], kernel, self.numbers[2])
        y = lax.conv_transpose(x, weight, (stride, stride), "SAME", dimension_numbers=numbers)
        return y + self.shift(y)

    def norm(self, x: Array) -> Array:
        """Batch normalization, in training."""
        axes = (0, *self.pixels)
        mean = x.mean(axes, keepdims=True)
        variance = jnp.square(x - mean).mean(axes, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * self.shift(x, 0.1, 1.0) + self.shift(x)

    def layer_norm(self, x: Array) -> Array:
        mean = x.mean(self.axis, keepdims=True)
        variance = x.var(self.axis, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-6) * self.shift(x, 0.1, 1.0) + self.shift(x)

    def pool(self, x: Array, size: int = 2, stride: int = 2, padding: str = "VALID") -> Array:
        window = [1] * 4
        strides = [1] * 4
        for a in self.pixels:
            window[a], strides[a] = size, stride
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)

    def average(self, x: Array, size: int = 2, stride: int = 2, padding: str = "VALID") -> Array:
        window = [1] * 4
        strides = [1] * 4
        for a in self.pixels:
            window[a], strides[a] = size, stride
        total = lax.reduce_window(x, 0.0, lax.add, window, strides, padding)
        count = lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, window, strides, padding)
        return total / count

    def dense(self, x: Array, k: int) -> Array:
        c = x.shape[-1]
        return x @ self.param((c, k), c**-0.5) + self.param((k,), 0.1)

    def head(self, x: Array) -> Array:
        return self.dense(x.mean(self.pixels), CLASSES)


def cross_entropy(logits: Array, labels: Array) -> Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -picked.mean()


# ---- networks ------------------------------------------------------------------------------------


def cnn(net: Net, x: Array, width: int, depth: int, stride: int) -> Array:
    """Convolutions, ReLU, a maximum's pooling; then two dense layers."""
    for i in range(depth):
        x = jax.nn.relu(net.conv(x, width * (i + 1), stride=stride if i == 0 else 1))
        x = net.pool(x) if i == 0 else x
    return net.dense(jax.nn.relu(net.dense(x.reshape(x.shape[0], -1), 12)), CLASSES)


def resnet(net: Net, x: Array, width: int, depth: int, stride: int, groups: int = 1) -> Array:
    """Residual blocks with batch normalization; with groups, ResNeXt's."""
    x = jax.nn.relu(net.norm(net.conv(x, width, 3, bias=False)))
    x = net.pool(x, 3, 2, "SAME")
    for i in range(depth):
        step, k = (stride, 2 * width) if i == 1 else (1, net.channels(x))
        y = jax.nn.relu(net.norm(net.conv(x, k, 1, bias=False)))
        y = jax.nn.relu(net.norm(net.conv(y, k, 3, step, groups=groups, bias=False)))
        y = net.norm(net.conv(y, k, 1, bias=False))
        if y.shape != x.shape:
            x = net.norm(net.conv(x, k, 1, step, bias=False))
        x = jax.nn.relu(x + y)
    return net.head(x)


def resnext(net: Net, x: Array, width: int, depth: int, stride: int) -> Array:
    return resnet(net, x, width, depth, stride, groups=4)


def unet(net: Net, x: Array, width: int, depth: int, stride: int) -> Array:
    """Down by pooling, up by transposed convolutions beside what was there before."""
    left = []
    for i in range(depth):
        x = jax.nn.silu(net.conv(x, width * 2**i))
        left.append(x)
        x = net.pool(x)
    x = jax.nn.silu(net.conv(x, width * 2**depth))
    for i in reversed(range(depth)):
        x = net.conv_transpose(x, width * 2**i, 2)
        x = jnp.concatenate([left[i], x], net.axis)
        x = jax.nn.silu(net.conv(x, width * 2**i))
    return net.head(net.conv(x, CLASSES, 1))


def convnext(net: Net, x: Array, width: int, depth: int, stride: int) -> Array:
    """Depthwise 7×7, layer normalization, GELU, a scale for each channel."""
    x = net.layer_norm(net.conv(x, width, stride, stride, "VALID"))
    for i in range(depth):
        c = net.channels(x)
        y = net.layer_norm(net.conv(x, c, 7, groups=c))
        y = net.conv(jax.nn.gelu(net.conv(y, 2 * c, 1), approximate=bool(i % 2)), c, 1)
        x = x + y * net.shift(y, 0.1, 0.5)
    return net.head(net.conv(net.layer_norm(x), 2 * width, 2, 2, "VALID"))


def dcgan(net: Net, x: Array, width: int, depth: int, stride: int) -> Array:
    """A generator and the discriminator behind it, leaky and with normalization."""
    z = x.mean(net.pixels)
    shape = (x.shape[0], 4, 4, width) if net.last else (x.shape[0], width, 4, 4)
    g = net.dense(z, 16 * width).reshape(shape)
    for i in range(depth):
        g = jax.nn.relu(net.norm(net.conv_transpose(g, max(width >> i, 2), 4, stride)))
    y = jnp.tanh(net.conv_transpose(g, 3, 3, 1))
    for i in range(depth):
        y = jax.nn.leaky_relu(net.conv(y, width << i, 4, stride), 0.2)
    return net.head(y)


def dilated(net: Net, x: Array, width: int, depth: int, stride: int) -> Array:
    """Convolutions that are further and further apart, with explicit, uneven padding."""
    x = jax.nn.elu(net.conv(x, width, (3, 2), stride, [(1, 2), (0, 1)]))
    for i in range(depth):
        d = i + 2
        y = jax.nn.softplus(net.conv(x, width, 3, dilation=d, padding=[(d, d), (d, d)]))
        x = x + net.conv(y, width, 1)
    return net.head(net.average(x, 3, 2, "SAME"))


def mobile(net: Net, x: Array, width: int, depth: int, stride: int) -> Array:
    """Inverted residuals: wide, depthwise, narrow again; attention to channels."""
    x = jax.nn.hard_swish(net.norm(net.conv(x, width, 3, stride, bias=False)))
    for i in range(depth):
        c = net.channels(x)
        y = jax.nn.relu6(net.norm(net.conv(x, 3 * c, 1, bias=False)))
        y = net.norm(net.conv(y, 3 * c, 5, 2 if i == 1 else 1, groups=3 * c, bias=False))
        scale = jax.nn.sigmoid(net.conv(y.mean(net.pixels, keepdims=True), 3 * c, 1))
        y = net.norm(net.conv(jax.nn.relu6(y) * scale, c, 1, bias=False))
        x = x + y if y.shape == x.shape else y
    return net.head(x)


NETWORKS: dict[str, Callable[..., Array]] = {
    "cnn": cnn, "resnet": resnet, "resnext": resnext, "unet": unet, "convnext": convnext,
    "dcgan": dcgan, "dilated": dilated, "mobile": mobile,
}  # fmt: skip
VARIANTS = ((8, 2, 2, 16), (12, 3, 2, 24))  # width, depth, stride, image
"""Those of each network, in both layouts."""
_ALONE = {"convnext": 4}  # its stride


def names() -> list[str]:
    return [
        f"{n}-{layout}-{i}"
        for n in NETWORKS
        for layout in ("NHWC", "NCHW")
        for i in range(len(VARIANTS))
    ]


def problem(name: str, dtype: str = "float64", batch: int = 3) -> tuple[Any, tuple[Any, ...]]:
    """(the loss, its arguments: parameters, images, labels)."""
    kind, layout, variant = name.split("-")
    width, depth, stride, size = VARIANTS[int(variant)]
    settings = (width, depth, _ALONE.get(kind, stride))
    rng = np.random.default_rng(1)
    shape = (batch, size, size, 3) if layout == "NHWC" else (batch, 3, size, size)
    x = rng.standard_normal(shape).astype(dtype)
    labels = rng.integers(0, CLASSES, batch).astype("int32")

    def loss(params: list[Array] | None, x: Array, labels: Array) -> Array:
        return cross_entropy(NETWORKS[kind](Net(layout, params, dtype), x, *settings), labels)

    drawing = Net(layout, dtype=dtype)
    jax.eval_shape(lambda v: NETWORKS[kind](drawing, v, *settings), x)
    return loss, (drawing.drawn, x, labels)
