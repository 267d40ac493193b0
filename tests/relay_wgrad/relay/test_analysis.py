"""Questions about programs: calls, kernels, inner values, features, blocks, calibration."""

from __future__ import annotations

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.analysis import Feature

NET = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 2, 6, 6), float32], %w: Tensor[(2, 2, 3, 3), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
  %1 = nn.conv2d(%0, %w, padding=[1, 1, 1, 1]);
  %2 = split(add(%0, %1), indices_or_sections=1);
  %3 = %2.0;
  nn.relu(%3)
}
"""
CALLS = """#[version = "0.0.5"]
def @leaf(%x: float32, Inline=1) -> float32 { add(%x, 1f) }
def @twice(%x: float32) -> float32 { add(@leaf(%x), @leaf(%x)) }
def @again(%x: float32) -> float32 {
  if (less(%x, 0f)) { %x } else { @again(subtract(%x, 1f)) }
}
def @main(%x: float32) -> float32 { multiply(@twice(%x), @leaf(@again(%x))) }
"""


def test_call_graph() -> None:
    graph = relay.analysis.CallGraph(relay.fromtext(CALLS))
    names = ("leaf", "twice", "again", "main")
    assert [graph.ref_count(n) for n in names] == [2, 1, 2, 0]
    assert [graph.global_call_count(n) for n in names] == [0, 1, 1, 3]
    assert [n for n in names if graph.is_recursive(relay.GlobalVar(n))] == ["again"]
    assert "main, #refs = 0\n  calls twice\n" in str(graph)
    assert list(graph.order())[-1] == "main"
    with pytest.raises(ValueError, match="no function @other; there are leaf"):
        graph.ref_count("other")
    alone = relay.IRModule({"main": relay.Function([], relay.GlobalVar("gone")())})
    with pytest.raises(ValueError, match="@main calls @gone"):
        relay.analysis.CallGraph(alone)


def test_operators_and_kernels() -> None:
    mod = relay.fromtext(NET)
    assert relay.analysis.list_op_freqs(mod) == {"nn.conv2d": 2, "add": 1, "split": 1, "nn.relu": 1}
    kernels = relay.analysis.extract_fused_functions(mod)
    assert all(kernel.attrs["Primitive"] == 1 for kernel in kernels.values())
    assert sum("conv2d" in name for name in kernels) == 2
    same = relay.IRModule.from_expr(
        relay.Tuple([relay.exp(relay.var("x", shape=(n,))) for n in (2, 2, 3)])
    )
    assert len(relay.analysis.extract_fused_functions(same)) == 2


def test_an_inner_value() -> None:
    mod = relay.fromtext(NET)
    texts = []
    for i in range(6):
        found = relay.analysis.extract_intermdeiate_expr(mod, i)
        texts.append(str(T.InferType()(found)["main"].body.checked_type))
    image = "Tensor[(1, 2, 6, 6), float32]"
    assert texts == [image, image, image, f"({image},)", image, image]
    with pytest.raises(ValueError, match="values 0 to 5, got 6"):
        relay.analysis.extract_intermdeiate_expr(mod, 6)


def test_features() -> None:
    found = relay.analysis.detect_feature(relay.fromtext(NET))
    assert found == {
        Feature.fVar, Feature.fOp, Feature.fCall, Feature.fTupleGetItem, Feature.fFunction,
        Feature.fGraph,
    }  # fmt: skip
    x = relay.var("x", shape=())
    f = relay.var("f")
    loop = relay.Let(f, relay.Function([x], f(x)), f(x))
    assert {Feature.fLet, Feature.fLetRec} <= relay.analysis.detect_feature(loop)
    assert Feature.fGraph not in relay.analysis.detect_feature(relay.add(x, x))


def test_basic_blocks() -> None:
    check = relay.analysis.check_basic_block_normal_form
    x = relay.var("x", shape=())
    shared = relay.add(x, x)
    branches = relay.If(relay.less(x, x), shared, relay.negative(shared))
    function = relay.Function([x], branches)
    with pytest.raises(ValueError, match=r"several branches or functions need Call\(Op\(add\)"):
        check(function)
    out = T.ToBasicBlockNormalForm()(relay.IRModule.from_expr(function))["main"]
    check(out)
    var = relay.Var("v")
    body = relay.If(relay.less(x, x), var, relay.negative(var))
    want = relay.Function([x], relay.Let(var, shared, body))
    assert relay.structural_equal(out, T.InferType()(relay.IRModule.from_expr(want))["main"])
    # What the condition computes is known in the branches.
    x = relay.var("x", shape=())
    shared = relay.add(x, x)
    check(relay.Function([x], relay.If(relay.less(shared, x), shared, relay.negative(shared))))


def test_calibration() -> None:
    text = """#[version = "0.0.5"]
    def @f(%x: Tensor[(3), float32], %y: Tensor[(3), float32], Compiler="some") {
      (add(%x, %y), subtract(%x, %y))
    }
    def @main(%x: Tensor[(3), float32], %y: Tensor[(3), float32]) {
      %0 = @f(%x, %y);
      %1 = @f(%0.0, %0.1);
      %1.0
    }
    """
    mod = relay.fromtext(text)
    x, y = np.arange(3, dtype="float32"), np.array([5, 7, 9], "float32")
    data = relay.analysis.get_calibration_data(mod, {"x": x, "y": y})
    given, made = data[relay.GlobalVar("f")]["inputs"], data["f"]["outputs"]
    for got, want in zip(given, (x, y, x + y, x - y), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    for got, want in zip(made, (x + y, x - y, 2 * x, 2 * y), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
