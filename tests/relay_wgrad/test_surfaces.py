"""The two surfaces have passes of the same names: what each says of the other's modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax

import relay_wgrad.transform as relax_passes
from relay_wgrad import relay
from relay_wgrad.relay import transform as relay_passes
from tests.support.partition_cases import module

RELAY = relay.fromtext(
    '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }'
)
RELAX = module({"x": (2, 3)}, lambda emit, x: emit(relax.op.nn.relu(x)))

# Each public pass for Relax modules, and the words that name what to use instead.
OF_RELAX: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ConvertLayout": (lambda m: relax_passes.ConvertLayout("NHWC")(m), "ConvertLayout"),
    "Gradient": (lambda m: relax_passes.Gradient("main")(m), "FirstOrderGradient"),
    "RaiseConvBackward": (lambda m: relax_passes.RaiseConvBackward()(m), "RaiseConvBackward"),
    "raise_conv_backward": (relax_passes.raise_conv_backward, "RaiseConvBackward"),
    "grad": (relax_passes.grad, "FirstOrderGradient"),
    "SpaceToDepth": (lambda m: relax_passes.SpaceToDepth()(m), ""),
    "space_to_depth": (relax_passes.space_to_depth, ""),
    "checkpoint": (lambda m: relax_passes.checkpoint(m, inputs=["x"]), ""),
    "mixed_precision": (lambda m: relax_passes.mixed_precision(m, dtype="float16"), ""),
}
# What takes or gives no module.
NO_PASSES = {
    "DepthEntry", "LayoutChange", "RaiseEntry", "RaiseReport", "converted_params",
    "converted_results", "count_reasons", "layout_changes",
}  # fmt: skip

# Each pass for Relay modules, with what the same is called elsewhere.
OF_RELAY: dict[str, tuple[Callable[[], Any], str]] = {
    "AlterOpLayout": (relay_passes.AlterOpLayout, ""),
    "AnnotateSpans": (relay_passes.AnnotateSpans, ""),
    "CanonicalizeCast": (relay_passes.CanonicalizeCast, ""),
    "DivToMul": (relay_passes.DivToMul, ""),
    "EtaExpand": (relay_passes.EtaExpand, ""),
    "Inline": (relay_passes.Inline, ""),
    "LambdaLift": (relay_passes.LambdaLift, ""),
    "LazyGradientInit": (relay_passes.LazyGradientInit, ""),
    "ToBasicBlockNormalForm": (relay_passes.ToBasicBlockNormalForm, ""),
    "AnnotateTarget": (lambda: relay_passes.AnnotateTarget("npu"), ""),
    "CanonicalizeOps": (relay_passes.CanonicalizeOps, ""),
    "CombineParallelBatchMatmul": (relay_passes.CombineParallelBatchMatmul, ""),
    "CombineParallelConv2D": (relay_passes.CombineParallelConv2D, ""),
    "CombineParallelDense": (relay_passes.CombineParallelDense, ""),
    "CombineParallelOpBatch": (
        lambda: relay_passes.CombineParallelOpBatch("nn.dense", "nn.batch_matmul"), "",
    ),
    "ConvertLayout": (
        lambda: relay_passes.ConvertLayout({"nn.conv2d": ["NHWC", "OHWI"]}),
        "relay_wgrad.transform.ConvertLayout",
    ),
    "ChangeBatch": (lambda: relay_passes.ChangeBatch({}), ""),
    "DeadCodeElimination": (
        relay_passes.DeadCodeElimination, "tvm.relax.transform.DeadCodeElimination",
    ),
    "DefuseOps": (relay_passes.DefuseOps, ""),
    "EliminateCommonSubexpr": (
        relay_passes.EliminateCommonSubexpr, "tvm.relax.transform.EliminateCommonSubexpr",
    ),
    "FlattenAtrousConv": (relay_passes.FlattenAtrousConv, ""),
    "FirstOrderGradient": (relay_passes.FirstOrderGradient, "relay_wgrad.transform.grad"),
    "FoldConstant": (relay_passes.FoldConstant, "tvm.relax.transform.FoldConstant"),
    "FuseOps": (relay_passes.FuseOps, ""),
    "InferType": (relay_passes.InferType, ""),
    "Legalize": (relay_passes.Legalize, "tvm.relax.transform.LegalizeOps"),
    "MergeCompilerRegions": (relay_passes.MergeCompilerRegions, ""),
    "MergeComposite": (lambda: relay_passes.MergeComposite([]), ""),
    "PartitionGraph": (relay_passes.PartitionGraph, ""),
    "RaiseConvBackward": (
        relay_passes.RaiseConvBackward, "relay_wgrad.transform.RaiseConvBackward",
    ),
    "RemoveUnusedFunctions": (relay_passes.RemoveUnusedFunctions, ""),
    "BackwardFoldScaleAxis": (relay_passes.BackwardFoldScaleAxis, ""),
    "DynamicToStatic": (relay_passes.DynamicToStatic, ""),
    "FoldExplicitPadding": (relay_passes.FoldExplicitPadding, ""),
    "FoldScaleAxis": (relay_passes.FoldScaleAxis, ""),
    "ForwardFoldScaleAxis": (relay_passes.ForwardFoldScaleAxis, ""),
    "InlineCompilerFunctionsBoundTo": (
        lambda: relay_passes.InlineCompilerFunctionsBoundTo([]), "",
    ),
    "MarkCompilerFunctionsAsExtern": (relay_passes.MarkCompilerFunctionsAsExtern, ""),
    "OutlineCompilerFunctionsWithExistingGlobalSymbols": (
        relay_passes.OutlineCompilerFunctionsWithExistingGlobalSymbols, "",
    ),
    "SplitArgs": (lambda: relay_passes.SplitArgs(2), ""),
    "ToMixedPrecision": (relay_passes.ToMixedPrecision, ""),
    "Sequential": (relay_passes.Sequential, ""),
    "SimplifyExpr": (relay_passes.SimplifyExpr, ""),
    "SimplifyInference": (relay_passes.SimplifyInference, ""),
    "ToANormalForm": (relay_passes.ToANormalForm, ""),
    "ToGraphNormalForm": (relay_passes.ToGraphNormalForm, ""),
}  # fmt: skip
NO_RELAY_PASSES = {
    "FunctionPass", "InferTypeLocal", "LayoutConfig", "ModulePass", "Pass", "PrintIR",
    "PassContext", "PassInfo", "function_pass", "gradient", "mixed_precision", "module_pass",
    "recast",
}  # fmt: skip


def test_all_passes_are_here() -> None:
    assert set(relax_passes.__all__) == OF_RELAX.keys() | NO_PASSES
    assert set(relay_passes.__all__) == OF_RELAY.keys() | NO_RELAY_PASSES


@pytest.mark.parametrize("name", OF_RELAX)
def test_a_relay_module_for_a_relax_pass(name: str, registered: None) -> None:
    call, counterpart = OF_RELAX[name]
    remedy = f"use relay_wgrad.relay.transform.{counterpart}" if counterpart else (
        "lower it first, by relay_wgrad.relay.lower"
    )  # fmt: skip
    with pytest.raises(TypeError) as caught:
        call(RELAY)
    assert str(caught.value) == f"{name}: this is a Relay module: {remedy}"
    assert not counterpart or hasattr(relay_passes, counterpart)
    with pytest.raises(TypeError, match=f"^{name}: mod must be an IRModule, got str$"):
        call("main")


@pytest.mark.parametrize("name", OF_RELAY)
def test_a_relax_module_for_a_relay_pass(name: str) -> None:
    make, counterpart = OF_RELAY[name]
    remedy = counterpart or "the passes of relay_wgrad.transform and tvm.relax.transform"
    with pytest.raises(TypeError) as caught:
        make()(RELAX)
    name = {"Sequential": "sequential", "Inline": "InlineGlobals"}.get(name, name)  # as in Relay
    assert str(caught.value) == f"{name}: this is a Relax module: use {remedy}"
    if counterpart:
        path, _, attribute = counterpart.rpartition(".")
        assert hasattr(__import__(path, fromlist=[attribute]), attribute)
    with pytest.raises(TypeError, match=f"^{name}: expected a Relay IRModule, got str$"):
        make()("main")


def test_functions_of_the_other_surface() -> None:
    with pytest.raises(TypeError, match=r"^build: this is a Relax module: use tvm\.compile$"):
        relay.build(RELAX)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a Relax function: use relay_wgrad\.transform\.grad$"):
        relay_passes.gradient(RELAX["main"])
    with pytest.raises(TypeError, match=r"^gradient: this is a Relax module: use relay_wgrad\.tr"):
        relay_passes.gradient(RELAY["main"], RELAX)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a Relax function, got Relay Function"):
        relax_passes.layout_changes(RELAY["main"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a Relax function, got Relay Function"):
        relax_passes.converted_params(RELAY["main"])  # type: ignore[arg-type]


def test_passes_go_into_tvms_sequence(registered: None) -> None:
    sequence = tvm.transform.Sequential(
        [relax_passes.RaiseConvBackward(), relax_passes.ConvertLayout("NHWC")]
    )
    tvm.ir.assert_structural_equal(sequence(RELAX), RELAX)
    assert [p.info.name for p in sequence.passes] == [
        "relay_wgrad.RaiseConvBackward", "relay_wgrad.ConvertLayout",
    ]  # fmt: skip
