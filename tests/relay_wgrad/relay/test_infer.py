"""Type inference: what Relay printed, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import ast, records
from relay_wgrad.relay import infer as infer_of
from relay_wgrad.relay.equal import structural_equal
from relay_wgrad.relay.infer import infer_expr, infer_module
from relay_wgrad.relay.make import call
from relay_wgrad.relay.text import astext, fromtext
from relay_wgrad.relay.types import ANY, FuncType, TensorType, TupleType
from tests.support.relay.texts import HEADER, call_chain, fixture_text, fixture_texts, let_chain
from tests.support.relay.untyped import stripped
from tests.support.timing import seconds

VECTOR = "Tensor[(3), float32]"


@pytest.mark.share(3)
@pytest.mark.parametrize("annotations", [False, True])
@pytest.mark.parametrize("name", fixture_texts())
def test_the_types_that_relay_printed(name: str, annotations: bool) -> None:
    text = fixture_text(name)
    mod = fromtext(text)
    bare = stripped(mod, annotations)
    assert not structural_equal(bare, mod)
    out = infer_module(bare)
    assert astext(out) == text
    assert structural_equal(out, mod)


def test_a_typed_module_stays_as_it_is() -> None:
    once = infer_module(fromtext(fixture_text("smallnet_grad")))
    assert infer_module(once)["main"] is once["main"]


def test_types_are_found_anew_only_where_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def lookup(name: str) -> Any:
        asked.append(name)
        return records.lookup(name)

    monkeypatch.setattr(infer_of, "lookup", lookup)
    once = infer_module(fromtext(f"{HEADER}def @main(%x: {VECTOR}) {{ exp(%x) }}"))
    asked.clear()
    again = infer_module(once)
    assert not asked
    again["main"] = fromtext(f"{HEADER}def @main(%x: {VECTOR}) {{ log(%x) }}")["main"]
    assert "exp" in astext(once)  # another module
    asked.clear()
    assert "log" in astext(infer_module(again))
    assert asked == ["log"]


def test_sharing_is_kept() -> None:
    mod = fromtext(f"{HEADER}def @main(%x: {VECTOR}) {{ %0 = exp(%x); (%0, add(%0, %0)) }}")
    body = infer_module(mod)["main"].body
    assert isinstance(body, ast.Tuple)
    shared, total = body.fields
    assert isinstance(total, ast.Call)
    assert total.args[0] is total.args[1] is shared
    assert shared.checked_type == TensorType((3,), "float32")


def infer(text: str) -> ast.Function:
    return infer_module(fromtext(HEADER + text))["main"]


ROWS = TensorType((ANY, 3), "float32")
KNOWN = TensorType((3,), "float32")
SCALAR = TensorType((), "float32")
RESULTS = {
    f"def @main(%x: {VECTOR}) {{ %x }}": KNOWN,
    "def @main(%x: Tensor[(?, 3), float32]) { nn.relu(%x) }": ROWS,
    # What is stated as unknown is taken as such.
    f"def @main(%x: {VECTOR}) {{ let %y: Tensor[(?), float32] = exp(%x); %y }}":
        TensorType((ANY,), "float32"),
    f"def @main(%x: {VECTOR}) {{ if (True) {{ %x }} else {{ exp(%x) }} }}": KNOWN,
    "def @main(%x: Tensor[(3), float32], %y: Tensor[(?), float32], %c: bool)"
    " { if (%c) { %x } else { %y } }": TensorType((ANY,), "float32"),
    f"def @main(%x: {VECTOR}) {{ let %f = fn (%a) {{ sum(%a) }}; (%f(%x), %f(%x)) }}":
        TupleType((SCALAR, SCALAR)),
    f"def @main(%x: {VECTOR}) {{ let %f = fn (%a: {VECTOR}) {{ sum(%a) }}; %f }}":
        FuncType((KNOWN,), SCALAR),
    f"def @f(%a: {VECTOR}) {{ sum(%a) }} def @main(%x: {VECTOR}) {{ @f(%x) }}": SCALAR,
    "def @main(%x: float32) -> float32 { @main(%x) }": SCALAR,
    f"def @main(%x: {VECTOR}) {{ ((%x, 1), %x).0 }}":
        TupleType((KNOWN, TensorType((), "int32"))),
}  # fmt: skip


@pytest.mark.parametrize("text", RESULTS)
def test_results(text: str) -> None:
    function = infer(text)
    assert function.ret_type == RESULTS[text]
    assert isinstance(function.checked_type, FuncType)
    assert function.checked_type.ret_type == RESULTS[text]
    for node in ast.post_order(function):
        assert isinstance(node, ast.Op) or node.checked_type is not None
        if isinstance(node, ast.Var):
            assert node.type_annotation is not None


REFUSED = {
    "def @main(%x: Tensor[(3), float32]) {\n  add(%x, nn.dense(%x, %x)) }":
        r"nn.dense: data must have .*:3:11",
    f"def @main(%x: {VECTOR}, %y: Tensor[(2), float32]) {{\n  add(%x, %y) }}":
        r"add: Incompatible broadcast type Tensor\[\(3\), float32\] and .*\(2\).*:3:3",
    f"def @main(%x: {VECTOR}) -> float32 {{ %x }}": "result is Tensor.*says float32",
    f"def @main(%x: {VECTOR}) {{ let %y: float32 = %x; %y }}": "%y is Tensor.*says float32",
    f"def @main(%x: {VECTOR}) {{ let %f = fn (%a: float32) {{ %a }}; %f(%x) }}":
        "argument 0 is Tensor.*says float32",
    f"def @f(%a: {VECTOR}) {{ %a }} def @main(%x: {VECTOR}) {{ @f(%x, %x) }}":
        "a function of 1 takes 2 arguments",
    f"def @main(%x: {VECTOR}) {{ if (%x) {{ %x }} else {{ %x }} }}": "must be bool, got Tensor",
    f"def @main(%x: {VECTOR}) {{ if (True) {{ %x }} else {{ 1f }} }}":
        "branches of `if` differ: Tensor.* and float32",
    f"def @main(%x: {VECTOR}) {{ (%x, %x).2 }}": r"\.2 of a tuple of 2",
    f"def @main(%x: {VECTOR}) {{ %x.0 }}": "which is no tuple",
    f"def @main(%x: {VECTOR}) {{ %x(%x) }}": "is called, and is no function",
    f"def @main(%x: {VECTOR}) {{ @f(%x) }}": "@f is not defined",
    "def @main(%x) { %x }": "%x is not bound here, or a parameter without a type",
    "def @main(%x: float32) { @main(%x) }": "@main calls itself and does not state its type",
    f"def @main(%x: {VECTOR}) {{ let %f = fn (%a) {{ %a }}; %x }}": "%f has no type",
    f"def @main(%x: {VECTOR}) {{ nn.convolve(%x) }}": "unknown Relay operator 'nn.convolve'",
    f"def @main(%x: {VECTOR}) {{ sum(%x, axes=[0]) }}": "unknown attributes axes",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=REFUSED[text]):
        infer(text)


def test_expressions() -> None:
    x = ast.Var("x", TensorType((2, 3), "float32"))
    assert infer_expr(call("sum", x, axis=[0])).checked_type == TensorType((3,), "float32")
    bfloat = ast.Constant(np.zeros((2,), "float16"))
    assert infer_expr(bfloat).checked_type == TensorType((2,), "float16")
    with pytest.raises(ValueError, match="stands where it is not called"):
        infer_expr(ast.Tuple((ast.Op("add"),)))
    mod = fromtext(f"{HEADER}def @f(%a: {VECTOR}) {{ sum(%a) }}")
    used = ast.Call(ast.GlobalVar("f"), (ast.Var("v", TensorType((3,), "float32")),))
    assert infer_expr(used, mod).checked_type == TensorType((), "float32")


@pytest.mark.longer("programs long enough to tell linear time")
@pytest.mark.parametrize("chain", [call_chain, let_chain])
def test_depth_costs_no_stack_and_linear_time(chain: object) -> None:
    def cost(depth: int) -> float:
        mod = fromtext(chain(depth).replace("%x)", f"%x: {VECTOR})", 1))
        return seconds(lambda: infer_module(mod))

    short, long = cost(1000), cost(8000)
    assert long < 8 * short * 3  # quadratic would be 64 times


def test_a_parameter_without_a_type_gets_it_from_the_function_that_takes_it() -> None:
    ty = relay.TensorType((2, 3), "float32")
    f = relay.var("f", relay.FuncType([ty], ty))
    x = relay.var("x")
    made = relay.transform.InferType()(relay.IRModule.from_expr(relay.Function([f, x], f(x))))
    assert made["main"].checked_type.arg_types[1] == ty
    mod = relay.IRModule()
    w, y, v = relay.var("w", ty), relay.var("y"), relay.var("v")
    mod["g"] = relay.Function([w, y], relay.nn.dense(w, y, units=4))
    mod["main"] = relay.Function([x, v], relay.GlobalVar("g")(x, v))
    mod = relay.transform.InferType()(mod)
    want = (ty, relay.TensorType((4, 3), "float32"))
    assert tuple(p.checked_type for p in mod["main"].params) == want
    inner = relay.Function([w], w + w)
    twice = relay.transform.InferType()(relay.IRModule.from_expr(relay.Function([x], inner(x))))
    assert twice["main"].params[0].type_annotation == ty


def test_an_operators_call_has_its_arguments_types() -> None:
    x, y = relay.var("x", shape=(10, 10)), relay.var("y", shape=(1, 10))
    plain = relay.IRModule.from_expr(x + y)
    mod = relay.transform.InferType()(plain)
    assert mod["main"].body.type_args == (x.type_annotation, y.type_annotation)
    again = relay.transform.InferType()(mod)
    assert again["main"] is mod["main"]
    bare = relay.transform.InferType()(relay.fromtext(relay.astext(plain)))
    assert relay.structural_equal(bare, mod)
    body = mod["main"].body
    assert relay.structural_equal(body, relay.Call(body.op, body.args), map_free_vars=True)
