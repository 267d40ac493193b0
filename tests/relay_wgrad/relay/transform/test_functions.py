"""Passes on functions, blocks and single operators: what they make, and that values stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops
from tests.support.relay import scope_programs

PASSES: dict[str, Callable[[], T.Pass]] = {
    "ToBasicBlockNormalForm": T.ToBasicBlockNormalForm,
    "ToANormalForm": T.ToANormalForm,
    "ToGraphNormalForm": T.ToGraphNormalForm,
    "Inline": T.Inline,
    "LambdaLift": T.LambdaLift,
    "EtaExpand": lambda: T.EtaExpand(expand_global_var=True),
    "DeadCodeElimination": lambda: T.DeadCodeElimination(inline_once=True),
    "EliminateCommonSubexpr": T.EliminateCommonSubexpr,
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", PASSES)
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_programs_of_functions_and_branches(name: str, seed: int) -> None:
    """`scope_programs.program(seed)` is what failed."""
    mod = scope_programs.program(seed)
    out = T.InferType()(PASSES[name]()(mod))
    for args in ((1.0, 2.0), (-1.5, 0.5), (0.0, -3.0)):
        assert scope_programs.run(out, *args) == scope_programs.run(mod, *args)
    if name == "ToBasicBlockNormalForm":
        for function in out.functions.values():
            if not function.attrs.get("Compiler"):
                relay.analysis.check_basic_block_normal_form(function)


def parsed(body: str, head: str = "") -> relay.IRModule:
    return relay.fromtext(f'#[version = "0.0.5"]\n{head}\ndef @main{body}')


def test_inline_keeps_what_it_cannot_inline() -> None:
    head = """
    def @inner(%x: float32, Inline=1, Compiler="some") -> float32 { negative(%x) }
    def @outer(%x: float32, Inline=1) -> float32 { add(@inner(%x), @loop(%x)) }
    def @loop(%x: float32, Inline=1) -> float32 {
      if (less(%x, 0f)) { %x } else { @loop(subtract(%x, 1f)) }
    }"""
    out = T.Inline()(parsed("(%x: float32) -> float32 { @outer(%x) }", head))
    assert sorted(out.functions) == ["loop", "main", "outer"]  # as @outer calls what stays
    call = out["outer"].body.args[0]
    assert call.op.attrs["Compiler"] == "some"


def test_lambda_lift_of_a_closure() -> None:
    x, y = relay.var("x", shape=()), relay.var("y", shape=())
    inner = relay.Function([x], relay.add(x, y))
    mod = relay.IRModule.from_expr(relay.Function([y], relay.Call(inner, [relay.exp(y)])))
    out = T.LambdaLift()(T.InferType()(mod))
    assert len(out.functions) == 2
    (name,) = set(out.functions) - {"main"}
    assert isinstance(out[name].body, relay.Function)
    assert len(out[name].params) == 1
    assert relay.analysis.free_vars(out[name]) == []


def test_eta_expand() -> None:
    head = "def @f(%x: int32) -> int32 { %x }"
    mod = parsed("() -> fn (int32) -> int32 { @f }", head)
    assert isinstance(T.EtaExpand()(mod)["main"].body, relay.GlobalVar)
    body = T.EtaExpand(expand_global_var=True)(mod)["main"].body
    assert isinstance(body, relay.Function)
    assert body.body.op.name == "f"


def test_div_to_mul() -> None:
    x = relay.var("x", shape=(2,))
    for values, becomes in (
        ([1.5, -2], True),
        ([1.5, 0], False),
        ([1e-45, 1], False),
        ([3e38], False),
    ):
        mod = relay.IRModule.from_expr(relay.divide(x, relay.const(np.array(values, "float32"))))
        body = T.DivToMul()(mod)["main"].body
        assert (body.op.name == "multiply") == becomes, values
    want = (1 / np.array([1.5, -2])).astype("float32")
    mod = relay.IRModule.from_expr(relay.divide(x, relay.const(np.array([1.5, -2], "float32"))))
    np.testing.assert_array_equal(T.DivToMul()(mod)["main"].body.args[1].data, want)
    whole = relay.divide(relay.var("n", shape=(), dtype="int32"), relay.const(3))
    assert T.DivToMul()(relay.IRModule.from_expr(whole))["main"].body.op.name == "divide"


def test_canonicalize_cast() -> None:
    x = relay.var("x", shape=(2,), dtype="int8")
    wide, narrow = relay.cast(x, "int32"), relay.cast(relay.cast(x, "int32"), "int8")
    both = relay.add(relay.negative(wide), relay.abs(wide))
    out = T.CanonicalizeCast()(relay.IRModule.from_expr(both))["main"]
    assert count_ops(out)["cast"] == 2
    both = relay.add(relay.negative(narrow), relay.abs(narrow))
    out = T.CanonicalizeCast()(relay.IRModule.from_expr(both))["main"]
    assert count_ops(out)["cast"] == 2  # as before: it is no wider


def test_lazy_gradient_init() -> None:
    x, y = (relay.var(name, shape=(3, 4)) for name in "xy")
    mod = T.InferType()(relay.IRModule.from_expr(relay.Function([x, y], relay.multiply(x, y))))
    mod = T.FirstOrderGradient()(mod)
    assert count_ops(mod["main"])["ones_like"] == 1
    out = T.LazyGradientInit()(mod)["main"]
    assert count_ops(out)["ones_like"] == 0
    assert out.checked_type == mod["main"].checked_type
    wide = relay.add(relay.zeros((3, 4), "float32"), relay.var("z", shape=(4,)))
    kept = T.LazyGradientInit()(relay.IRModule.from_expr(wide))["main"]
    assert count_ops(kept)["zeros"] == 1  # it makes the result wider
