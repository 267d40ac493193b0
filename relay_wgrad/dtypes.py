"""numpy's dtypes by TVM's names."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

HALVES = ("float16", "bfloat16")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy has no bfloat16 of its own; ml_dtypes has."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
