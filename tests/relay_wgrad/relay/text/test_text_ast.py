"""The syntax tree: immutable, shared, walked without recursion; structural equality."""

from __future__ import annotations

import gc
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import ast
from tests.support.relay.texts import main

DEEP = 5_000


def _same(a: str, b: str, **params: str) -> bool:
    return relay.structural_equal(
        relay.fromtext(main(a, **params)), relay.fromtext(main(b, **params))
    )


EQUAL = (
    ("let %y = f(%x); %y", "let %z = f(%x); %z"),
    ("fn (%y) { %y }", "fn (%z) { %z }"),
    ("%0 = f(%x); (%0, %0)", "%5 = f(%x); (%5, %5)"),
    ("f(%x, a=1, b=2)", "f(%x, b=2, a=1)"),
    ("f(%x) /* ty=float32 */", "f(%x)"),
    ("f(1f, 1f)", "%0 = 1f; f(%0, %0)"),
    ("(nanf, nanf)", "(nanf, nanf)"),
    ("f(a=nanf)", "f(a=nanf)"),
)
DIFFERENT = (
    ("f(%x)", "g(%x)"),
    ("f(%x)", "f(%x, %x)"),
    ("f(%x)", "f(%x, a=1)"),
    ("f(%x, a=1)", "f(%x, a=2)"),
    ("f(%x, a=1)", "f(%x, a=True)"),
    ("f(%x, a=1)", "f(%x, a=1i64)"),
    ("f(%x, a=[1])", "f(%x, a=[1, 1])"),
    ("f(%x, a=[1])", "f(%x, a=1)"),
    ("f(1f)", "f(1f64)"),
    ("f(1f)", "f(2f)"),
    ("f(0f)", "f(-0f)"),
    ("%x.0", "%x.1"),
    ("(%x, %x)", "(%x,)"),
    ("%0 = f(%x); (%0, %0)", "(f(%x), f(%x))"),
    ("(f(%x), f(%x))", "%0 = f(%x); (%0, %0)"),
    ("let %y = %x; let %z = %x; (%y, %z)", "let %y = %x; let %z = %x; (%z, %y)"),
    ("let %y: float32 = %x; %y", "let %y: float64 = %x; %y"),
    ("fn (%y, %z) { %y }", "fn (%y, %z) { %z }"),
    ("fn (%y) -> float32 { %y }", "fn (%y) -> float64 { %y }"),
    ("fn (%y, A=1) { %y }", "fn (%y) { %y }"),
    ("if (True) { %x } else { 1f }", "if (True) { 1f } else { %x }"),
    ("@main(%x)", "f(%x)"),
)


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal(a: str, b: str) -> None:
    assert _same(a, b)
    assert _same(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a: str, b: str) -> None:
    assert not _same(a, b)
    assert not _same(b, a)
    assert _same(a, a)
    assert _same(b, b)


def test_free_variables_are_themselves() -> None:
    x, y = relay.Var("x"), relay.Var("x")
    assert relay.structural_equal(relay.Tuple((x,)), relay.Tuple((x,)))
    assert not relay.structural_equal(relay.Tuple((x,)), relay.Tuple((y,)))
    # Nor may a free one stand for a bound one.
    assert not relay.structural_equal(relay.Function((x,), x), relay.Function((y,), x))
    assert not relay.structural_equal(relay.Function((x,), x), relay.Tuple(()))


def test_modules() -> None:
    one = relay.fromtext(main("%x"))
    other = relay.IRModule({"other": one["main"]})
    assert not relay.structural_equal(one, other)
    assert not relay.structural_equal(one, one["main"])


def test_immutable() -> None:
    call = relay.Call(relay.Op("f"), (), {"a": 1})
    with pytest.raises(FrozenInstanceError):
        call.op = relay.Op("g")  # type: ignore[misc]
    with pytest.raises(TypeError):
        call.attrs["a"] = 2  # type: ignore[index]
    data = np.zeros(3, "float32")
    constant = relay.Constant(data)
    data[0] = 1
    assert constant.data[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        constant.data[0] = 1
    mod = relay.IRModule({})
    with pytest.raises(TypeError):
        mod.functions["f"] = relay.Function((), call)  # type: ignore[index]


def test_post_order() -> None:
    mod = relay.fromtext(main("%0 = f(%x); %1 = fn (%y) { g(%y) }; (%0, %1(%0))"))
    function = mod["main"]
    order = list(ast.post_order(function))
    assert len(set(order)) == len(order)
    assert order[-1] is function
    place = {node: i for i, node in enumerate(order)}
    for node in order:
        assert all(place[child] < place[node] for child in ast.children(node))
    outside = list(
        ast.post_order(function, lambda n: n is function or not isinstance(n, relay.Function))
    )
    assert not any(isinstance(node, relay.Op) and node.name == "g" for node in outside)
    assert any(isinstance(node, relay.Op) and node.name == "g" for node in order)


def _calls(x: relay.Var) -> relay.Expr:
    node: relay.Expr = x
    op = relay.Op("f")
    for _ in range(DEEP):
        node = relay.Call(op, (node,))
    return node


def _lets(x: relay.Var) -> relay.Expr:
    names = [relay.Var("y") for _ in range(DEEP)]
    node: relay.Expr = names[-1]
    for i in reversed(range(DEEP)):
        node = relay.Let(names[i], names[i - 1] if i else x, node)
    return node


def _values(x: relay.Var) -> relay.Expr:
    node: relay.Expr = x
    for _ in range(1000):
        var = relay.Var("y")
        node = relay.Let(var, node, var)
    return node


def _functions(x: relay.Var) -> relay.Expr:
    node: relay.Expr = relay.Tuple(())
    for _ in range(1000):
        node = relay.Function((), node)
    return node


def _branches(x: relay.Var) -> relay.Expr:
    node: relay.Expr = x
    for _ in range(1000):
        node = relay.If(x, node, x)
    return node


@pytest.mark.share(2)
@pytest.mark.parametrize("make", [_calls, _lets, _values, _functions, _branches])
def test_deep(make: object) -> None:
    assert callable(make)

    def module() -> relay.IRModule:
        x = relay.Var("x")
        return relay.IRModule({"main": relay.Function((x,), make(x))})

    one, other = module(), module()
    assert relay.structural_equal(one, other)
    assert sum(1 for _ in ast.post_order(one["main"])) > 1000
    text = relay.astext(one)
    assert relay.structural_equal(one, relay.fromtext(text, max_depth=10_000))
    assert len(repr(one["main"].body)) < 100
    del one, other
    gc.collect()


def test_wide_sharing_is_linear() -> None:
    # 2 ** 200 paths.
    x = relay.Var("x")
    node: relay.Expr = x
    for _ in range(200):
        node = relay.Tuple((node, node))
    mod = relay.IRModule({"main": relay.Function((x,), node)})
    text = relay.astext(mod)
    assert relay.structural_equal(mod, relay.fromtext(text))
