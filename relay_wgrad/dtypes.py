"""Dtypes by TVM's names: which there are of floats, what sums of them are in, numpy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = FLOATS[:2]
MIXED = FLOATS[:3]
"""Those of training in mixed precision: what libraries' convolutions and tensor cores take."""


def wide_of(dtype: str) -> str:
    """What sums of a dtype are kept in, and parameters and statistics beside it."""
    return "float32" if dtype in HALVES else dtype


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy has no bfloat16 of its own; ml_dtypes has."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
