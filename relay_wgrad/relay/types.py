"""Relay's types: tensors of known rank, tuples, functions.

They are values: equal when their parts are.  `dims` says what a dimension is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any as Any_
from typing import TypeAlias

from .dims import ANY as ANY
from .dims import SIZES, as_dim, is_expression, is_variable
from .dims import AnyDim as AnyDim
from .dims import Dim as Dim
from .dims import SymDim as SymDim

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
DTYPES = {*NUMBERS, "int4", "uint1", "uint4", "e4m3_float8", "e5m2_float8", "handle"}
"""Relay's names of dtypes; those of `NUMBERS` are ones that an array can hold."""
# Of dtypes, in programs written by hand.
OTHER_NAMES = {"int": "int32", "uint": "uint32", "float": "float32", "uint1": "bool"}


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
        is_one = isinstance(given, (Integral, SymDim)) or is_expression(given)
        shape = (given,) if is_one else given
        if type(shape) is not tuple or any(type(d) is not int or not 0 <= d < SIZES for d in shape):
            object.__setattr__(self, "shape", tuple(map(as_dim, shape)))
        if not isinstance(self.dtype, str):
            raise TypeError(f"a dtype must be its name, got {self.dtype!r}")
        if self.dtype not in DTYPES and self.dtype not in OTHER_NAMES:
            raise ValueError(f"unknown dtype {self.dtype!r}")
        object.__setattr__(self, "dtype", OTHER_NAMES.get(self.dtype, str(self.dtype)))

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """The sizes; ValueError if one is no number."""
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
    type_params: tuple[()] = ()  # Relay's third and fourth; there are none here
    type_constraints: tuple[()] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "arg_types", tuple(self.arg_types))
        for name in ("type_params", "type_constraints"):
            if given := getattr(self, name):
                raise ValueError(f"FuncType: {name} are not supported, got {given!r}")
            object.__setattr__(self, name, ())


def scalar_type(dtype: str) -> TensorType:
    """The type of a tensor with no dimensions."""
    return TensorType((), dtype)


def IncompleteType(kind: Any_ = None) -> None:  # noqa: N802  Relay's name
    """A type that inference finds: none is stated."""


def Any() -> AnyDim:  # noqa: N802  Relay's name
    """A dimension that only the run knows."""
    return ANY


Type: TypeAlias = "TensorType | TupleType | FuncType"


def type_text(type_: Type, dim_text: Callable[[Dim], str] = str) -> str:
    """The type as Relay prints it; a program's text has `meta[…]` for symbolic sizes."""
    if isinstance(type_, TensorType):
        if not type_.shape:
            return type_.dtype
        return f"Tensor[({', '.join(map(dim_text, type_.shape))}), {type_.dtype}]"
    if isinstance(type_, TupleType):
        fields = ", ".join(type_text(field, dim_text) for field in type_.fields)
        return f"({fields},)" if len(type_.fields) == 1 else f"({fields})"
    assert isinstance(type_, FuncType)
    args = ", ".join(type_text(arg, dim_text) for arg in type_.arg_types)
    return f"fn ({args}) -> {type_text(type_.ret_type, dim_text)}"


def all_dims(type_: Type) -> list[Dim]:
    """The dimensions of all tensors of a type, in order."""
    if isinstance(type_, TensorType):
        return list(type_.shape)
    if isinstance(type_, TupleType):
        return [dim for field in type_.fields for dim in all_dims(field)]
    return [dim for part in (*type_.arg_types, type_.ret_type) for dim in all_dims(part)]


def with_dims(type_: Type, change: Callable[[Dim], Dim]) -> Type:
    """The type with other dimensions; itself where none changes."""
    if isinstance(type_, TensorType):
        shape = tuple(map(change, type_.shape))
        is_new = any(a is not b for a, b in zip(shape, type_.shape, strict=True))
        return TensorType(shape, type_.dtype) if is_new else type_
    if isinstance(type_, TupleType):
        fields = tuple(with_dims(field, change) for field in type_.fields)
        is_new = any(a is not b for a, b in zip(fields, type_.fields, strict=True))
        return TupleType(fields) if is_new else type_
    args = tuple(with_dims(arg, change) for arg in type_.arg_types)
    return FuncType(args, with_dims(type_.ret_type, change))


def bound(stated: Sequence[Type | None], given: Sequence[Type | None]) -> dict[Any_, Dim]:
    """What a function's variables of sizes are in a call: TVM's variable -> the argument's size."""
    values: dict[Any_, Dim] = {}
    pairs = list(zip(stated, given, strict=False))
    for ty, got in pairs:
        if isinstance(ty, TupleType) and isinstance(got, TupleType):
            pairs += zip(ty.fields, got.fields, strict=False)
        if isinstance(ty, TensorType) and isinstance(got, TensorType):
            for dim, size in zip(ty.shape, got.shape, strict=False):
                if isinstance(dim, SymDim) and is_variable(dim):
                    values.setdefault(dim.expr, size)
    return values
