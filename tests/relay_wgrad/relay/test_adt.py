"""Data types, constructors and `match`: read, typed, printed, compared; refused where computed."""

from __future__ import annotations

import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from tests.support.relay.texts import HEADER

LIST = """type List[A] {
  Cons(A, List[A]),
  Nil,
}

"""
LENGTH = """def @length[A](%xs: List[A]) -> int32 {
  match (%xs) {
    Cons(_, %rest: List[A]) => {
      %0 = @length(%rest);
      add(1, %0)
    },
    Nil => {
      0
    },
  }
}
"""
FIRST = """
def @first[A](%xs: List[A], %other: (A, A)) -> A {
  match? ((%xs, %other)) {
    (Cons(%x, _), _) => %x,
    (_, (%y, _)) => %y,
  }
}
"""


@pytest.mark.parametrize("name", ["prelude.rly", "nat.rly", "gradient.rly"])
def test_standard_modules_are_typed_and_come_back(name: str) -> None:
    mod = relay.IRModule({})
    mod.import_from_std(name)
    for one in (mod, T.InferType()(mod)):
        text = one.astext()
        again = relay.fromtext(text)
        assert again.astext() == text
        assert relay.structural_equal(again, one)
        assert relay.structural_hash(again) == relay.structural_hash(one)


def test_types_of_the_prelude() -> None:
    mod = relay.prelude.Prelude().mod
    typed = T.InferType()(mod)
    assert str(typed["map"].checked_type) == "fn [A, B](fn (A) -> B, List[A]) -> List[B]"
    assert str(typed["zip"].checked_type) == "fn [A, B](List[A], List[B]) -> List[(A, B)]"
    with pytest.raises(ValueError, match="expected one of prelude"):
        mod.import_from_std("other.rly")


def test_the_text_is_relays() -> None:
    text = HEADER + LIST + LENGTH
    mod = relay.fromtext(text)
    assert mod.astext() == text
    header, cons, nil = mod.get_type("List")
    assert (str(header), cons.name_hint, nil.name_hint) == ("List", "Cons", "Nil")
    assert nil.tag == cons.tag + 1
    assert mod.get_constructor(nil.tag) is nil
    assert mod[header].constructors == (cons, nil)
    assert mod.get_global_type_vars() == [header]
    with pytest.raises(ValueError, match="no type Tree, but List"):
        mod.get_type("Tree")


def test_builders_make_what_the_text_says() -> None:
    header = relay.GlobalTypeVar("List")
    a = relay.TypeVar("a")
    cons = relay.Constructor("Cons", [a, header(a)], header)
    nil = relay.Constructor("Nil", [], header)
    mod = relay.IRModule({})
    mod[header] = relay.TypeData(header, [a], [cons, nil])
    b = relay.TypeVar("b")
    xs, rest = relay.Var("xs", header(b)), relay.Var("rest", header(b))
    clauses = [
        relay.Clause(
            relay.PatternConstructor(cons, [relay.PatternWildcard(), relay.PatternVar(rest)]),
            relay.add(relay.const(1), relay.GlobalVar("length")(rest)),
        ),
        relay.Clause(relay.PatternConstructor(nil), relay.const(0)),
    ]
    function = relay.Function([xs], relay.Match(xs, clauses), relay.scalar_type("int32"), [b])
    mod["length"] = function
    read = relay.fromtext(HEADER + LIST + LENGTH)
    assert relay.structural_equal(mod, read)
    assert relay.structural_hash(mod) == relay.structural_hash(read)
    # Each of these is another program.
    for other in (
        relay.Match(xs, clauses[::-1]),
        relay.Match(xs, clauses, complete=False),
        relay.Match(xs, clauses[:1]),
    ):
        changed = relay.Function([xs], other, relay.scalar_type("int32"), [b])
        assert not relay.structural_equal(changed, function)
        assert relay.structural_hash(changed) != relay.structural_hash(function)


def test_patterns_of_tuples() -> None:
    mod = T.InferType()(relay.fromtext(HEADER + LIST + FIRST))
    assert str(mod["first"].checked_type) == "fn [A](List[A], (A, A)) -> A"
    assert relay.structural_equal(relay.fromtext(mod.astext()), mod)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("type T { A } type T { B }", "the type T is defined twice"),
        ("type T { A, A }", "the constructor A twice"),
        ("type T { A } type U { A }", "the constructor A twice"),
        ("type T[X, X] { A }", "the type parameter X twice"),
        ("type T { A(Other) }", "unknown dtype Other"),
        ("def @f(%x: List[int32]) { %x }", "unknown dtype List"),
        ("def @f(%x: T) { match (%x) { A => 1 } }", "A is no constructor"),
        ("type T { A } def @f(%x: T) { match (%x) { %y => %y }; %y }", "%y is not bound here"),
        ("def @f[A](%x: A) { %x } def @g(%x: A) { %x }", "unknown dtype A"),
        ("def @f(%x: int32) { ref(%x, %x) }", "ref takes 1, got 2"),
        ("def @f(%x: ptr(int32)) { %x }", "ptr is no type, and takes no other"),
    ],
)
def test_malformed(text: str, problem: str) -> None:
    with pytest.raises(relay.RelayTextError, match=problem):
        relay.fromtext(HEADER + text)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("match (%xs) { Cons(%a) => 1 }", "Cons has 2 inputs, and the pattern 1"),
        ("match (%xs) { Cons(_, _) => 1, Nil => 1f }", "clauses of `match` differ"),
        ("match (1) { Nil => 1 }", "a value of Nil is"),
        ("match (%xs) { (%a, %b) => 1 }", "what a pattern is of is List"),
        ("Nil", "has no type but List"),
        ("Cons(%xs, %xs)", "argument 1 is List"),
    ],
)
def test_ill_typed(body: str, problem: str) -> None:
    mod = relay.fromtext(HEADER + LIST + f"def @main(%xs: List[int32]) {{ {body} }}")
    with pytest.raises(ValueError, match=problem):
        T.InferType()(mod)


@pytest.mark.parametrize(
    "body",
    ["match (%xs) { Nil => 1f, _ => 0f }", "Cons(1, Nil)", "ref_read(ref(1f))"],
)
def test_what_computes_refuses_them_by_name(body: str) -> None:
    mod = relay.fromtext(HEADER + LIST + f"def @main(%xs: List[int32]) {{ {body} }}")
    for what in (T.FoldConstant(), T.DeadCodeElimination(), T.ToANormalForm(), T.FuseOps(2)):
        with pytest.raises(relay.UnsupportedConstructError, match=r"not supported: (alg|ref)"):
            what(mod)
    closed = relay.fromtext(HEADER + LIST + f"def @main() {{ {body.replace('%xs', 'Nil')} }}")
    with pytest.raises(relay.UnsupportedConstructError, match=r"not supported: (alg|ref)"):
        relay.build(closed)


def test_visitors() -> None:
    p = relay.prelude.Prelude()
    function = p.mod[p.map]
    assert relay.ExprMutator().visit(function) is function

    class Renamed(relay.ExprMutator):
        def visit_var(self, var: relay.Var) -> relay.Var:
            return relay.Var(var.name + "_", var.type_annotation)

    changed = Renamed().visit(function)
    assert changed is not function
    assert relay.structural_equal(changed, function)
    assert set(relay.analysis.free_vars(changed.body)) == set(changed.params)
    assert relay.analysis.well_formed(function)
