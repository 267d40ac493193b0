"""Relay's types: tensors of known rank, tuples, functions; variables of types, data, references.

They are values: equal when their parts are, but for variables, which are themselves.  `dims` says
what a dimension is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from numbers import Integral
from typing import Any as Any_
from typing import TypeAlias

from .boxed_values import Size
from .dims import ANY as ANY
from .dims import AnyDim as AnyDim
from .dims import Dim as Dim
from .dims import SymDim as SymDim
from .dims import as_dim, is_expression, is_variable

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
DTYPES = {*NUMBERS, "int4", "uint1", "uint4", "e4m3_float8", "e5m2_float8", "handle"}
"""Relay's names of dtypes; those of `NUMBERS` are ones that an array can hold."""
# Of dtypes, in programs written by hand.
OTHER_NAMES = {"int": "int32", "uint": "uint32", "float": "float32", "uint1": "bool"}
_VECTOR = re.compile(r"(\w*\d)x([2-9]|[1-9]\d{1,3})", re.ASCII)


def is_vector(dtype: str) -> bool:
    """Whether it is a dtype with lanes, `int8x4`: nothing here computes it."""
    match = _VECTOR.fullmatch(dtype)
    return match is not None and match[1] in DTYPES


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
        if type(shape) is not tuple or any(type(d) is not Size for d in shape):
            dims = map(as_dim, shape)
            sizes = tuple(Size(d) if isinstance(d, int) else d for d in dims)
            object.__setattr__(self, "shape", sizes)
        if not isinstance(self.dtype, str):
            raise TypeError(f"a dtype must be its name, got {self.dtype!r}")
        known = self.dtype in DTYPES or self.dtype in OTHER_NAMES
        if not known and not is_vector(self.dtype):
            raise ValueError(f"unknown dtype {self.dtype!r}")
        object.__setattr__(self, "dtype", OTHER_NAMES.get(self.dtype, str(self.dtype)))

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

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


class TypeKind(IntEnum):
    """What a variable of types stands for, under Relay's numbers."""

    Type = 0
    ShapeVar = 1
    BaseType = 2
    Constraint = 4
    AdtHandle = 5
    TypeData = 6


@dataclass(frozen=True, eq=False)
class TypeVar(_Printed):
    """`A`: a type parameter of a function, or of a type's definition; equal only to itself."""

    name_hint: str
    kind: int = TypeKind.Type

    def __repr__(self) -> str:
        return f"TypeVar({self.name_hint})"


@dataclass(frozen=True)
class GlobalTypeVar(_Printed):
    """`List`: the name of a type that a module defines; called, `List[A]`."""

    name_hint: str
    kind: int = TypeKind.AdtHandle

    def __call__(self, *args: Type) -> TypeCall:
        return TypeCall(self, args)


@dataclass(frozen=True)
class TypeCall(_Printed):
    """`List[A]`: a defined type with what its parameters stand for."""

    func: Type
    args: tuple[Type, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))


@dataclass(frozen=True)
class RelayRefType(_Printed):
    """`ref(T)`: a place that holds a T."""

    value: Type


@dataclass(frozen=True, eq=False)
class IncompleteType(_Printed):
    """A type that inference finds; equal only to itself.  For an annotation it is none."""

    kind: int = TypeKind.Type

    def __repr__(self) -> str:
        return "IncompleteType()"


@dataclass(frozen=True, eq=False)
class TypeRelation:
    """A relation among types, as Relay's inference held it; here it is data and nothing more."""

    func: Any_
    args: tuple[Type, ...]
    num_inputs: int
    attrs: Any_

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypeRelation):
            return NotImplemented
        attrs = [dict(one.attrs or {}) for one in (self, other)]
        return (
            self.func == other.func
            and self.args == other.args
            and self.num_inputs == other.num_inputs
            and attrs[0] == attrs[1]
        )

    def __hash__(self) -> int:
        return hash((self.args, self.num_inputs))


@dataclass(frozen=True, eq=False)
class FuncType(_Printed):
    """`fn (Tensor[…], …) -> Tensor[…]`; with type parameters `fn [A](A) -> A`.

    Equal up to the names of its type parameters.
    """

    arg_types: tuple[Type, ...]
    ret_type: Type
    type_params: tuple[TypeVar, ...] = ()
    type_constraints: tuple[TypeRelation, ...] = ()

    def __post_init__(self) -> None:
        for name in ("arg_types", "type_params", "type_constraints"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        for param in self.type_params:
            if not isinstance(param, TypeVar):
                raise TypeError(f"FuncType: a type parameter must be a TypeVar, got {param!r}")

    def with_params(self, values: Sequence[Type]) -> FuncType:
        """The function's type where its type parameters stand for these."""
        given = dict(zip(self.type_params, values, strict=True))
        relations = tuple(
            replace(relation, args=tuple(substituted(part, given) for part in relation.args))
            for relation in self.type_constraints
        )
        args = tuple(substituted(part, given) for part in self.arg_types)
        return FuncType(args, substituted(self.ret_type, given), (), relations)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FuncType):
            return NotImplemented
        if self.type_params or other.type_params:
            kinds = [[param.kind for param in ty.type_params] for ty in (self, other)]
            if kinds[0] != kinds[1]:
                return False
            common = tuple(TypeVar(param.name_hint, param.kind) for param in self.type_params)
            return self.with_params(common) == other.with_params(common)
        return (
            self.arg_types == other.arg_types
            and self.ret_type == other.ret_type
            and self.type_constraints == other.type_constraints
        )

    def __hash__(self) -> int:
        if self.type_params:
            return hash((len(self.type_params), len(self.arg_types)))
        return hash((self.arg_types, self.ret_type))


