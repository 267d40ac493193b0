"""Operators on each element, of one argument or of two that broadcast, and tensors put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Call, Expr, Tuple
from ..expr import TupleWrapper
from ..expr_methods import ExprMethods
from ..make import call
from .made import tensor as made
from .made.tensor import *  # noqa: F403

__all__ = ["concatenate", "einsum", "stack"]
__all__ += made.__all__


def einsum(data: Sequence[Expr], equation: str) -> Call:
    """Products of the tensors, summed over the letters that the result of `equation` has not."""
    return call("einsum", Tuple(tuple(data)), equation=equation)


def concatenate(data: Expr | Sequence[Expr] | TupleWrapper, axis: int) -> Call:
    """Tensors one after another along an axis.

    Raises ValueError for an empty list.
    """
    return call("concatenate", _tuple("concatenate", data), axis=axis)


def stack(data: Expr | Sequence[Expr] | TupleWrapper, axis: int) -> Call:
    """Tensors of one shape along a new axis.

    Raises ValueError for an empty list.
    """
    return call("stack", _tuple("stack", data), axis=axis)


def _tuple(name: str, data: Any) -> Any:
    if isinstance(data, ExprMethods):
        return data
    if not isinstance(data, (Sequence, TupleWrapper)):
        raise TypeError(f"{name}: data must be a tuple of Relay expressions, got {data!r}")
    if not data:
        raise ValueError(f"{name}: data must not be empty, got {data!r}")
    return Tuple(tuple(data))
