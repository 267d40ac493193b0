"""Kinds of types: whether what stands within a type may stand there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .adt import TypeData
from .ast import IRModule
from .type_functor import TypeFunctor
from .types import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    TypeCall,
    TypeKind,
    TypeRelation,
    TypeVar,
)


def check_kind(t: Any, mod: IRModule | None = None) -> TypeKind:
    """A type's kind; `mod` defines the data types that it names.

    Raises
    ------
    TypeError : for what is no type.
    ValueError : for a type within it of another kind than its place takes, a data type that the
        module does not define, and one with another number of arguments than its definition has.
    """
    return TypeKind(_Kinds(IRModule({}) if mod is None else mod).visit(t))


class _Kinds(TypeFunctor):
    """The kind of each type, once the kinds of its parts are right."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod

    def _are(self, parts: Iterable[Any], of: Any, what: str, kind: int = TypeKind.Type) -> None:
        for part in parts:
            found, outer = TypeKind(self.visit(part)), type(of).__name__
            if found != kind:
                raise ValueError(
                    f"check_kind: {what} of a {outer} must be of kind {TypeKind(kind).name},"
                    f" got {type(part).__name__} of kind {found.name}"
                )

    def visit_type_var(self, tv: TypeVar) -> int:
        return tv.kind

    def visit_global_type_var(self, gtv: GlobalTypeVar) -> int:
        return gtv.kind

    def visit_incomplete_type(self, it: IncompleteType) -> int:
        return it.kind

    def visit_tensor_type(self, tt: TensorType) -> int:
        return TypeKind.Type

    def visit_tuple_type(self, tt: TupleType) -> int:
        self._are(tt.fields, tt, "a field")
        return TypeKind.Type

    def visit_func_type(self, ft: FuncType) -> int:
        self._are(ft.arg_types, ft, "a parameter")
        self._are([ft.ret_type], ft, "the result")
        self._are(ft.type_constraints, ft, "a constraint", TypeKind.Constraint)
        return TypeKind.Type

    def visit_ref_type(self, rt: RelayRefType) -> int:
        self._are([rt.value], rt, "what is held")
        return TypeKind.Type

    def visit_type_relation(self, tr: TypeRelation) -> int:
        self._are(tr.args, tr, "an argument")
        return TypeKind.Constraint

    def visit_type_call(self, tc: TypeCall) -> int:
        self._are([tc.func], tc, "what is called", TypeKind.AdtHandle)
        self._are(tc.args, tc, "an argument")
        if tc.func not in self.mod:
            raise ValueError(f"check_kind: the module does not define {tc.func}")
        count = len(self.mod[tc.func].type_vars)
        if count != len(tc.args):
            raise ValueError(f"check_kind: {tc.func} takes {count} types, got {len(tc.args)}")
        return TypeKind.Type

    def visit_type_data(self, td: TypeData) -> int:
        self._are([td.header], td, "the name", TypeKind.AdtHandle)
        self._are(td.type_vars, td, "a parameter")
        for constructor in td.constructors:
            self._are(constructor.inputs, td, f"what {constructor.name_hint} holds")
        return TypeKind.TypeData
