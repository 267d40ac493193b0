"""Relay's types: tensors of known rank, tuples, functions.

They are values: equal when their parts are.  A dimension is an int or `ANY`, Relay's `?`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any as Any_
from typing import TypeAlias


class AnyDim:
    """A dimension that only the run knows; printed as `?`.  There is one, `ANY`."""

    def __repr__(self) -> str:
        return "?"


ANY = AnyDim()
Dim: TypeAlias = "int | AnyDim"
_SIZES = 2**63
NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
DTYPES = {*NUMBERS, "int4", "uint1", "uint4", "e4m3_float8", "e5m2_float8", "handle"}
"""Relay's names of dtypes; those of `NUMBERS` are ones that an array can hold."""
# Of dtypes, in programs written by hand.
OTHER_NAMES = {"int": "int32", "uint": "uint32", "float": "float32", "uint1": "bool"}


def _dim(value: object) -> Dim:
    """A size as a type holds it."""
    if value is ANY:
        return ANY
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"a size must be an integer or relay.Any(), got {value!r}")
    size = int(value)
    if not 0 <= size < _SIZES:
        raise ValueError(f"a size must be at least 0 and fit into 64 bits, got {size}")
    return size


class _Printed:
    """A type whose text is Relay's."""

    def __str__(self) -> str:
        return type_text(self)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TensorType(_Printed):
    """`Tensor[(2, 3), float32]`; a scalar, with no dimensions, is printed as its dtype alone."""

    shape: tuple[Dim, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        given: Any_ = self.shape
        shape = (given,) if isinstance(given, Integral) else given
        if type(shape) is not tuple or any(
            type(d) is not int or not 0 <= d < _SIZES for d in shape
        ):
            object.__setattr__(self, "shape", tuple(map(_dim, shape)))
        if not isinstance(self.dtype, str):
            raise TypeError(f"a dtype must be its name, got {self.dtype!r}")
        if self.dtype not in DTYPES and self.dtype not in OTHER_NAMES:
            raise ValueError(f"unknown dtype {self.dtype!r}")
        object.__setattr__(self, "dtype", OTHER_NAMES.get(self.dtype, str(self.dtype)))

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """The sizes; ValueError if one is `?`."""
        sizes = tuple(d for d in self.shape if isinstance(d, int))
        if len(sizes) != len(self.shape):
            raise ValueError(f"{self} has a size that only the run knows")
        return sizes


@dataclass(frozen=True)
class TupleType(_Printed):
    """`(Tensor[…], …)`; one field is printed with a comma after it."""

    fields: tuple[Type, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))


@dataclass(frozen=True)
class FuncType(_Printed):
    """`fn (Tensor[…], …) -> Tensor[…]`."""

    arg_types: tuple[Type, ...]
    ret_type: Type

    def __post_init__(self) -> None:
        object.__setattr__(self, "arg_types", tuple(self.arg_types))


def scalar_type(dtype: str) -> TensorType:
    """The type of a tensor with no dimensions."""
    return TensorType((), dtype)


def Any() -> AnyDim:  # noqa: N802  Relay's name
    """A dimension that only the run knows."""
    return ANY


Type: TypeAlias = "TensorType | TupleType | FuncType"


def type_text(type_: Type) -> str:
    """The type as Relay prints it."""
    if isinstance(type_, TensorType):
        if not type_.shape:
            return type_.dtype
        dims = ", ".join("?" if isinstance(dim, AnyDim) else str(dim) for dim in type_.shape)
        return f"Tensor[({dims}), {type_.dtype}]"
    if isinstance(type_, TupleType):
        fields = ", ".join(type_text(field) for field in type_.fields)
        return f"({fields},)" if len(type_.fields) == 1 else f"({fields})"
    assert isinstance(type_, FuncType)
    args = ", ".join(type_text(arg) for arg in type_.arg_types)
    return f"fn ({args}) -> {type_text(type_.ret_type)}"
