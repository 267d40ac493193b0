"""Seeded initial values of a network's parameters."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def as_array(value: Any) -> Array:
    """Of a NumPy array, a PyTorch or TVM tensor on the CPU, or numbers; of a tensor that requires
    a gradient its value.

    Raises ValueError or TypeError for a tensor that has no array, on another device or sparse.
    """
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # NumPy's type is ml_dtypes', unknown to PyTorch
            raise TypeError("a tensor of bfloat16 has no array: convert it, by `.float()`")
    array: Array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    return array


FILLS = {
    "bias": 0.0, "shift": 0.0, "scale": 1.0, "slope": 0.25, "running_mean": 0.0, "running_var": 1.0,
}  # fmt: skip
"""Roles with a constant initial value; the one other role is `weight`."""

STATES = ("running_mean", "running_var")
"""Roles that are updated by the forward pass and not by a gradient."""


@dataclass
class Role:
    """What a parameter is for: `weight` with its fan-in, or a key of `FILLS`."""

    kind: str
    fan_in: int = 1


def default_role(shape: tuple[int, ...]) -> Role:
    """The role of a parameter whose consumer says nothing: OI… weights have two axes or more."""
    return Role("weight", math.prod(shape[1:])) if len(shape) > 1 else Role("bias")


def seeded(name: str, shape: tuple[int, ...], role: Role, seed: int, dtype: str) -> Array:
    """He's normal values (variance 2/fan-in) for weights, constants for everything else.

    They depend on the seed and on the name only, so neither the order of the parameters nor the
    batch changes them.  They are drawn in float32 and then cast: float64 and float32 runs start
    from the very same weights.
    """
    if role.kind != "weight":
        return np.full(shape, FILLS[role.kind], dtype)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(math.sqrt(2.0 / max(role.fan_in, 1)))
    return values.astype(dtype, copy=False)
