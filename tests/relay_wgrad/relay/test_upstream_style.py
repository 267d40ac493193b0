"""What scripts for Relay 0.19 do, and what they do wrong."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import IRModule
from relay_wgrad.relay.op import op as reg
from relay_wgrad.relay.testing.temp_op_attr import TempOpAttr
from relay_wgrad.relay.ty import TensorType


def _x(*shape: int, dtype: str = "float32") -> relay.Var:
    return relay.var("x", shape=shape, dtype=dtype)


class AddToMultiply(relay.ExprMutator):
    def visit_call(self, call: relay.Call) -> Any:
        call = super().visit_call(call)
        return relay.multiply(*call.args) if call.op == relay.op.get("add") else call


class CountOps(relay.ExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def visit_call(self, call: relay.Call) -> None:
        super().visit_call(call)
        self.found[call.op.name] += 1


def _chain(length: int) -> relay.Function:
    x = _x(2)
    y: Any = x
    for _ in range(length):
        y = y + x
    return relay.Function([x], y)


def _lets(length: int) -> relay.Function:
    x = _x(2)
    body: Any = x
    for i in range(length):
        body = relay.Let(relay.var(f"v{i}"), x + x, body)
    return relay.Function([x], body)


@pytest.mark.longer_cases("_lets-20000")
@pytest.mark.share(3)
@pytest.mark.parametrize("length", [1, 20_000])
@pytest.mark.parametrize("make", [_chain, _lets])
def test_visitors_of_a_users_own(make: Any, length: int) -> None:
    was = sys.getrecursionlimit()
    changed = AddToMultiply().visit(make(length))
    counter = CountOps()
    counter.visit(changed)
    assert counter.found == {"multiply": length}
    assert sys.getrecursionlimit() == was


def test_a_mutator_may_call_through_c() -> None:
    class Map(relay.ExprMutator):
        def visit_call(self, call: relay.Call) -> Any:
            return relay.Call(call.op, list(map(self.visit, call.args)), call.attrs)

    # Python 3.12 has a limit of its own for calls through C, which no program can raise.
    length = 1_000 if sys.version_info[:2] == (3, 12) else 5_000
    assert relay.structural_equal(Map().visit(_chain(length)), _chain(length))


def test_a_mutator_keeps_what_is_the_same_and_forgets_types() -> None:
    typed = relay.testing.run_infer_type(_chain(3))
    assert relay.ExprMutator().visit(typed) is typed

    class Rename(relay.ExprMutator):
        def visit_var(self, var: relay.Var) -> Any:
            return replace(var, name="y")

    renamed = Rename().visit(typed)
    assert renamed.params[0].name == "y"
    assert renamed.checked_type is None
    assert renamed.body.args[1] is renamed.params[0]


def test_a_functor_visits_each_node_once() -> None:
    node: Any = relay.const(1)
    for _ in range(100):
        node = node + node
    counter = CountOps()
    counter.visit(node)
    assert counter.found == {"add": 100}
    assert relay.ExprMutator().visit(node) is node


def test_a_functor_names_the_method_that_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="ExprFunctor has no visit_function"):
        relay.ExprFunctor().visit(_chain(1))
    with pytest.raises(TypeError, match="expected a Relay expression, got 3"):
        relay.ExprVisitor().visit(3)


def _one() -> relay.Constant:
    return relay.const(1.0)


def test_expressions_are_evaluated() -> None:
    x, y = _x(2), _x(2)  # of one name
    executor = relay.create_executor("graph")
    pair = executor.evaluate(relay.Function([x, y], relay.Tuple([x - y, relay.Tuple([x])])))
    first, (second,) = pair(np.array([3, 4], "float32"), np.array([1, 1], "float32"))
    assert first.numpy().tolist() == [2, 3]
    assert second.numpy().tolist() == [3, 4]
    assert executor.evaluate(relay.const(2) + relay.const(3)).numpy() == 5
    ones = np.ones(2, "float32")
    for value in (ones, tvm.runtime.tensor(ones), relay.const(ones), relay.const(ones) * _one()):
        assert executor.evaluate(x + x, {x: value}).numpy().tolist() == [2, 2]
    two = relay.var("two", relay.TupleType([x.type_annotation] * 2))
    total = relay.TupleGetItem(two, 0) + relay.TupleGetItem(two, 1)
    assert executor.evaluate(total, {two: (ones, ones)}).numpy().tolist() == [2, 2]
    add = executor.evaluate(relay.Function([x, y], x + y))
    assert add(relay.const(ones), relay.const(ones)).numpy().tolist() == [2, 2]
    with pytest.raises(TypeError, match="expected arguments for x, x, got 1 by place"):
        pair(np.ones(2, "float32"))
    with pytest.raises(ValueError, match="kind must be one of"):
        relay.create_executor("foo")


def test_a_modules_functions_are_evaluated() -> None:
    x = _x(2)
    executor = relay.create_executor(mod=IRModule.from_expr(relay.Function([x], x * x)))
    run = executor.evaluate()
    assert run(x=np.full(2, 3, "float32")).numpy().tolist() == [9, 9]
    with pytest.raises(ValueError, match="no @f"):
        executor.evaluate(relay.GlobalVar("f"))


def test_check_grad_finds_a_wrong_gradient() -> None:
    x = _x(2, 3, dtype="float64")
    relay.testing.check_grad(relay.Function([x], relay.tanh(x)), scale=1)
    wrong = TempOpAttr("tanh", "FPrimalGradient", lambda orig, grad: [grad])
    with wrong, pytest.raises(AssertionError, match="Not equal to tolerance"):
        relay.testing.check_grad(relay.Function([x], relay.tanh(x)), scale=1)
    relay.testing.check_grad(relay.Function([x], relay.tanh(x)), scale=1)


def test_higher_order_takes_the_first_result_alone() -> None:
    x = _x(dtype="float64")
    function = relay.Function([x], relay.Tuple([relay.Tuple([x * x, x]), x]))
    slopes = {"first_order": 8.0, "higher_order": 6.0}
    for mode, slope in slopes.items():
        run = relay.create_executor().evaluate(relay.transform.gradient(function, mode=mode))
        assert run(np.float64(3))[1][0].numpy() == slope


def test_gradient_of_a_global_function() -> None:
    mod = IRModule.from_expr(_chain(1))
    made = relay.transform.gradient(mod.get_global_var("main"), mod)
    assert relay.structural_equal(made, relay.transform.gradient(mod["main"], mod))
    with pytest.raises(ValueError, match="no @f"):
        relay.transform.gradient(relay.GlobalVar("f"), mod)
    with pytest.raises(TypeError, match="expected a function, got None"):
        relay.transform.gradient(None)


def test_names_and_modules_of_relay() -> None:
    assert reg.get("nn.relu") == relay.op.get("nn.relu")
    assert relay.op.op.register_gradient is relay.op.register_gradient
    assert relay.ty.TensorType is TensorType
    assert relay.function.Function is relay.Function
    assert relay.expr_functor.ExprMutator is relay.ExprMutator
    assert relay.build_module.create_executor is relay.create_executor
    assert relay.transform.InferTypeLocal(_x(2)) == TensorType((2,))
    product = relay.multiply(_x(2), _x(3, 1))
    relay.transform.InferTypeLocal(product)  # writes what it found, as in Relay
    assert product.checked_type == TensorType((3, 2))
    assert product.args[0].checked_type == TensorType((2,))
    mod = relay.transform.AnnotateSpans()(relay.IRModule.from_expr(product))
    assert str(mod["main"].body.span) == "GeneratedSource:3:3"
    function = relay.FuncType([TensorType((2,))], TensorType((2,)), [], None)
    assert function == relay.FuncType((TensorType((2,)),), TensorType((2,)))
    with pytest.raises(TypeError, match="a type parameter must be a TypeVar, got 'a'"):
        relay.FuncType([], TensorType((2,)), ["a"])
    assert relay.testing.count_ops(_chain(3)) == {"add": 3}
    given = {"w": tvm.runtime.tensor(np.ones(2, "float32"))}
    kept = relay.load_param_dict(relay.save_param_dict(given))
    assert kept["w"].numpy().tolist() == [1, 1]


def test_other_names_of_dtypes() -> None:
    for name, dtype in {"uint1": "bool", "int": "int32", "float": "float32"}.items():
        assert TensorType((), name) == relay.scalar_type(dtype)
        assert relay.var("x", shape=(), dtype=name).type_annotation == relay.scalar_type(dtype)
        assert relay.const(1).astype(name).attrs.dtype == dtype
        read = relay.parse_expr(f"fn (%x: {name}, %y: Tensor[(2), {name}]) {{ %x }}")
        assert read.params[0].type_annotation == relay.scalar_type(dtype)


def test_constants_data_has_numpy() -> None:
    constant = relay.const([1.0, 2.0])
    assert type(constant.data.numpy()) is np.ndarray
    assert constant.data.asnumpy().tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        constant.data.numpy()[0] = 3


def test_parse_expr() -> None:
    function = _chain(2)
    assert relay.structural_equal(relay.parse_expr(function.astext()), function)
    assert relay.parse_expr("let %a = 1; (%a, %a)").var.name == "a"
    for text, problem in [("%x", "%x is not bound"), ("", "ends")]:
        with pytest.raises(relay.RelayTextError, match=problem):
            relay.parse_expr(text)


def test_structural_equal_of_open_expressions() -> None:
    x, y, z = _x(2), _x(2), _x(3)
    assert not relay.structural_equal(x + x, y + y)
    assert relay.structural_equal(x + x, y + y, map_free_vars=True)
    assert not relay.structural_equal(x + x, x + y, map_free_vars=True)
    assert not relay.structural_equal(x + x, z + z, map_free_vars=True)
    empty = relay.Tuple([])
    pair = relay.Tuple([empty, empty])
    assert relay.structural_equal(pair, relay.Tuple([relay.Tuple([]), relay.Tuple([])]))
    with pytest.raises(TypeError, match="expected Relay programs, got 1"):
        relay.structural_equal(x, 1)


def _build(mod: Any, **options: Any) -> Any:
    return relay.build(mod, target="llvm", **options)


@pytest.mark.parametrize(
    ("error", "problem", "wrong"),
    [
        (ValueError, "share a name: x",
         lambda: _build(IRModule.from_expr(relay.Function([a := _x(2), b := _x(2)], a - b)))),
        (TypeError, "params must be arrays by name",
         lambda: _build(IRModule.from_expr(_x(2)), params=[1])),
        (ValueError, "one variable is two", lambda: relay.Function([a := _x(2), a], a)),
        (ValueError, "at least 0 and fit", lambda: _x(-2)),
        (ValueError, "at least 0 and fit", lambda: relay.TensorType((2**63,))),
        (TypeError, "index must be an integer", lambda: relay.TupleGetItem(_x(2), "0")),
        (TypeError, "dtype must be the name", lambda: relay.const(1, "flot")),
        (AttributeError, "name: .* can't be changed", lambda: setattr(_x(2), "name", "b")),
        (AttributeError, "virtual_device_: .* can't", lambda: setattr(_x(2), "virtual_device_", 1)),
        (relay.RelayTextError, "'a b=' is no name",
         lambda: str(relay.Function([], relay.const(1)).with_attr("a b=", 1))),
    ],
)  # fmt: skip
def test_refused_with_a_reason(error: Any, problem: str, wrong: Any) -> None:
    with pytest.raises(error, match=problem):
        wrong()


@pytest.mark.parametrize("bind", [False, True])
def test_stateful_operators_are_not_computed_shared_or_dropped(bind: bool) -> None:
    """Dropout of a constant is a mask of the run's, and two dropouts are two."""
    T = relay.transform
    data = relay.const(np.arange(10, dtype="float32"))
    x = relay.var("x", shape=(10,))
    drops = [relay.nn.dropout(data) + x, relay.nn.dropout(data) + x]
    body: Any = relay.Tuple(drops)
    if bind:
        body = relay.Let(relay.var("unused"), relay.nn.dropout(x), body)
    mod = T.InferType()(IRModule.from_expr(body))
    for pass_ in (T.FoldConstant(), T.EliminateCommonSubexpr(), T.DeadCodeElimination()):
        assert relay.structural_equal(pass_(mod), mod), pass_
    # Not so an operator that has been said to be pure.
    relay.op.op.register_stateful("nn.dropout", False)
    try:
        assert not relay.structural_equal(T.FoldConstant()(mod), mod)
    finally:
        relay.op.get("nn.dropout").reset_attr("TOpIsStateful")
    lean = T.DeadCodeElimination(ignore_impurity=True)(mod)
    assert relay.structural_equal(lean, mod) is not bind
