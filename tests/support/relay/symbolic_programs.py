"""Random programs of symbolic sizes, each with the same program of numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from relay_wgrad import relay
from relay_wgrad.relay import te

Sizes = dict[str, int]


@dataclass(frozen=True)
class Program:
    """A program that is made anew for each choice of its batch, height and width."""

    seed: int
    unknown: tuple[str, ...]  # of n, h, w
    any_dims: bool  # `?` instead of a variable

    def symbolic(self) -> relay.Function:
        """With variables, or `?`, for what is unknown; the others are FIXED."""
        made = {
            name: (relay.Any() if self.any_dims else te.size_var(name))
            if name in self.unknown
            else size
            for name, size in FIXED.items()
        }
        return self._made(made)

    def static(self, sizes: Sizes) -> relay.Function:
        """With numbers."""
        return self._made(self.all_sizes(sizes))

    def all_sizes(self, sizes: Sizes) -> Sizes:
        """Those of the unknown, and FIXED."""
        return {k: sizes[k] if k in self.unknown else v for k, v in FIXED.items()}

    def inputs(self, sizes: Sizes) -> list[np.ndarray[Any, Any]]:
        """Random tensors, and the weights."""
        rng = np.random.default_rng(self.seed)
        shapes = [p.type_annotation.concrete_shape for p in self.static(sizes).params]
        return [rng.standard_normal(shape).astype("float32") for shape in shapes]

    def _made(self, sizes: dict[str, Any]) -> relay.Function:
        rng = random.Random(self.seed)
        shape = (sizes["n"], 4, sizes["h"], sizes["w"])
        params = [relay.var(name, shape=shape) for name in "xy"]
        params.append(relay.var("weight", shape=(4, 4, 3, 3)))
        x: Any = params[0]
        for _ in range(rng.randint(1, 5)):
            x = _step(rng, x, params[1], params[2])
        x = _tail(rng, x)
        return relay.Function(params, x)


FIXED = {"n": 2, "h": 8, "w": 6}


def program(seed: int) -> Program:
    """The program of a number."""
    rng = random.Random(-1 - seed)
    unknown = tuple(name for name in FIXED if rng.random() < 0.6) or ("n",)
    # Beside `?` only the batch: Relay forgets what two of them have to do with each other.
    any_dims = rng.random() < 0.25
    return Program(seed, ("n",) if any_dims else unknown, any_dims)


def _step(rng: random.Random, x: Any, y: Any, weight: Any) -> Any:
    """Four axes to four, of four channels."""
    nn = relay.nn
    stride = rng.choice([1, 2])
    half = relay.const(0.5)
    return rng.choice([
        lambda: nn.relu(x),
        lambda: relay.tanh(x),
        lambda: x + half,
        lambda: relay.multiply(x, x),
        lambda: relay.add(x, nn.conv2d(x, weight, padding=1)),
        lambda: nn.conv2d(x, weight, strides=stride, padding=1),
        lambda: nn.conv2d(x, weight, padding=2, dilation=2),
        lambda: nn.conv2d_transpose(x, weight, strides=stride, padding=1),
        lambda: nn.max_pool2d(x, pool_size=2, strides=stride, padding=1),
        lambda: nn.avg_pool2d(x, pool_size=3, strides=stride, padding=1, count_include_pad=True),
        lambda: nn.upsampling(x, 2, 3),
        lambda: nn.softmax(x, rng.choice([0, 1, -1])),
        lambda: relay.subtract(x, relay.mean(x, rng.choice([[2, 3], [1], [0, 3]]), keepdims=True)),
        lambda: relay.concatenate([x, nn.relu(x)], rng.choice([0, 2, 3])),
        lambda: nn.pad(x, ((0, 0), (0, 0), (1, rng.choice([0, 2])), (0, 1))),
        lambda: relay.transpose(relay.transpose(x, [0, 2, 3, 1]), [0, 3, 1, 2]),
        lambda: relay.layout_transform(_blocked(x), "NCHW2c", "NCHW"),
        lambda: relay.reshape_like(nn.batch_flatten(x), x),
        lambda: relay.where(relay.less(x, half), x, relay.zeros_like(x)),
        lambda: nn.batch_norm(x, *[relay.const(np.arange(1.0, 5, dtype="float32"))] * 4)[0],
        lambda: relay.tile(x, (1, 1, 2, 1)),
        lambda: relay.repeat(x, 2, rng.choice([0, 2])),
        lambda: relay.concatenate([relay.split(x, 2, 1)[i] for i in (1, 0)], 1),
        lambda: relay.strided_slice(x, [0, 0], [2**31 - 1, 4], [1, 1]),
        lambda: relay.reverse(x, rng.choice([1, 2])),
        lambda: relay.variance(x, [0, 2], keepdims=True) + x,
    ])()  # fmt: skip


def _tail(rng: random.Random, x: Any) -> Any:
    return rng.choice([
        lambda: x,
        lambda: relay.nn.batch_flatten(x),
        lambda: relay.reshape(x, (0, -1)),
        lambda: relay.reshape(x, (0, 0, -3)),
        lambda: relay.reshape(x, (-1,)),
        lambda: relay.nn.global_avg_pool2d(x),
        lambda: relay.sum(x, [0, 2]),
        lambda: relay.take(x, relay.const(np.array([0, 3, 1])), axis=rng.choice([1, 2])),
        lambda: relay.expand_dims(x, 1),
        lambda: relay.stack([x, x], 2),
        lambda: relay.nn.dense(relay.transpose(x, [0, 2, 3, 1]), _ones(3, 4)),
    ])()  # fmt: skip


def _blocked(x: Any) -> Any:
    return relay.layout_transform(x, "NCHW", "NCHW2c")


def _ones(*shape: int) -> Any:
    return relay.const(np.ones(shape, "float32"))
