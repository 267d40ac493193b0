"""Visitors of types of a user's own: a method for each kind, as Relay's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .adt import TypeData
from .types import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    TypeCall,
    TypeRelation,
    TypeVar,
)

_METHODS = {
    TypeVar: "visit_type_var",
    IncompleteType: "visit_incomplete_type",
    TensorType: "visit_tensor_type",
    FuncType: "visit_func_type",
    TupleType: "visit_tuple_type",
    TypeRelation: "visit_type_relation",
    RelayRefType: "visit_ref_type",
    GlobalTypeVar: "visit_global_type_var",
    TypeCall: "visit_type_call",
    TypeData: "visit_type_data",
}
# The fields of each kind that hold types.
_PARTS = {
    FuncType: ("arg_types", "ret_type", "type_params", "type_constraints"),
    TupleType: ("fields",),
    TypeRelation: ("args",),
    RelayRefType: ("value",),
    TypeCall: ("func", "args"),
    TypeData: ("header", "type_vars", "constructors"),
}


class TypeFunctor:
    """A method for each kind of type; those that are not overridden raise NotImplementedError."""

    def visit(self, typ: Any) -> Any:
        """What the kind's method gives.  Raises TypeError for what is no Relay type."""
        if type(typ) not in _METHODS:
            raise TypeError(f"visit: expected a Relay type, got {typ!r}")
        return getattr(self, _METHODS[type(typ)])(typ)

    def _default(self, typ: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no {_METHODS[type(typ)]}")

    def visit_type_var(self, tv: TypeVar) -> Any:
        """A type parameter."""
        return self._default(tv)

    def visit_incomplete_type(self, it: IncompleteType) -> Any:
        """A type that inference finds."""
        return self._default(it)

    def visit_tensor_type(self, tt: TensorType) -> Any:
        """A tensor's type."""
        return self._default(tt)

    def visit_func_type(self, ft: FuncType) -> Any:
        """A function's type."""
        return self._default(ft)

    def visit_tuple_type(self, tt: TupleType) -> Any:
        """A tuple's type."""
        return self._default(tt)

    def visit_type_relation(self, tr: TypeRelation) -> Any:
        """A relation among types."""
        return self._default(tr)

    def visit_ref_type(self, rt: RelayRefType) -> Any:
        """A reference's type."""
        return self._default(rt)

    def visit_global_type_var(self, gtv: GlobalTypeVar) -> Any:
        """The name of a data type."""
        return self._default(gtv)

    def visit_type_call(self, tc: TypeCall) -> Any:
        """A data type with its arguments."""
        return self._default(tc)

    def visit_type_data(self, td: TypeData) -> Any:
        """A data type's definition."""
        return self._default(td)


class TypeVisitor(TypeFunctor):
    """Visits every type within; methods give None."""

    def _default(self, typ: Any) -> Any:
        for name in _PARTS.get(type(typ), ()):
            held = getattr(typ, name)
            if name == "constructors":
                held = [part for constructor in held for part in constructor.inputs]
            for part in held if isinstance(held, (tuple, list)) else (held,):
                self.visit(part)


class TypeMutator(TypeFunctor):
    """Gives a type over its parts' results; the type itself where all are the same."""

    def _default(self, typ: Any) -> Any:
        changes = {}
        for name in _PARTS.get(type(typ), ()):
            held = getattr(typ, name)
            new = self._part(name, held)
            if new is not held:
                changes[name] = new
        return replace(typ, **changes) if changes else typ

    def _part(self, name: str, held: Any) -> Any:
        if not isinstance(held, tuple):
            return self.visit(held)
        if name == "constructors":
            new = tuple(replace(c, inputs=self._part("inputs", c.inputs)) for c in held)
            is_same = all(a.inputs is b.inputs for a, b in zip(new, held, strict=True))
        else:
            new = tuple(map(self.visit, held))
            is_same = all(a is b for a, b in zip(new, held, strict=True))
        return held if is_same else new
