"""`relay.random`: numbers by a key, which each call takes and gives anew."""

from __future__ import annotations

import numpy as np

from ..ast import Constant
from .generated.random import *  # noqa: F403


def threefry_key(seed: int) -> Constant:
    """The key of a seed below 2^256.

    Raises ValueError for another.
    """
    if not 0 <= seed < 1 << 256:
        raise ValueError(f"threefry_key: the seed must be from 0 to 2^256 - 1, got {seed}")
    words = [seed >> 64 * k & (1 << 64) - 1 for k in range(4)]
    return Constant(np.array([*words, 0, 0, 0, 0, 1 << 63, 0], "uint64"))
