"""Networks of flax (nnx and linen) and equinox, as their users write and train them with optax.

Each is a function of (`optimize`, `whole`, dtype, sizes) that returns a step, of one batch, and its
loss; the step keeps the training's state.  `optimize` is put around the loss, or, where `whole` is
true, around the step with its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from flax import linen, nnx
from jax import numpy as jnp

Step = Callable[[Any, Any], Any]  # of samples and what is wanted of them: the loss
Optimize = Callable[[Callable[..., Any]], Callable[..., Any]]
CLASSES = 10


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _around(optimize: Optimize, whole: bool) -> tuple[Optimize, Optimize]:
    """What is put around the loss, and around the step."""
    return (_same, optimize) if whole else (optimize, _same)


def _as(dtype: Any, x: Any) -> Any:
    return x.astype(dtype) if eqx.is_inexact_array(x) else x


def _classified(logits: Any, labels: Any) -> Any:
    logits = logits.astype(jnp.promote_types(logits.dtype, "float32"))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


# ---- flax's nnx: ResNet-18 -----------------------------------------------------------------------


class Block(nnx.Module):
    def __init__(self, c: int, k: int, stride: int, like: dict[str, Any]) -> None:
        self.first = nnx.Conv(c, k, (3, 3), strides=stride, use_bias=False, **like)
        self.second = nnx.Conv(k, k, (3, 3), use_bias=False, **like)
        self.norms = nnx.List([nnx.BatchNorm(k, **like) for _ in range(2)])
        self.shortcut = (
            nnx.Conv(c, k, (1, 1), strides=stride, use_bias=False, **like)
            if stride > 1 or c != k
            else None
        )

    def __call__(self, x: Any) -> Any:
        y = nnx.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nnx.Module):
    def __init__(self, width: int, dtype: Any) -> None:
        held = jnp.promote_types(dtype, "float32")  # parameters of half are kept in float32
        like = {"dtype": dtype, "param_dtype": held, "rngs": nnx.Rngs(0)}
        self.stem = nnx.Conv(3, width, (7, 7), strides=2, use_bias=False, **like)
        self.norm = nnx.BatchNorm(width, **like)
        sizes = [width, *(width * 2**i for i in range(4) for _ in range(2))]
        self.blocks = nnx.List([Block(c, k, 1 + (c != k), like) for c, k in pairwise(sizes)])
        self.head = nnx.Linear(sizes[-1], CLASSES, **like)

    def __call__(self, x: Any) -> Any:
        x = nnx.max_pool(nnx.relu(self.norm(self.stem(x))), (3, 3), (2, 2), "SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


def resnet18(optimize: Optimize, whole: bool, dtype: Any, width: int = 64) -> Step:
    """Of images NHWC: `nnx.jit`, statistics that the loss writes into the model.

    The objects are taken apart once, else by Python in each step, longer than an H200 computes.
    """
    model = ResNet18(width, dtype)
    if dtype == jnp.float64:  # flax has statistics in float32
        nnx.update(model, jax.tree.map(partial(_as, dtype), nnx.state(model)))
    state = nnx.Optimizer(model, optax.sgd(0.005, momentum=0.9), wrt=nnx.Param)
    of_loss, of_step = _around(optimize, whole)

    def loss(model: ResNet18, x: Any, labels: Any) -> Any:
        return _classified(model(x), labels)

    def step(model: ResNet18, state: Any, x: Any, labels: Any) -> Any:
        value, gradients = nnx.value_and_grad(of_loss(loss))(model, x, labels)
        state.update(model, gradients)
        return value

    return nnx.cached_partial(nnx.jit(of_step(step)), model, state)


# ---- equinox: a U-Net ----------------------------------------------------------------------------


class UNet(eqx.Module):
    down: list[Any]
    up: list[Any]
    norms: list[Any]
    across: list[Any]
    last: Any

    def __init__(self, width: int, depth: int, key: Any) -> None:
        keys = iter(jax.random.split(key, 4 * depth + 1))
        sizes = [1, *(width * 2**i for i in range(depth + 1))]
        conv, turned = eqx.nn.Conv2d, eqx.nn.ConvTranspose2d
        pairs = list(pairwise(sizes[1:]))
        self.down = [conv(1, width, 3, padding=1, key=next(keys))]
        self.down += [conv(c, k, 3, stride=2, padding=1, key=next(keys)) for c, k in pairs]
        self.up = [turned(k, c, 2, stride=2, key=next(keys)) for c, k in pairs]
        self.norms = [eqx.nn.GroupNorm(4, c) for c, _ in pairs]
        self.across = [conv(2 * c, c, 3, padding=1, key=next(keys)) for c, _ in pairs]
        self.last = conv(width, 1, 1, key=next(keys))

    def __call__(self, x: Any) -> Any:
        kept = []
        for layer in self.down:
            x = jax.nn.silu(layer(x))
            kept.append(x)
        for i in reversed(range(len(self.up))):
            x = jnp.concatenate([self.norms[i](self.up[i](x)), kept[i]])
            x = jax.nn.silu(self.across[i](x))
        return self.last(x)


def unet(optimize: Optimize, whole: bool, dtype: Any, width: int = 16, depth: int = 2) -> Step:
    """Of images (N, 1, H, W): equinox's modules take one image, `vmap` makes a batch of them."""
    made = UNet(width, depth, jax.random.key(0))
    model = jax.tree.map(partial(_as, dtype), made)
    optimizer = optax.adam(2e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    of_loss, of_step = _around(optimize, whole)

    def loss(model: UNet, x: Any, wanted: Any) -> Any:
        return ((jax.vmap(model)(x) - wanted) ** 2).mean()

    def step(model: UNet, state: Any, x: Any, wanted: Any) -> Any:
        value, gradients = eqx.filter_value_and_grad(of_loss(loss))(model, x, wanted)
        changes, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, changes), state, value

    jitted = eqx.filter_jit(of_step(step))

    def run(x: Any, wanted: Any) -> Any:
        nonlocal model, state
        model, state, value = jitted(model, state, x, wanted)
        return value

    return run


