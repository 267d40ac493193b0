"""Relay's types: tensors of known rank, tuples, functions.

They are values: equal when their parts are.  A dimension is an int or `ANY`, Relay's `?`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


class AnyDim:
    """A dimension that only the run knows; printed as `?`.  There is one, `ANY`."""

    def __repr__(self) -> str:
        return "?"


ANY = AnyDim()
Dim: TypeAlias = "int | AnyDim"


@dataclass(frozen=True)
class TensorType:
    """`Tensor[(2, 3), float32]`; a scalar, with no dimensions, is printed as its dtype alone."""

    shape: tuple[Dim, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class TupleType:
    """`(Tensor[…], …)`; one field is printed with a comma after it."""

    fields: tuple[Type, ...]


@dataclass(frozen=True)
class FuncType:
    """`fn (Tensor[…], …) -> Tensor[…]`."""

    arg_types: tuple[Type, ...]
    ret_type: Type


Type: TypeAlias = "TensorType | TupleType | FuncType"
