"""`relay.random`: numbers by a key, which each call takes and gives anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ast import Call, Constant, Expr
from ..expr import const
from ..make import call
from .made.random import *  # noqa: F403


def threefry_key(seed: int) -> Constant:
    """The key of a seed below 2^256.

    Raises ValueError for another.
    """
    if not 0 <= seed < 1 << 256:
        raise ValueError(f"threefry_key: the seed must be from 0 to 2^256 - 1, got {seed}")
    words = [seed >> 64 * k & (1 << 64) - 1 for k in range(4)]
    return Constant(np.array([*words, 0, 0, 0, 0, 1 << 63, 0], "uint64"))


def threefry_generate(key: Expr, shape: Sequence[int]) -> Call:
    """(the next key, random words of 64 bits); the key must not be used again."""
    return call("random.threefry_generate", key, out_shape=shape)


def uniform(
    key: Expr,
    shape: Sequence[int],
    dtype: str = "float32",
    low: float | Expr = 0.0,
    high: float | Expr = 1.0,
) -> Call:
    """(the next key, numbers in [low, high))."""
    ends = (const(v, dtype) if isinstance(v, (int, float)) else v for v in (low, high))
    return call("random.uniform", key, *ends, out_shape=shape, out_dtype=dtype)


def normal(
    key: Expr,
    shape: Sequence[int],
    dtype: str = "float32",
    mean: float | Expr = 0.0,
    scale: float | Expr = 1.0,
) -> Call:
    """(the next key, normal numbers)."""
    given = (const(v, dtype) if isinstance(v, (int, float)) else v for v in (mean, scale))
    return call("random.normal", key, *given, out_shape=shape, out_dtype=dtype)