# ---- flax's linen: a WaveNet ---------------------------------------------------------------------


class WaveNet(linen.Module):
    width: int
    layers: int
    dtype: Any

    @linen.compact
    def __call__(self, x: Any) -> Any:
        conv = partial(linen.Conv, dtype=self.dtype, param_dtype=self.dtype)
        x = conv(self.width, (1,))(x)
        skips = []
        for i in range(self.layers):
            past = partial(
                conv, kernel_size=(3,), kernel_dilation=2**i, padding="CAUSAL",
                feature_group_count=self.width,
            )  # fmt: skip
            y = jnp.tanh(past(self.width)(x)) * jax.nn.sigmoid(past(self.width)(x))
            skips.append(conv(self.width, (1,))(y))
            x = x + skips[-1]
        return conv(1, (1,))(linen.relu(sum(skips)))


def wavenet(optimize: Optimize, whole: bool, dtype: Any, width: int = 32, layers: int = 5) -> Step:
    """Of signals (N, L, 1): each sample from those before it; the state is donated."""
    model = WaveNet(width, layers, dtype)
    weights = model.init(jax.random.key(0), jnp.zeros((1, 8, 1), dtype))
    optimizer = optax.adamw(5e-3)
    state = (weights, optimizer.init(weights))
    of_loss, of_step = _around(optimize, whole)

    def loss(weights: Any, x: Any, wanted: Any) -> Any:
        return ((model.apply(weights, x) - wanted) ** 2).mean()

    def step(state: Any, x: Any, wanted: Any) -> Any:
        weights, moments = state
        value, gradients = jax.value_and_grad(of_loss(loss))(weights, x, wanted)
        changes, moments = optimizer.update(gradients, moments, weights)
        return (optax.apply_updates(weights, changes), moments), value

    jitted = jax.jit(of_step(step), donate_argnums=0)

    def run(x: Any, wanted: Any) -> Any:
        nonlocal state
        state, value = jitted(state, x, wanted)
        return value

    return run


# ---- data ----------------------------------------------------------------------------------------

NETWORKS = {"resnet18": resnet18, "unet": unet, "wavenet": wavenet}


def batches(name: str, count: int, n: int, size: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    """count of n samples with what is wanted of them, the same each time."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        if name == "resnet18":
            labels = rng.integers(0, CLASSES, n)
            x = rng.standard_normal((n, size, size, 3)) + labels[:, None, None, None] / CLASSES
            yield jnp.asarray(x, dtype), jnp.asarray(labels)
        elif name == "unet":
            wanted = np.sign(rng.standard_normal((n, 1, size // 4, size // 4)))
            wanted = wanted.repeat(4, 2).repeat(4, 3)
            x = wanted + rng.standard_normal(wanted.shape)
            yield jnp.asarray(x, dtype), jnp.asarray(wanted, dtype)
        else:
            x = np.sin(np.arange(size + 1) * rng.uniform(0.02, 0.2, (n, 1)))[:, :, None]
            yield jnp.asarray(x[:, :-1], dtype), jnp.asarray(x[:, 1:], dtype)


def losses(
    name: str, optimize: Optimize = _same, whole: bool = False, *, count: int = 20, n: int = 4,
    size: int = 32, dtype: Any = "float64", **sizes: int,
) -> list[float]:  # fmt: skip
    """A training's, of each step."""
    step = NETWORKS[name](optimize, whole, jnp.dtype(dtype), **sizes)
    return [float(step(*batch)) for batch in batches(name, count, n, size, dtype)]
