"""JAX functions of one operation or two each, in groups that are compiled together: values and
gradients of each by its float arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from relay_wgrad.ops.elementwise import BINARY, UNARY, Elementwise, by
from tests.support.records import within

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


X, Y = draw(3, 4, 5), draw(3, 4, 5, seed=1)
POSITIVE = np.abs(X) + 0.1
IMAGE = draw(2, 7, 8, 3, seed=2)
LINE, VOLUME = draw(2, 9, 3, seed=3), draw(1, 4, 5, 6, 2, seed=4)
INDEX = np.array([[2, 0], [1, 2]], "int32")


def _windows(reduction: Any, first: float, window: Any, strides: Any, padding: Any) -> Any:
    return lambda x: lax.reduce_window(x, first, reduction, window, strides, padding)


_LAX = {"erf": lax.erf, "erfc": lax.erfc, "rsqrt": lax.rsqrt, "sigmoid": lax.logistic}


def _of_record(record: Elementwise) -> Case:
    """JAX's function of a record, which is called as NumPy's, of operands within its domain."""
    function = _LAX.get(record.name) or getattr(jnp, record.numpy.__name__)
    x = within(record, X, np.tanh)
    if "f" not in record.takes:
        return lambda x: x * function(INDEX + 1).sum(), (X,)
    if record.gives == "bool":
        return lambda x: x * function(x), (x,)
    return function, (x,)


def _of_pair(record: Elementwise) -> Case:
    """The same of two operands, of which one may have to be positive."""
    function = getattr(jnp, record.numpy.__name__)
    if "f" not in record.takes:
        return lambda x: x * function(INDEX + 1, INDEX[::-1] + 2).sum(), (X,)
    x, y = POSITIVE if record.name == "power" else X, POSITIVE if record.name == "divide" else Y
    if record.gives == "bool":
        return lambda x, y: jnp.where(function(x, y), x, y * y), (x, y)
    return function, (x, y)


GROUPS: dict[str, dict[str, Case]] = {
    "functions": {
        **{name: _of_record(record) for name, record in by("stablehlo", UNARY).items()},
        "log1p of little": (jnp.log1p, (X * 1e-9,)), "expm1 of little": (jnp.expm1, (X * 1e-9,)),
        "round away": (lambda x: lax.round(x * 2, lax.RoundingMethod.AWAY_FROM_ZERO), (X,)),
    },
    "activations": {
        name: (getattr(jax.nn, name), (X,))
        for name in ("relu", "relu6", "silu", "gelu", "elu", "selu", "celu", "softplus",
                     "leaky_relu", "hard_swish", "log_sigmoid", "softmax", "log_softmax",
                     "logsumexp", "mish", "hard_tanh", "squareplus")
    },
    "pairs": {
        **{name: _of_pair(record) for name, record in by("stablehlo", BINARY).items()},
        "remainder": (lambda x, y: lax.rem(x, y), (X, POSITIVE)),
        "broadcast": (lambda x, y: x + y * 2, (X, draw(4, 1))),
        "where": (lambda x, y: jnp.where(x > y, x * y, 1.0), (X, Y)),
        "both": (lambda x, y: jnp.where((x > 0) & ~(y > 0) | (x < -1), x, y), (X, Y)),
        "xor": (lambda x, y: jnp.where((x > 0) ^ (y >= 0), x, y), (X, Y)),
        "equal truths": (lambda x, y: jnp.where((x > 0) == (y > 0), x, y), (X, Y)),
        "other truths": (lambda x, y: jnp.where((x > 0) != (y > 0), x, y), (X, Y)),
        "ordered truths": (
            lambda x, y: jnp.where(((x > 0) < (y > 0)) | ((x > 1) >= (y > 1)), x, y), (X, Y)
        ),
        "mod": (lambda x: jnp.mod(x, 0.7), (X,)),
        "clip": (lambda x: jnp.clip(x, -0.5, 0.7), (X,)),
        "clamp": (lambda x: lax.clamp(-0.5, x, 0.7), (X,)),
        "cast": (lambda x: x.astype(jnp.float32).astype(jnp.float64) * (x > 0), (X,)),
        "truth": (lambda x: x * (x.astype(jnp.int32).astype(bool)), (X,)),
        "integers": (lambda x: x * ((INDEX + 1) & 3).sum(), (X,)),
    },
    "moves": {
        "reshape": (lambda x: x.reshape(5, 12) ** 2, (X,)),
        "transpose": (lambda x: x.transpose(2, 0, 1) ** 2, (X,)),
        "there and back": (lambda x: jnp.sin(x.reshape(12, 5).T.T.reshape(3, 4, 5)), (X,)),
        "reverse": (lambda x: x[::-1, :, ::-1] ** 2, (X,)),
        "slice": (lambda x: x[1:, ::2, 1:4:2] ** 2, (X,)),
        "concatenate": (lambda x, y: jnp.concatenate([x, y, x], 1) ** 2, (X, Y)),
        "stack": (lambda x, y: jnp.stack([x, y]) ** 2, (X, Y)),
        "pad": (lambda x: lax.pad(x, 0.5, [(1, 2, 0), (0, 0, 2), (-1, 1, 1)]) ** 2, (X,)),
        "pad a broadcast": (lambda x: jnp.pad(jnp.broadcast_to(x, (4, 3)), 1) ** 2, (draw(1, 3),)),
        "repeat": (lambda x: jnp.repeat(x, 3, 1) ** 2, (X,)),
        "tile": (lambda x: jnp.tile(x, (1, 2, 3)) ** 2, (X,)),
        "iota": (lambda x: x * jnp.arange(5.0), (X,)),
        "eye": (lambda x: x @ jnp.eye(5)[:, :3], (X,)),
        "triangle": (lambda x: jnp.tril(x) ** 2, (X,)),
        "one hot": (lambda x: x * jax.nn.one_hot(jnp.asarray([3]), 5), (X,)),
        "roll": (lambda x: jnp.roll(x, 2, 1) ** 2, (X,)),
        "barrier": (lambda x: lax.optimization_barrier(x) ** 2, (X,)),
        "remat": (jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), (X,)),
    },
    "places": {
        "take": (lambda x: jnp.take(x, INDEX, 1) ** 2, (X,)),
        "take rows": (lambda x: x[INDEX] ** 2, (X,)),
        "rows by computed places": (lambda x, i: x[i] ** 2, (X, INDEX)),
        "along": (lambda x, i: jnp.take_along_axis(x, i[:, :, None] + 1, 1) ** 2,
                  (X[:2], INDEX)),
        "points": (lambda x, i: x[i, i + 1] ** 2, (X, INDEX)),
        "columns": (lambda x, i: x[:, i, 1:3] ** 2, (X, INDEX)),
        "set": (lambda x, y: x.at[1, 2].set(y[0, 0]) ** 2, (X, Y)),
        "add": (lambda x, i: x.at[i].add(2.0) ** 2, (X, INDEX)),
        "beyond": (lambda x, i: x.at[i + 2].add(x[:1], mode="drop") ** 2, (X, INDEX)),
        "dynamic slice": (
            lambda x, i: lax.dynamic_slice(x, (i[0, 0], *i[:, 1]), (2, 3, 2)) ** 2, (X, INDEX)
        ),
        "dynamic update": (
            lambda x, y, i: lax.dynamic_update_slice(x, y[:1, :2], (*i[1], i[0, 1])) ** 2,
            (X, Y, INDEX),
        ),
        "known places": (lambda x: lax.dynamic_slice_in_dim(x, 1, 2, 1) ** 2, (X,)),
    },
    "sums": {
        "sum": (lambda x: x.sum((0, 2)) ** 2, (X,)), "all": (lambda x: x.sum() ** 2, (X,)),
        "max": (lambda x: x.max(1), (X,)), "min": (lambda x: x.min((0, 2)), (X,)),
        "mean": (lambda x: x.mean(1, keepdims=True) * x, (X,)), "var": (jnp.var, (X,)),
        "std": (lambda x: x.std(2), (X,)), "norm": (jnp.linalg.norm, (X[0],)),
        "any": (lambda x: x * jnp.any(x > 1.5, 1, keepdims=True), (X,)),
        "every": (lambda x: x * jnp.all(x > -1.5, 1, keepdims=True), (X,)),
        "of a first value": (lambda x: x.sum(1, initial=2.0) ** 2, (X,)),
    },
    "products": {
        "matmul": (jnp.matmul, (X, draw(5, 2))), "batched": (jnp.matmul, (X, draw(3, 5, 2))),
        "einsum": (lambda x, y: jnp.einsum("abc,dbc->ad", x, y), (X, Y)),
        "tensordot": (lambda x, y: jnp.tensordot(x, y, ([0, 2], [0, 2])), (X, Y)),
        "outer": (jnp.outer, (X[0, 0], Y[1, 1])), "dot": (jnp.dot, (X[0, 0], Y[1, 1])),
        "attention": (lambda q, k: jax.nn.softmax(q @ k.swapaxes(1, 2)) @ k, (X, Y)),
    },
    "windows": {
        "max": (_windows(lax.max, -np.inf, (1, 3, 2, 1), (1, 2, 2, 1), "SAME"), (IMAGE,)),
        "max, first axes": (
            _windows(lax.max, -np.inf, (1, 1, 2, 3), (1, 1, 2, 1), "VALID"),
            (IMAGE.transpose(0, 3, 1, 2),),
        ),
        "max of lines": (_windows(lax.max, -np.inf, (1, 3, 1), (1, 2, 1), "SAME"), (LINE,)),
        "max, odd axes": (
            _windows(lax.max, -np.inf, (2, 1, 3, 1), (1, 1, 2, 1), "VALID"), (IMAGE,)
        ),
        "min": (_windows(lax.min, np.inf, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), (IMAGE,)),
        "average": (
            lambda x: _windows(lax.add, 0.0, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")(x) / 9, (IMAGE,)
        ),
        "sum of lines": (_windows(lax.add, 0.0, (1, 4, 1), (1, 3, 1), "SAME"), (LINE,)),
        "sum of volumes": (
            _windows(lax.add, 0.0, (1, 2, 3, 2, 1), (1, 2, 1, 2, 1), "VALID"), (VOLUME,)
        ),
        "sum, apart": (
            lambda x: lax.reduce_window(
                x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 2, 1), [(0, 0), (1, 0), (2, 1), (0, 0)],
                base_dilation=(1, 2, 1, 1), window_dilation=(1, 1, 3, 1),
            ),
            (IMAGE,),
        ),
        "counted": (
            lambda x: _windows(lax.add, 0.0, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")(x)
            / _windows(lax.add, 0.0, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")(jnp.ones_like(x)),
            (IMAGE,),
        ),
    },
}  # fmt: skip
