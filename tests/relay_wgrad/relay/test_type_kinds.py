"""`check_kind`: what may stand within a type."""

from __future__ import annotations

from typing import Any

import pytest

from relay_wgrad import relay
from relay_wgrad.relay.analysis import check_kind
from relay_wgrad.relay.types import TypeKind

T = relay.TensorType((2,), "float32")
A, S = relay.TypeVar("a"), relay.TypeVar("s", TypeKind.ShapeVar)
LIST = relay.prelude.Prelude().mod
NAME = relay.GlobalTypeVar("List")


@pytest.mark.parametrize(
    ("ty", "kind"),
    [
        (S, TypeKind.ShapeVar),
        (relay.TupleType([A, T, relay.FuncType([A], T, [A])]), TypeKind.Type),
        (relay.RelayRefType(T), TypeKind.Type),
        (relay.TypeRelation(None, [T, A], 1, None), TypeKind.Constraint),
        (NAME, TypeKind.AdtHandle),
        (NAME(T), TypeKind.Type),
        (LIST[NAME], TypeKind.TypeData),
    ],
)
def test_kind(ty: Any, kind: TypeKind) -> None:
    assert check_kind(ty, LIST) is kind


@pytest.mark.parametrize(
    ("ty", "message"),
    [
        (
            relay.TupleType([T, S]),
            "a field of a TupleType must be of kind Type, got TypeVar of kind ShapeVar",
        ),
        (relay.FuncType([S], T, [S]), "a parameter of a FuncType"),
        (relay.FuncType([], S, [S]), "the result of"),
        (relay.RelayRefType(S), "what is held of"),
        (relay.TypeRelation(None, [S], 1, None), "an argument of"),
        (relay.TypeCall(T, []), "what is called of"),
        (relay.GlobalTypeVar("None")(T), "does not define None"),
        (NAME(), "List takes 1 types, got 0"),
    ],
)
def test_refused(ty: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_kind(ty, LIST)
