"""Sizes that only the run knows, on the way to Relax.

In a lowered function each variable of Relay's sizes, and each `?` of a parameter, is a variable of
Relax' shapes, whose value the arguments give.  Types of values are those of Relay in these
variables, so a relation also sees what Relay forgets at a `?`.  Where a relation takes two sizes
for equal that nothing proves, the run compares them: no kernel reads what is not the tensor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tvm import relax, tirx

from .dims import (
    ANY,
    Dim,
    SymDim,
    as_dim,
    assumptions,
    is_variable,
    open_dim,
    substituted,
    variables,
)
from .records import RelayOp, show
from .types import TensorType, TupleType, Type, bound, with_dims


class Sizes:
    """What the variables of Relay's sizes are in one activation of a function."""

    def __init__(self, values: Mapping[Any, Dim] | None = None) -> None:
        self.values: dict[Any, Dim] = dict(values or {})

    def of_parameters(self, params: Sequence[tuple[str, TensorType]]) -> list[Type]:
        """The types of a function's parameters, by name, each variable being one of Relax'."""
        for _, ty in params:
            for dim in filter(is_variable, ty.shape):
                assert isinstance(dim, SymDim)
                name = identifier(dim.expr.name)
                self.values.setdefault(dim.expr, SymDim(tirx.Var(name, "int64")))
        made: list[tuple[Dim, Dim]] = []  # expressions of what no parameter has alone

        def own(name: str, i: int, dim: Dim) -> Dim:
            if isinstance(dim, SymDim) and all(var in self.values for var in variables(dim)):
                return substituted(dim, self.values)
            if isinstance(dim, int):
                return dim
            for old, new in made:
                if dim is not ANY and old == dim:
                    return new
            made.append((dim, open_dim(f"{identifier(name)}_{i}")))
            return made[-1][1]

        return [
            TensorType(tuple(own(name, i, d) for i, d in enumerate(ty.shape)), ty.dtype)
            for name, ty in params
        ]

    def of_call(self, stated: Sequence[Type | None], given: Sequence[Type]) -> Sizes:
        """Those of a function that is called: its parameters' types say what its variables are."""
        return Sizes({**self.values, **bound(stated, given)})

    def local(self, ty: Type) -> Type:
        """A type that the program states, in Relax' variables; `?` for what has none."""

        def change(dim: Dim) -> Dim:
            if not isinstance(dim, SymDim):
                return dim
            if not all(var in self.values for var in variables(dim)):
                return ANY
            return substituted(dim, self.values)

        return with_dims(ty, change)


def settled(
    bb: Any, op: RelayOp, exprs: list[Any], types: list[Type], attrs: Any
) -> tuple[list[Any], list[Type], Type]:
    """A call's arguments, their types and its result's, with the sizes compared that must be equal.

    Raises
    ------
    TypeError, ValueError : as `op.infer`; where the run can't compare what the relation assumes.
    """
    while True:
        with assumptions() as pairs:
            out = op.infer(types, attrs)
        if not pairs:
            return exprs, types, out
        a, b = pairs[0]
        if not is_variable(a):
            a, b = b, a
        known = {a.expr: b} if isinstance(a, SymDim) and is_variable(a) else {}
        new = [with_dims(ty, partial(substituted, values=known)) for ty in types]
        if new == types or a.expr in variables(b):  # type: ignore[union-attr]
            raise ValueError(
                f"{op.name}: only the run knows whether {a} is {b}, and has no way to compare them"
            )
        exprs = [
            x if old == ty else _cast(bb, x, ty)
            for x, old, ty in zip(exprs, types, new, strict=True)
        ]
        types = new


def with_inferred_sizes(bb: Any, value: Any, ty: Type) -> tuple[Type, Any]:
    """A result's type, with what Relax knows of its sizes for `?`, and the result with a shape."""
    if not isinstance(ty, TensorType) or not isinstance(value.ty, relax.TensorType):
        return ty, value
    if isinstance(value.ty.shape, relax.ShapeExpr):
        if all(isinstance(dim, int) for dim in ty.shape):
            return ty, value
        found = [as_dim(size) for size in value.ty.shape.values]
        pairs = zip(ty.shape, found, strict=True)
        return TensorType(tuple(b if a is ANY else a for a, b in pairs), ty.dtype), value
    if ANY in ty.shape:
        return ty, value
    return ty, _cast(bb, value, ty)


def relax_type(name: str, ty: Type) -> relax.Type:
    """A type of values in Relax; each `?` is a size of its own, named after the value."""
    if isinstance(ty, TupleType):
        return relax.TupleType([relax_type(f"{name}_{i}", t) for i, t in enumerate(ty.fields)])
    if not isinstance(ty, TensorType):
        raise TypeError(f"{name}: a function is no value in Relax, got {show(ty)}")
    shape = [
        dim if isinstance(dim, int)
        else dim.expr if isinstance(dim, SymDim)
        else tirx.Var(f"{identifier(name)}_{i}", "int64")
        for i, dim in enumerate(ty.shape)
    ]  # fmt: skip
    return relax.TensorType(shape, ty.dtype)


def identifier(name: str) -> str:
    """A name with nothing but letters, digits and underscores."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def _cast(bb: Any, value: Any, ty: Type) -> Any:
    """The value with a type that the run checks."""
    if isinstance(ty, TupleType):
        fields = [bb.emit(relax.TupleGetItem(value, i)) for i in range(len(ty.fields))]
        return relax.Tuple([_cast(bb, x, part) for x, part in zip(fields, ty.fields, strict=True)])
    return bb.match_cast(value, relax_type("size", ty))
