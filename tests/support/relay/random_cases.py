"""Calls of operators of random numbers, with Threefry in Python's integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .op_case import Case

_ALL = (1 << 64) - 1
_TURNS = (14, 16, 52, 57, 23, 40, 5, 37, 25, 33, 46, 12, 58, 22, 32, 32)


def _hash(key: list[int], counter: list[int]) -> list[int]:
    key = [*key, 0x1BD11BDAA9FC1A22 ^ key[0] ^ key[1] ^ key[2] ^ key[3]]
    a, b, c, d = (x & _ALL for x in counter)

    def mixed(x: int, y: int, turn: int) -> tuple[int, int]:
        x = (x + y) & _ALL
        return x, x ^ ((y << turn | y >> 64 - turn) & _ALL)

    for r in range(20):
        if r % 4 == 0:
            s = r // 4
            a, b, c = ((x + key[(s + j) % 5]) & _ALL for j, x in enumerate((a, b, c)))
            d = (d + key[(s + 3) % 5] + s) & _ALL
        one, other = _TURNS[r % 8 * 2 : r % 8 * 2 + 2]
        (a, b), (c, d) = mixed(a, b, one), mixed(c, d, other)
        b, d = d, b
    return [a, b, c, d]


def _generated(key: Any, shape: tuple[int, ...]) -> Any:
    k, total = [int(x) for x in key], int(np.prod(shape))
    if k[7] >= _ALL - total and k[8] == k[9] == 0:
        k = [*_hash(k[:4], [_ALL] * 4), 0, 0, 0, 0, 1 << 63, 0]
    elif k[7] >= _ALL - total:
        k = [*k[:4], k[4] | k[8], k[5] | k[9], 0, 0, *_moved(k)]
    out: list[int] = []
    for i in range(-(-total // 4)):
        # Relay counts in every word, but in the last alone for what is left over.
        step = [4 * i if j == 3 else 0 for j in range(4)] if 4 * i + 4 > total else [i] * 4
        out += _hash(k[:4], [c + n for c, n in zip(k[4:8], step, strict=True)])
    k[6], k[7] = 0, (k[7] + -(-total // 4) * 4) & _ALL
    return np.array(k, "uint64"), np.array(out[:total], "uint64").reshape(shape)


def _moved(k: list[int]) -> tuple[int, int]:
    both = (k[8] << 64 | k[9]) >> 1
    return both >> 64, both & _ALL


def _split(key: Any) -> Any:
    k = [int(x) for x in key]
    if k[8] == k[9] == 0:
        fresh = _hash(k[:4], k[4:8])
        sides = [[*fresh, first, 0, 0, 0, 1 << 62, 0] for first in (0, 1 << 63)]
    else:
        one = [k[4] | k[8], k[5] | k[9]]
        sides = [[*k[:8], *_moved(k)], [*k[:4], *one, *k[6:8], *_moved(k)]]
    return tuple(np.array(side, "uint64") for side in sides)


def _unit(bits: Any, dtype: str) -> Any:
    if dtype == "float64":
        return (bits >> np.uint64(12)).astype("float64") / 2.0**52
    return (bits.astype("uint32") >> 9).astype("float32") / np.float32(2.0**23)


def _uniform(key: Any, low: Any, high: Any) -> Any:
    after, bits = _generated(key, (3, 5))
    return after, _unit(bits, str(low.dtype)) * (high - low) + low


def _normal(key: Any, mean: Any, scale: Any) -> Any:
    after, bits = _generated(key, (2, 3, 5))
    a, b = _unit(bits, str(mean.dtype))
    return after, np.sqrt(-2 * np.log(1 - a)) * np.sin(2 * np.pi * b) * scale + mean


def cases() -> Iterator[Case]:
    """Whole and broken fours, keys without room in counter or path, both widths."""
    words = [0x0123456789ABCDEF, 7, _ALL, 1 << 40]
    begun = np.array([*words, 1 << 62, 0, 0, 24, 1 << 61, 0], "uint64")
    edges = [
        np.array([*words, 5, 0, 0, _ALL - 2, place, rest], "uint64")
        for place, rest in ((0, 0), (1, 0), (0, 1 << 5), (1 << 9, 0))
    ]
    for shape in ((12,), (7,), (2, 3), (1,)):
        yield Case("random.threefry_generate", (begun,), lambda k, s=shape: _generated(k, s),
                   {"out_shape": shape})  # fmt: skip
    for key in edges:
        yield Case("random.threefry_generate", (key,), lambda k: _generated(k, (5,)),
                   {"out_shape": [5]})  # fmt: skip
    for key in (begun, *edges):
        yield Case("random.threefry_split", (key,), _split)
    for dtype in ("float32", "float64"):
        ends, bell = (np.array(v, dtype) for v in (-2, 3)), (np.array(v, dtype) for v in (1, 2))
        attrs: dict[str, Any] = {"out_shape": [3, 5], "out_dtype": dtype}
        yield Case("random.uniform", (begun, *ends), _uniform, attrs)
        yield Case("random.normal", (begun, *bell), _normal, attrs)
