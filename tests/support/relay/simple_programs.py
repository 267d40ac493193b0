"""Random chains of casts, changes of axes, constants and filled tensors, for SimplifyExpr."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from relay_wgrad import relay
from relay_wgrad.relay import transform as T

SHAPE = (2, 4, 3, 5)
_DTYPES = ["int8", "uint8", "int16", "int32", "int64", "float32", "float64"]


def program(seed: int) -> relay.IRModule:
    """A function of two tensors of one dtype, of up to eight steps; results as float64."""
    rng = random.Random(seed)
    start = rng.choice(_DTYPES)
    params = [relay.var(name, shape=SHAPE, dtype=start) for name in "xy"]
    out: Any = params[0]
    for _ in range(rng.randint(1, 8)):
        out = _step(rng, out, params)
    body = relay.cast(out, "float64") if rng.random() < 0.5 else out
    return T.InferType()(relay.IRModule.from_expr(relay.Function(params, body)))


def _step(rng: random.Random, x: Any, params: list[Any]) -> Any:
    ty = T.InferTypeLocal(x)
    dtype, shape = ty.dtype, ty.shape
    const = relay.const(np.array(rng.randint(-3, 3), "int64").astype(dtype), dtype)
    full = rng.choice([
        lambda: relay.zeros(shape, dtype), lambda: relay.ones_like(x),
        lambda: relay.full_like(x, const), lambda: relay.full(const, shape, dtype),
    ])  # fmt: skip
    binary = rng.choice([relay.add, relay.multiply, relay.subtract, relay.maximum])
    steps = [
        lambda: binary(x, const), lambda: binary(x, const), lambda: binary(const, x),
        lambda: binary(x, full()), lambda: binary(full(), x), lambda: relay.add(x, x),
        lambda: relay.clip(x, *rng.choice([(0, 255), (-128, 127), (0, 10), (-300, 300)])),
        lambda: relay.reshape(x, (-1, 4)) if len(shape) == 2 else relay.reshape(x, (4, -1)),
    ]  # fmt: skip
    if len(shape) == 4:
        axes = rng.sample(range(4), 4)
        steps += [lambda: relay.transpose(x, axes), lambda: relay.transpose(x)]
        steps += [lambda: relay.layout_transform(x, "NCHW", rng.choice(["NHWC", "WHCN", "NCHW"]))]
        if shape[1] == 4:
            steps += [lambda: relay.layout_transform(x, "NCHW", "NCHW2c")] * 2
    elif len(shape) == 5 and shape[4] == 2 and shape[1] == 2:
        back = ["NCHW", "NHWC", "HWCN", "NCHW2c"]
        steps += [lambda: relay.layout_transform(x, "NCHW2c", rng.choice(back))] * 3
    if np.dtype(dtype).kind in "ui":
        # From integers alone: what a float that is out of range becomes has no meaning.
        steps += [lambda: relay.cast(x, rng.choice(_DTYPES))] * 4
    else:
        steps += [lambda: relay.cast(x, rng.choice(["float32", "float64"])),
                  lambda: relay.cast(relay.clip(x, 0, 100), rng.choice(_DTYPES)),
                  lambda: relay.divide(x, _root(x))]  # fmt: skip
    return rng.choice(steps)()


def _root(x: Any) -> Any:
    return relay.sqrt(relay.add(relay.multiply(x, x), relay.ones_like(x)))
