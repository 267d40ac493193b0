"""Makers of expressions that are no operators: `var`, `const`, `bind`, a tuple's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..argument_types import check_type
from .ast import Call as Call
from .ast import Constant, Expr, Function, TupleGetItem, Var, as_node
from .ast import GlobalVar as GlobalVar
from .ast import If as If
from .ast import Let as Let
from .ast import RefCreate as RefCreate
from .ast import RefRead as RefRead
from .ast import RefWrite as RefWrite
from .ast import Tuple as Tuple
from .records.attributes import KINDS
from .rewrite import rewrite
from .spans import Span
from .types import TYPES, Dim, TensorType, Type


def var(
    name_hint: str,
    type_annotation: Type | str | None = None,
    shape: Sequence[Dim] | None = None,
    dtype: str = "float32",
    span: Span | None = None,
) -> Var:
    """A variable: of a type, of a tensor's shape and dtype, or a scalar of a dtype's name.

    Raises
    ------
    TypeError, ValueError : for both a type and a shape, a size that is no integer or `Any()`.
    """
    if type_annotation is not None and shape is not None:
        raise ValueError(
            f"var {name_hint!r}: either type_annotation or shape, got {type_annotation!r}"
            f" and {shape!r}"
        )
    if shape is not None:
        type_annotation = TensorType(tuple(shape), _dtype(name_hint, dtype))
    elif isinstance(type_annotation, str):
        type_annotation = TensorType((), _dtype(name_hint, type_annotation))
    elif type_annotation is not None and not isinstance(type_annotation, TYPES):
        raise TypeError(
            f"var {name_hint!r}: type_annotation must be a Relay type or a dtype,"
            f" got {type_annotation!r}"
        )
    return Var(name_hint, type_annotation, span=span)


def _dtype(name: str, value: Any) -> str:
    try:
        found: str = KINDS["dtype"](value)
    except TypeError as wanted:
        raise TypeError(f"var {name!r}: dtype must be {wanted}, got {value!r}") from None
    return found


def const(value: Any, dtype: str | TensorType | None = None, span: Span | None = None) -> Constant:
    """A constant of a number, a list, or an array (NumPy's, TVM's).

    A tensor's type stands for its dtype.  Without `dtype`, what NumPy makes of the value, but int64
    becomes int32 and float64 float32.

    Raises TypeError for what is no number and no array.
    """
    if isinstance(dtype, TensorType):
        dtype = dtype.dtype
    if hasattr(value, "numpy"):
        # An array of TVM keeps its dtype, as in Relay.
        data = np.asarray(value.numpy())
        return Constant(data if dtype is None else data.astype(dtype), span=span)
    data = np.asarray(value)
    if data.dtype.kind not in "biufcV" or (data.dtype.kind == "V" and data.dtype.names):
        raise TypeError(f"const: expected a number or an array, got {value!r}")
    if dtype is None:
        dtype = {"int64": "int32", "float64": "float32"}.get(str(data.dtype))
    try:
        return Constant(data if dtype is None else data.astype(dtype), span=span)
    except TypeError:
        raise TypeError(f"const: dtype must be the name of a dtype, got {dtype!r}") from None


def as_constant(value: Any) -> Constant:
    """A constant of what a script gives for one: a constant itself, an array, a number.

    An array keeps its dtype.  Raises TypeError as `const`.
    """
    if isinstance(value, Constant):
        return value
    return const(value, str(value.dtype) if hasattr(value, "dtype") else None)


def bind(expr: Expr, binds: Mapping[Any, Expr]) -> Expr:
    """The expression with variables replaced by expressions; a function loses these parameters.

    Raises
    ------
    TypeError : if a key is no Var, or a value no expression.
    ValueError : if a variable is bound within the expression.
    """
    new: dict[Expr, Expr] = {}
    for key, value in binds.items():
        if not isinstance(key, Var):
            raise TypeError(f"bind: expected variables as keys, got {key!r}")
        new[key] = as_node(value, f"bind: what %{key.name} stands for")
    if not isinstance(expr, Function):
        return rewrite(expr, lambda old, rebuilt: rebuilt, new)
    kept = tuple(param for param in expr.params if param not in new)
    body = rewrite(expr.body, lambda old, rebuilt: rebuilt, new)
    return replace(expr, params=kept, body=body, checked_type=None)


def bind_params_by_name(func: Function, params: Mapping[str, Any]) -> Function:
    """The function with constants for the parameters of these names.

    A name that no parameter has is ignored, as in Relay: the parameters of a whole network are
    often bound to a part of it, or twice.

    Raises ValueError for a name that more than one parameter has, TypeError for another type.
    """
    check_type("bind_params_by_name: func", func, Function, "a Relay function")
    check_type("bind_params_by_name: params", params, Mapping, "a dict of arrays by name")
    binds: dict[Var, Expr] = {}
    for name, value in params.items():
        found = [param for param in func.params if param.name == name]
        if len(found) > 1:
            names = ", ".join(param.name for param in func.params)
            raise ValueError(f"{len(found)} parameters {name!r}; there are {names}")
        if found:
            binds[found[0]] = as_constant(value)
    out = bind(func, binds)
    assert isinstance(out, Function)
    return out


class TupleWrapper:
    """A tuple's value with its size, so that Python can index, unpack and iterate over it."""

    def __init__(self, tuple_value: Expr, size: int) -> None:
        self.tuple_value: Expr = as_node(tuple_value, "TupleWrapper: the tuple")
        self.size = int(size)

    def astuple(self) -> Expr:
        """The tuple itself."""
        return self.tuple_value

    def astext(self) -> str:
        """The tuple's text."""
        return self.tuple_value.astext()

    def astype(self, dtype: str) -> None:
        """Refused with TypeError: fields have types, a tuple none to cast."""
        raise TypeError(f"astype({dtype!r}) cannot be used on a tuple, but on its fields")

    def __getitem__(self, index: int) -> TupleGetItem:
        """A field; IndexError beyond the last."""
        if not -self.size <= index < self.size:
            raise IndexError(f"field {index} of a tuple of {self.size}")
        return TupleGetItem(self.tuple_value, index % self.size, span=self.tuple_value.span)

    def __iter__(self) -> Iterator[TupleGetItem]:
        return (self[index] for index in range(self.size))

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"TupleWrapper({self.tuple_value!r}, {self.size})"
