"""Functions for other compilers moved about, regions as they are asked for, arguments split."""

from __future__ import annotations

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops
from relay_wgrad.relay.text import fromtext
from tests.support.relay.evaluate import evaluate
from tests.support.relay.texts import HEADER

V = "Tensor[(4), float32]"
OWN = 'Compiler="own", global_symbol="own_0", Primitive=1'
VALUE = f"fn (%p: {V}, {OWN}) -> {V} {{ tanh(%p) }}"
MODULE = f"""def @main(%x: {V}) -> {V} {{ @own_0(@own_0(%x)) }}
def @own_0(%p: {V}, {OWN}) -> {V} {{
  %0 = fn (%q: {V}, Composite="own.tanh") -> {V} {{ tanh(%q) }};
  %0(%p)
}}"""


def module(text: str) -> relay.IRModule:
    return T.InferType()(fromtext(HEADER + text))


@pytest.mark.parametrize(
    "body", [f"%0 = {VALUE}; %0(%0(%x))", f"let %f = {VALUE}; let %y = %f(%x); %f(%y)"]
)
def test_outlined(body: str) -> None:
    mod = module(f"def @main(%x: {V}) -> {V} {{ {body} }}")
    out = T.OutlineCompilerFunctionsWithExistingGlobalSymbols("own")(mod)
    assert list(out.functions) == ["main", "own_0"]
    assert out["own_0"].attrs["Compiler"] == "own"
    assert "fn (" not in relay.astext(out).partition("ty=")[0]
    other = T.OutlineCompilerFunctionsWithExistingGlobalSymbols("other")(mod)
    assert list(other.functions) == ["main"]


def test_two_functions_of_one_name_are_refused() -> None:
    mod = module(f"def @main(%x: {V}) -> {V} {{ %0 = {VALUE}; %1 = {VALUE}; %0(%1(%x)) }}")
    with pytest.raises(ValueError, match="two functions are @own_0"):
        T.OutlineCompilerFunctionsWithExistingGlobalSymbols()(mod)


def test_marked_and_inlined() -> None:
    mod = module(MODULE)
    assert dict(T.MarkCompilerFunctionsAsExtern("own")(mod)["own_0"].attrs) == {"Extern": 1}
    assert T.MarkCompilerFunctionsAsExtern("other")(mod)["own_0"].attrs["Compiler"] == "own"
    out = T.InlineCompilerFunctionsBoundTo([relay.GlobalVar("own_0")])(mod)
    assert list(out.functions) == ["main"]
    x = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    np.testing.assert_allclose(evaluate(out["main"], {"x": x}), np.tanh(np.tanh(x)), rtol=1e-6)


def test_regions() -> None:
    x = relay.var("x", shape=(4,))
    begin = relay.annotation.compiler_begin(x, "own")
    inner = relay.tanh(begin)
    end = relay.annotation.compiler_end(inner, "own")
    function = relay.Function([x], relay.exp(end))
    ops = [relay.op.get(f"annotation.compiler_{name}") for name in ("begin", "end")]
    found = relay.analysis.AnnotatedRegionSet(function, *ops)
    region = found.get_region(inner)
    assert region is not None
    assert list(found) == [region]
    assert (region.target, region.args, region.rets) == ("own", (begin,), (end,))
    assert set(region.nodes) == {begin, inner, end}
    assert found.get_region(function.body) is None
    with pytest.raises(ValueError, match=r"the marks are annotation.compiler_begin and"):
        relay.analysis.AnnotatedRegionSet(function, *ops[::-1])


@pytest.mark.parametrize(("most", "pieces"), [(0, 1), (100, 1), (10, 3), (4, 10)])
def test_arguments_are_split(most: int, pieces: int) -> None:
    params = [relay.var(f"p{i}", shape=(2, i % 3 + 1)) for i in range(20)]
    mod = T.InferType()(relay.IRModule.from_expr(relay.concatenate(params, axis=1)))
    out = T.SplitArgs(most)(mod)
    assert count_ops(out["main"])["concatenate"] == pieces
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.normal(size=p.type_annotation.shape) for p in params}
    ran = T.DefuseOps()(T.FuseOps(2)(out))["main"]
    np.testing.assert_array_equal(
        evaluate(ran, arrays), np.concatenate([arrays[p.name] for p in params], 1)
    )
    fused = T.FuseOps(2)(out)["main"]
    counts: list[int] = []

    def note(node: object) -> None:
        if isinstance(node, relay.Function) and node.attrs.get("Primitive"):
            counts.append(len(node.params))

    relay.analysis.post_order_visit(fused, note)
    assert max(counts) <= (most or 20)


def test_arguments_that_no_kernel_takes() -> None:
    params = [relay.var(f"p{i}", shape=(relay.Any(), 3)) for i in range(5)]
    mod = T.InferType()(relay.IRModule.from_expr(relay.concatenate(params, axis=1)))
    with pytest.raises(ValueError, match="a kernel of 8 arguments can't join two of 4 each"):
        T.SplitArgs(8)(mod)
