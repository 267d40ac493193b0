"""Type parameters, functions of functions, recursion: what inference finds."""

from __future__ import annotations

import pytest

from relay_wgrad import relay
from relay_wgrad.relay import FuncType, TensorType, TupleType, TypeVar
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.types import IncompleteType
from relay_wgrad.relay.unify import Unifier, unified
from tests.support.relay.texts import HEADER

F32 = TensorType(())
RECURSIVE = """def @main(%n: int32, %x: float32) {
  if (equal(%n, 0)) { %x } else { @main(subtract(%n, 1), log(%x)) }
}"""


def test_function_types_are_equal_up_to_names() -> None:
    a, b, c = TypeVar("a"), TypeVar("b"), TypeVar("c", relay.TypeKind.ShapeVar)
    assert FuncType([a], a, [a]) == FuncType([b], b, [b])
    assert hash(FuncType([a], a, [a])) == hash(FuncType([b], b, [b]))
    assert FuncType([a], a, [a]) != FuncType([c], c, [c])  # another kind
    assert FuncType([a], a) != FuncType([b], b)  # bound by nothing
    assert FuncType([a, b], a, [a, b]) != FuncType([a, b], b, [a, b])
    nested = FuncType([a], FuncType([b], TupleType([a, b]), [b]), [a])
    other = FuncType([b], FuncType([a], TupleType([b, a]), [a]), [b])
    assert nested == other
    assert relay.structural_hash(nested) == relay.structural_hash(other)


def test_what_is_unified() -> None:
    a, unknown = TypeVar("a"), IncompleteType()
    assert unified(unknown, TupleType([unknown])) is None  # it would hold itself
    assert unified(FuncType([a], a, [a]), FuncType([F32], F32)) == FuncType([F32], F32)
    assert unified(FuncType([a], a, [a]), FuncType([F32], TensorType((2,)))) is None
    assert unified(a, F32) is None
    known = Unifier()
    known.unified(TupleType([unknown, F32]), TupleType([F32, unknown]))
    assert known.resolved(FuncType([unknown], unknown)) == FuncType([F32], F32)


@pytest.mark.parametrize(
    ("text", "ty"),
    [
        (
            "def @main(%x: float32) { @id(%x) } def @id[A](%x: A) -> A { %x }",
            "fn (float32) -> float32",
        ),
        (
            "def @main(%x: int32) { let %f = fn [A](%y: A) -> A { %y }; (%f(%x), %f(())) }",
            "fn (int32) -> (int32, ())",
        ),
        # A function's type from its call, and from a result that is stated.
        (
            "def @main(%f, %x: int32) -> int32 { %f(%x) }",
            "fn (fn (int32) -> int32, int32) -> int32",
        ),
        # Recursion without a stated type.
        (RECURSIVE, "fn (int32, float32) -> float32"),
        (
            "def @main() { let %f = fn (%x) { fn (%y: int32) { (%x, %y) } }; %f(1f)(2) }",
            "fn () -> (float32, int32)",
        ),
    ],
)
def test_inferred(text: str, ty: str) -> None:
    mod = T.InferType()(relay.fromtext(HEADER + text))
    assert str(mod["main"].checked_type) == ty
    # Type arguments have no text: inference finds them again.
    assert relay.structural_equal(T.InferType()(relay.fromtext(mod.astext())), mod)


def test_a_call_has_its_type_arguments() -> None:
    text = "def @id[A](%x: A) -> A { %x } def @main(%x: float32) { @id(%x) }"
    assert T.InferType()(relay.fromtext(HEADER + text))["main"].body.type_args == (F32,)
    given = relay.parse(HEADER + text)
    assert given["main"].body.type_args == (F32,)  # `parse` infers


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def @main[A](%x: A) { add(%x, %x) }", "add: lhs must be a tensor, got A"),
        ("def @main[A, B](%x: A) -> B { %x }", "result is A, and the program says B"),
        ("def @main(%f: fn (int32) -> int32) { %f(1f) }", "argument 0 is float32"),
        ("def @main(%f) { %f(%f) }", "and the program says"),
    ],
)
def test_ill_typed(text: str, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        T.InferType()(relay.fromtext(HEADER + text))


def test_sizes_and_variables_of_types() -> None:
    x = relay.var("x", shape=(10, relay.Any()))
    ty = x.type_annotation
    assert isinstance(ty, TensorType)
    assert ty.shape[0].value == 10  # type: ignore[union-attr]
    assert type(ty.shape[0] + 1) is int  # type: ignore[operator]
    assert isinstance(ty.shape[1], relay.Any)
    typed = relay.transform.InferType()(relay.IRModule.from_expr(relay.nn.relu(x)))
    assert typed["main"].params[0].vid.same_as(x.vid)
    assert relay.var("y", relay.IncompleteType()).type_annotation is None
    assert str(relay.TensorType((), "int8x4")) == "int8x4"
    with pytest.raises(ValueError, match="unknown dtype 'int8x1'"):
        relay.TensorType((), "int8x1")


class Wider(relay.TypeMutator):
    def visit_tensor_type(self, tt: TensorType) -> TensorType:
        return TensorType((1, *tt.shape), tt.dtype)


def test_type_visitors() -> None:
    a = TypeVar("a")
    ty = FuncType([a, relay.RefType(F32)], relay.GlobalTypeVar("T")(F32), [a])
    assert (
        str(Wider().visit(ty)) == "fn [a](a, ref(Tensor[(1), float32])) -> T[Tensor[(1), float32]]"
    )
    assert relay.TypeMutator().visit(ty) is ty
    assert relay.TypeVisitor().visit(ty) is None
    with pytest.raises(NotImplementedError, match="visit_func_type"):
        relay.TypeFunctor().visit(ty)
    header = relay.GlobalTypeVar("Box")
    data = relay.TypeData(header, [a], [relay.Constructor("Box", [a, F32], header)])
    made = Wider().visit(data)
    assert str(made) == "type Box[a] {\n  Box(a, Tensor[(1), float32]),\n}"