def scalar_type(dtype: str) -> TensorType:
    """The type of a tensor with no dimensions."""
    return TensorType((), dtype)


Any = AnyDim  # Relay's name


Type: TypeAlias = (
    "TensorType | TupleType | FuncType"
    " | TypeVar | GlobalTypeVar | TypeCall | RelayRefType | IncompleteType"
)
TYPES = (
    TensorType, TupleType, FuncType, TypeVar, GlobalTypeVar, TypeCall, RelayRefType, IncompleteType,
)  # fmt: skip


def type_text(
    type_: Type,
    dim_text: Callable[[Dim], str] = str,
    var_text: Callable[[TypeVar], str] = lambda var: var.name_hint,
) -> str:
    """The type as Relay prints it; a program's text has `meta[…]` for symbolic sizes."""

    def text(part: Type) -> str:
        return type_text(part, dim_text, var_text)

    if isinstance(type_, TensorType):
        if not type_.shape:
            return type_.dtype
        return f"Tensor[({', '.join(map(dim_text, type_.shape))}), {type_.dtype}]"
    if isinstance(type_, TypeVar):
        return var_text(type_)
    if isinstance(type_, GlobalTypeVar):
        return type_.name_hint
    if isinstance(type_, IncompleteType):
        return "_"
    if isinstance(type_, RelayRefType):
        return f"ref({text(type_.value)})"
    params = ""
    if isinstance(type_, FuncType) and type_.type_params:
        params = f"[{', '.join(map(text, type_.type_params))}]"
    parts = ", ".join(map(text, type_.arg_types if isinstance(type_, FuncType) else below(type_)))
    if isinstance(type_, TupleType):
        return f"({parts},)" if len(type_.fields) == 1 else f"({parts})"
    if isinstance(type_, TypeCall):
        return f"{text(type_.func)}[{parts}]"
    assert isinstance(type_, FuncType)
    return f"fn {params}({parts}) -> {text(type_.ret_type)}"


def below(type_: Type) -> tuple[Type, ...]:
    """The types that one is made of."""
    if isinstance(type_, TupleType):
        return type_.fields
    if isinstance(type_, FuncType):
        return (*type_.arg_types, type_.ret_type)
    if isinstance(type_, TypeCall):
        return type_.args
    return (type_.value,) if isinstance(type_, RelayRefType) else ()


def with_parts(type_: Type, change: Callable[[Type], Type]) -> Type:
    """The type of changed parts; itself where none changes."""
    parts = below(type_)
    new = tuple(map(change, parts))
    if all(a is b for a, b in zip(new, parts, strict=True)):
        return type_
    if isinstance(type_, TupleType):
        return TupleType(new)
    if isinstance(type_, FuncType):
        return replace(type_, arg_types=new[:-1], ret_type=new[-1])
    if isinstance(type_, TypeCall):
        return TypeCall(type_.func, new)
    assert isinstance(type_, RelayRefType)
    return RelayRefType(new[0])


def has_variables(type_: Type) -> bool:
    """Whether type parameters stand in a type."""
    return isinstance(type_, TypeVar) or any(map(has_variables, below(type_)))


def substituted(type_: Type, values: Mapping[TypeVar, Type]) -> Type:
    """The type where variables stand for others."""
    if isinstance(type_, TypeVar):
        return values.get(type_, type_)
    if isinstance(type_, FuncType):
        values = {var: value for var, value in values.items() if var not in type_.type_params}
    return with_parts(type_, lambda part: substituted(part, values)) if values else type_


def all_dims(type_: Type) -> list[Dim]:
    """The dimensions of all tensors of a type, in order."""
    if isinstance(type_, TensorType):
        return list(type_.shape)
    return [dim for part in below(type_) for dim in all_dims(part)]


def with_dims(type_: Type, change: Callable[[Dim], Dim]) -> Type:
    """The type with other dimensions; itself where none changes."""
    if isinstance(type_, TensorType):
        shape = tuple(map(change, type_.shape))
        is_new = any(a is not b for a, b in zip(shape, type_.shape, strict=True))
        return TensorType(shape, type_.dtype) if is_new else type_
    return with_parts(type_, lambda part: with_dims(part, change))


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
