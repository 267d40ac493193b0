"""How many dimensions a convolution has, and what follows from it: names, letters of docstrings.

A line is (N, C, L), an image (N, C, H, W), a volume (N, C, D, H, W); in layouts L is W.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

from .layouts import ACTIVATIONS, KERNELS

F = TypeVar("F", bound=Callable[..., Any])

RANKS = (1, 2, 3)
OWN = (2, 3)
"""Those with operators and kernels of this package: a line is an image with one row."""

# By rank: sizes of data, weight and output, and the order of paddings.
_LETTERS = {1: ("L", "S", "Q"), 2: ("HW", "RS", "PQ"), 3: ("DHW", "TRS", "ZPQ")}
_ENDS = {
    1: ("before", "after"),
    2: ("top", "left", "bottom", "right"),
    3: ("front", "top", "left", "back", "bottom", "right"),
}


def for_rank(function: F, name: str, rank: int, **words: str) -> F:
    """The function under its public name, its docstring with the words of its rank: `{pixels}` is
    H, W of an image, `{size}` H alone, `{first}` and `{last}` what pads it, and so on.

    words : further ones of the docstring.
    """
    data, taps, out = _LETTERS[rank]
    ends = _ENDS[rank]
    words |= {
        "name": name, "rank": str(rank), "activation": ACTIVATIONS[rank], "kernel": KERNELS[rank],
        "pixels": ", ".join(data), "taps": ", ".join(taps), "out": ", ".join(out),
        "size": data[0], "tap": taps[0], "made": out[0],
        "ends": ", ".join(ends), "first": ends[0], "last": ends[rank],
    }  # fmt: skip
    function.__name__ = function.__qualname__ = name
    function.__doc__ = cleandoc(function.__doc__ or "").format(**words)  # python -OO leaves none
    return function
