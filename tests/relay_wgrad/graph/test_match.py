"""Patterns of calls, and the reason where one does not match."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.match import Call, Constant, OneOf, call, match, number_of

op = relax.op
SQUARE = call("relax.multiply", "x", "x", name="square")
SHIFTED = call("relax.add", SQUARE, Constant("shift"), either=True)
MASK = call("relax.where", call("relax.less_equal", "y", 0.0), 0.0, "g")


def graph(body: Any) -> tuple[Graph, relax.Var]:
    """A function of x and y, and the variable of what `body` gives."""
    bb = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((2, 3), "float32")) for name in "xy")
    with bb.function("main", [x, y]):
        with bb.dataflow():
            out = bb.emit_output(body(bb.emit, x, y), "out")
        bb.emit_func_output(out)
    return Graph(bb.get()["main"]), out


def one(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def test_names_are_what_they_stand_for() -> None:
    view, out = graph(lambda emit, x, y: op.add(emit(op.multiply(x, x)), one(2.0)))
    found = match(view, SHIFTED, out)
    assert found
    assert found.reason == ""
    assert found["x"].same_as(view.func.params[0])
    assert found["square"].same_as(view.bindings[0].var)
    assert found.number("shift") == 2.0


def test_two_operands_in_either_order_and_one_of_several() -> None:
    view, out = graph(lambda emit, x, y: op.add(one(2.0), emit(op.multiply(x, x))))
    assert match(view, SHIFTED, out)
    fixed = call("relax.add", SQUARE, Constant("shift"))
    assert not match(view, fixed, out)
    assert match(view, OneOf((fixed, SHIFTED)), out).number("shift") == 2.0
    assert match(view, Call(("relax.subtract", "relax.add"), ("a", "b")), out)


def test_an_order_that_fails_late_gives_way_to_the_other() -> None:
    """Both operands are calls of one operator, and only the second order is right throughout."""
    pattern = call(
        "relax.add", call("relax.exp", "a"), call("relax.exp", call("relax.sin", "a")), either=True
    )
    view, out = graph(lambda emit, x, y: op.add(emit(op.exp(emit(op.sin(x)))), emit(op.exp(x))))
    assert match(view, pattern, out)["a"].same_as(view.func.params[0])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda emit, x, y: op.exp(x), "%out (relax.exp) is not a call of relax.add"),
        (lambda emit, x, y: op.add(emit(op.exp(x)), one(1.0)),
         "%lv (relax.exp) is not a call of relax.multiply"),
        (lambda emit, x, y: op.add(emit(op.multiply(x, y)), one(1.0)), "%y is not x, which is %x"),
        (lambda emit, x, y: op.add(emit(op.multiply(x, x)), y), "%y is not a number"),
    ],
)  # fmt: skip
def test_the_reason_is_where_it_went_furthest(body: Any, reason: str) -> None:
    view, out = graph(body)
    found = match(view, SHIFTED, out)
    assert not found
    assert found.reason == reason


def test_a_number_has_its_value() -> None:
    def masked(bound: float) -> tuple[Graph, relax.Var]:
        return graph(lambda emit, x, y: op.where(emit(op.less_equal(x, one(bound))), one(0.0), y))

    assert match(*_at(masked(0.0)))
    assert match(*_at(masked(1.0))).reason == "1 is not 0"
    assert number_of(one(3.0)) == 3.0
    assert number_of(relax.const([1.0, 2.0], "float32")) is None
    assert number_of(relax.Var("x", relax.TensorType((), "float32"))) is None


def _at(made: tuple[Graph, relax.Var]) -> tuple[Graph, Call, relax.Var]:
    return made[0], MASK, made[1]
