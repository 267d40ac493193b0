"""Tensors that are known to have no elements, and how large the others are."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from tvm import relax

from ...dtypes import numpy_dtype
from ...ops.auxiliary import EXTREMA
from ..types import TensorType, TupleType, Type


def of_nothing(name: str, ty: Type) -> Any | None:
    """The result of a call where it is known to have no elements; None for all else.

    Most operators' own forms would read of what has nothing.  Sums and means over nothing have
    elements, and are what Relax computes.
    """
    fields = ty.fields if isinstance(ty, TupleType) else (ty,)
    empty = [relax.op.zeros(field.shape, field.dtype) for field in fields if _is_empty(field)]
    # Of nothing there is none to choose, also where nobody asks for it.
    if not fields or len(empty) < len(fields) or name in EXTREMA:
        return None
    return relax.Tuple(empty) if isinstance(ty, TupleType) else empty[0]


def is_known(ty: TensorType) -> bool:
    """Whether all sizes are numbers."""
    return all(isinstance(size, int) for size in ty.shape)


def _is_empty(ty: Type) -> TypeGuard[TensorType]:
    return isinstance(ty, TensorType) and is_known(ty) and 0 in ty.shape


def check_size(name: str, out: Type, largest: int) -> None:
    """Raises ValueError for a result of more bytes than `largest`."""
    for ty in out.fields if isinstance(out, TupleType) else (out,):
        if isinstance(ty, TensorType) and (size := bytes_of(ty)) > largest:
            raise ValueError(
                f"{name}: a result of {size:,} bytes, more than {largest:,}, of type {ty}"
            )


def bytes_of(ty: TensorType) -> int:
    """What a tensor takes in memory, with 1 for each size that only the run knows."""
    count = math.prod(size if isinstance(size, int) else 1 for size in ty.shape)
    return count * numpy_dtype(ty.dtype).itemsize if ty.dtype != "handle" else count
