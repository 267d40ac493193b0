"""What a problem is run on, to be compared or timed: random operands, a result to be written."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import numpy_dtype
from .problem import ConvProblem

Array = np.ndarray[Any, Any]


def random_operands(problem: ConvProblem, rng: np.random.Generator) -> tuple[Array, Array]:
    """Standard normal values of both operands, in their layouts and dtypes, in operand order."""
    first, second, _ = problem.roles
    a, b = (
        rng.standard_normal(problem.shape(role)).astype(numpy_dtype(problem.dtype(role)))
        for role in (first, second)
    )
    return a, b


def poisoned(problem: ConvProblem) -> Array:
    """A destination full of NaN: an element that a kernel leaves unwritten shows."""
    result = problem.roles[2]
    return np.full(problem.shape(result), np.nan, numpy_dtype(problem.dtype(result)))
