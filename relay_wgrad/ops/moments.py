"""Mean and variance over axes, and what is standardized by them, of operators with gradients.

`emit` binds an expression to a variable; the axes stay, of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ..ir import const_like

op = relax.op
Emit = Callable[[Any], Any]


def moments(emit: Emit, x: Any, axes: Sequence[int]) -> tuple[Any, Any, Any]:
    """(the mean, x less the mean, the population's variance)."""
    mean = emit(op.mean(x, list(axes), keepdims=True))
    centred = emit(op.subtract(x, mean))
    return mean, centred, emit(op.mean(op.multiply(centred, centred), list(axes), keepdims=True))


def deviation(emit: Emit, variance: Any, epsilon: float) -> Any:
    """The root of a variance and a small number."""
    return emit(op.sqrt(op.add(variance, const_like(epsilon, variance))))


def standardized(emit: Emit, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """x less its mean over its deviation."""
    _, centred, variance = moments(emit, x, axes)
    return emit(op.divide(centred, deviation(emit, variance, epsilon)))
