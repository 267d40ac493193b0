"""Relay's passes.

    seq = relay.transform.Sequential([relay.transform.InferType(), ...])
    mod = seq(mod)

Each pass takes a Relay module and gives a new one; `docs/reference/relay_passes.md` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...transform.raising.report import RaiseReport
from ..ast import Expr, Function, IRModule
from ..infer import infer_module, infer_types
from ..layout_rules.config import LayoutConfig
from ..text import astext, fromtext
from ..types import Type
from . import arithmetic, mixed_precision
from . import combine_families as families
from .alter_op_layout import alter_op_layout
from .atrous import flatten_atrous_conv
from .basic_blocks import to_basic_block_normal_form
from .canonicalize import canonicalize_ops
from .change_batch import ChangeBatch
from .combine_parallel import combine
from .compiler_functions import (
    InlineCompilerFunctionsBoundTo,
    MarkCompilerFunctionsAsExtern,
    OutlineCompilerFunctionsWithExistingGlobalSymbols,
)
from .context import option
from .convert_layout import checked_layouts, convert_layout
from .dynamic_to_static import dynamic_to_static
from .eliminate import (
    dead_code_elimination,
    eliminate_common_subexpr,
    remove_unused_functions,
)
from .explicit_padding import fold_explicit_padding
from .fold_constant import fold_constant
from .fold_scale import backward_fold_scale_axis, forward_fold_scale_axis
from .fuse_ops import defuse_ops, fuse_ops
from .gradient import first_order_gradient, gradient
from .inline import eta_expand, inline_globals, lambda_lift
from .legalize import legalize
from .normal_forms import to_a_normal_form, to_graph_normal_form
from .partition import AnnotateTarget, MergeCompilerRegions, MergeComposite, PartitionGraph
from .passes import (
    INFER_TYPE,
    FunctionPass,
    ModulePass,
    Pass,
    PassContext,
    PassInfo,
    PrintIR,
    Sequential,
    function_pass,
    module_pass,
)
from .passes import per_function as _on_functions
from .raise_conv_backward import raise_conv_backward
from .recast import recast
from .simplify_expr import simplify_expr
from .simplify_inference import simplify_inference
from .split_args import split_args
from .to_mixed_precision import ToMixedPrecision

__all__ = [
    "AlterOpLayout",
    "AnnotateSpans",
    "AnnotateTarget",
    "BackwardFoldScaleAxis",
    "CanonicalizeCast",
    "CanonicalizeOps",
    "ChangeBatch",
    "CombineParallelBatchMatmul",
    "CombineParallelConv2D",
    "CombineParallelDense",
    "CombineParallelOpBatch",
    "ConvertLayout",
    "DeadCodeElimination",
    "DefuseOps",
    "DivToMul",
    "DynamicToStatic",
    "EliminateCommonSubexpr",
    "EtaExpand",
    "FirstOrderGradient",
    "FlattenAtrousConv",
    "FoldConstant",
    "FoldExplicitPadding",
    "FoldScaleAxis",
    "ForwardFoldScaleAxis",
    "FunctionPass",
    "FuseOps",
    "InferType",
    "InferTypeLocal",
    "Inline",
    "InlineCompilerFunctionsBoundTo",
    "LambdaLift",
    "LayoutConfig",
    "LazyGradientInit",
    "Legalize",
    "MarkCompilerFunctionsAsExtern",
    "MergeCompilerRegions",
    "MergeComposite",
    "ModulePass",
    "OutlineCompilerFunctionsWithExistingGlobalSymbols",
    "PartitionGraph",
    "Pass",
    "PassContext",
    "PassInfo",
    "PrintIR",
    "RaiseConvBackward",
    "RemoveUnusedFunctions",
    "Sequential",
    "SimplifyExpr",
    "SimplifyInference",
    "SplitArgs",
    "ToANormalForm",
    "ToBasicBlockNormalForm",
    "ToGraphNormalForm",
    "ToMixedPrecision",
    "function_pass",
    "gradient",
    "mixed_precision",
    "module_pass",
    "recast",
]


def InferType() -> Pass:  # noqa: N802
    """The type of every node, and of every function's result."""
    return Pass(lambda mod, _: infer_module(mod), PassInfo(INFER_TYPE))


def InferTypeLocal(expr: Expr) -> Type:  # noqa: N802
    """The type of one expression; each node below it gets its `checked_type`, as in Relay.

    That is the one place where a node changes: what it says of itself, not what it means.
    """
    types = infer_types(expr)
    for node, type_ in types.items():
        object.__setattr__(node, "checked_type", type_)
    return types[expr]


def AnnotateSpans() -> Pass:  # noqa: N802
    """The module read back from its text: each node has its place there as `span`.

    Raises RelayTextError for a program without a text.
    """

    def change(mod: IRModule, context: Any) -> IRModule:
        return fromtext(astext(mod), "GeneratedSource", release="0.19")

    return Pass(change, PassInfo("AnnotateSpans"))


def SimplifyInference() -> Pass:  # noqa: N802
    """Normalizations and dropout as what they compute when a network runs, in simple operators."""
    return _on_functions("SimplifyInference", 0, lambda f, mod, _: simplify_inference(f))


def SimplifyExpr() -> Pass:  # noqa: N802
    """`…_like` with its shape, and neither zeros added nor ones multiplied."""
    return _on_functions("SimplifyExpr", 0, lambda f, mod, _: simplify_expr(f))


def CanonicalizeOps() -> Pass:  # noqa: N802
    """`nn.bias_add` as an addition."""
    return _on_functions("CanonicalizeOps", 3, lambda f, mod, _: canonicalize_ops(f))


def FoldConstant(fold_qnn: bool = False) -> Pass:  # noqa: N802
    """Calls of constants alone as what they give, but for stateful operators (dropout).

    What has no value (an integer divided by zero) stays; `fold_qnn` has no meaning here.
    """
    return _on_functions("FoldConstant", 2, lambda f, mod, _: fold_constant(f))


def DynamicToStatic() -> Pass:  # noqa: N802
    """`dyn` operators with the sizes that constants tell as attributes."""
    return Pass(
        lambda mod, _: dynamic_to_static(mod), PassInfo("DynamicToStatic", 0, (INFER_TYPE,))
    )


def FoldExplicitPadding() -> Pass:  # noqa: N802
    """`nn.pad` before convolutions and pools as their own padding, where that is the same."""
    return _on_functions("FoldExplicitPadding", 0, lambda f, mod, _: fold_explicit_padding(f))


def ForwardFoldScaleAxis() -> Pass:  # noqa: N802
    """Factors of the channels of convolutions' data in their weights."""
    return _on_functions("ForwardFoldScaleAxis", 3, lambda f, mod, _: forward_fold_scale_axis(f))


def BackwardFoldScaleAxis() -> Pass:  # noqa: N802
    """Factors of the channels of convolutions' results in their weights."""
    return _on_functions("BackwardFoldScaleAxis", 3, lambda f, mod, _: backward_fold_scale_axis(f))


def FoldScaleAxis() -> Pass:  # noqa: N802
    """Both, backward first, and constants folded."""
    passes = [BackwardFoldScaleAxis(), ForwardFoldScaleAxis(), FoldConstant()]
    return Sequential(passes, name="FoldScaleAxis")


def EliminateCommonSubexpr(fskip: Callable[[Expr], bool] | None = None) -> Pass:  # noqa: N802
    """One node for equal calls of the same operands, but for those where `fskip(node)` is true."""
    return _on_functions(
        "EliminateCommonSubexpr", 3, lambda f, mod, _: eliminate_common_subexpr(f, fskip)
    )


def DeadCodeElimination(  # noqa: N802
    inline_once: bool = False, ignore_impurity: bool = False
) -> Pass:
    """No `let` of what nothing needs; with `inline_once`, nor of what is used once.

    What calls a stateful operator stays bound, unless `ignore_impurity`.
    """
    return _on_functions(
        "DeadCodeElimination",
        1,
        lambda f, mod, _: dead_code_elimination(f, inline_once, ignore_impurity),
    )


def FuseOps(fuse_opt_level: int = -1) -> Pass:  # noqa: N802
    """A `Primitive` function for what one kernel may compute; by -1 at the context's level.

    The context's options `relay.FuseOps.max_depth` (operators in one) and
    `relay.FuseOps.link_params` (constants inside) count.
    """

    def change(function: Function, mod: IRModule, context: Any) -> Function:
        level = context.opt_level if fuse_opt_level < 0 else fuse_opt_level
        most, link = option("relay.FuseOps.max_depth"), option("relay.FuseOps.link_params")
        return fuse_ops(function, int(level), int(most), bool(link))

    return _on_functions("FuseOps", 0, change)


def CombineParallelConv2D(min_num_branches: int = 3) -> Pass:  # noqa: N802
    """Convolutions of one tensor as one of all their filters, with what follows on each."""
    return _combined("CombineParallelConv2D", families.CONV2D, min_num_branches)


def CombineParallelDense(  # noqa: N802
    min_num_branches: int = 3, to_batch: bool = True
) -> Pass:
    """`nn.dense` of one tensor as one `nn.batch_matmul`; without `to_batch` as one `nn.dense`."""
    family = families.DENSE_TO_BATCH if to_batch else families.DENSE
    return _combined("CombineParallelDense", family, min_num_branches)


def CombineParallelBatchMatmul(min_num_branches: int = 3) -> Pass:  # noqa: N802
    """`nn.batch_matmul` of one tensor as one."""
    return _combined("CombineParallelBatchMatmul", families.BATCH_MATMUL, min_num_branches)


def CombineParallelOpBatch(  # noqa: N802
    op_name: str, batch_op_name: str, min_num_branches: int = 3
) -> Pass:
    """Calls of one operator that share their first operand as one of `batch_op_name`, stacked."""
    family = families.op_batch(op_name, batch_op_name)
    return _combined("CombineParallelOpBatch", family, min_num_branches)


def _combined(name: str, family: families.Family, fewest: int) -> Pass:
    return _on_functions(name, 4, lambda f, mod, _: combine(f, family, fewest))


def SplitArgs(max_function_args: int) -> Pass:  # noqa: N802
    """No `concatenate` of more arguments than a kernel may have; 0 is no bound."""
    most = int(max_function_args)
    return _on_functions("SplitArgs", 1, lambda f, mod, _: split_args(f, most))


def DefuseOps() -> Pass:  # noqa: N802
    """Function values' bodies where they are called: what `FuseOps` made, back again."""
    return _on_functions("DefuseOps", 3, lambda f, mod, _: defuse_ops(f))


def RemoveUnusedFunctions(entry_functions: Sequence[str] | None = None) -> Pass:  # noqa: N802
    """Only the functions that the entries, by default @main, call."""
    entries = list(entry_functions) if entry_functions is not None else ["main"]
    return Pass(
        lambda mod, _: remove_unused_functions(mod, entries), PassInfo("RemoveUnusedFunctions", 1)
    )


def Inline() -> Pass:  # noqa: N802
    """Functions that are marked `Inline` in place of their calls; types stay as they are."""
    return Pass(lambda mod, _: inline_globals(mod), PassInfo("InlineGlobals", 1))


def LambdaLift() -> Pass:  # noqa: N802
    """A global function for each function value."""
    return Pass(
        lambda mod, _: infer_module(lambda_lift(mod)), PassInfo("LambdaLift", 1, (INFER_TYPE,))
    )


def EtaExpand(expand_constructor: bool = False, expand_global_var: bool = False) -> Pass:  # noqa: N802
    """`fn (x) { @f(x) }` for a global function as a value, if `expand_global_var`.

    `expand_constructor` has no meaning here, where no type has constructors.
    """

    def change(function: Function, mod: IRModule, context: Any) -> Function:
        return eta_expand(function, mod) if expand_global_var else function

    return _on_functions("EtaExpand", 1, change)


def CanonicalizeCast() -> Pass:  # noqa: N802
    """A cast to wider numbers of its own for each operator that takes it."""
    return _on_functions("CanonicalizeCast", 3, lambda f, mod, _: arithmetic.canonicalize_cast(f))


def DivToMul() -> Pass:  # noqa: N802
    """Products by reciprocals for divisions by constants of floats."""
    return _on_functions("DivToMul", 0, lambda f, mod, _: arithmetic.div_to_mul(f))


def FlattenAtrousConv() -> Pass:  # noqa: N802
    """Dilated convolutions for ones between `nn.space_to_batch_nd` and `nn.batch_to_space_nd`."""
    return _on_functions("FlattenAtrousConv", 0, lambda f, mod, _: flatten_atrous_conv(f))


def LazyGradientInit() -> Pass:  # noqa: N802
    """No sums with `zeros` and no products with `ones`, of which gradients have many."""
    return _on_functions("LazyGradientInit", 1, lambda f, mod, _: arithmetic.lazy_gradient_init(f))


def ToBasicBlockNormalForm() -> Pass:  # noqa: N802
    """A `let` for each value that several branches or functions need, and for no other."""
    return _on_functions(
        "ToBasicBlockNormalForm", 1, lambda f, mod, _: to_basic_block_normal_form(f)
    )


def ToGraphNormalForm() -> Pass:  # noqa: N802
    """No `let`: shared nodes instead of variables."""
    return _on_functions("ToGraphNormalForm", 1, lambda f, mod, _: to_graph_normal_form(f))


def ToANormalForm() -> Pass:  # noqa: N802
    """A `let` for every value, in the order of evaluation."""
    return _on_functions("ToANormalForm", 1, lambda f, mod, _: to_a_normal_form(f))


def FirstOrderGradient() -> Pass:  # noqa: N802
    """(results, (gradient of each parameter)) of each function, for results' gradients of one."""
    return Pass(
        lambda mod, _: first_order_gradient(mod), PassInfo("FirstOrderGradient", 0, (INFER_TYPE,))
    )


def Legalize(legalize_map_attr_name: str = "FTVMLegalize") -> Pass:  # noqa: N802
    """Calls in the form that `relay.op.register_legalize` set for their operator."""
    key = legalize_map_attr_name
    if not isinstance(key, str):
        raise TypeError(f"Legalize: expected an attribute's name, got {key!r}")
    return _on_functions("Legalize", 1, lambda f, mod, _: legalize(f, mod, key))


def RaiseConvBackward(  # noqa: N802
    on_report: Callable[[RaiseReport], None] | None = None,
) -> Pass:
    """Convolution gradients written with other operators as operators.

    How they are recognised and proved: `docs/explanation/raising.md`.

    `on_report` gets what was raised, and what stays with its reason.
    """

    def change(mod: IRModule, context: Any) -> IRModule:
        out, report = raise_conv_backward(mod)
        if on_report is not None:
            on_report(report)
        return out

    return Pass(change, PassInfo("RaiseConvBackward", 0, (INFER_TYPE,)))


def AlterOpLayout() -> Pass:  # noqa: N802
    """Calls as `relay.op.register_alter_op_layout` says, and what follows in their layouts."""
    return _on_functions("AlterOpLayout", 3, lambda f, mod, _: alter_op_layout(f))


def ConvertLayout(desired_layouts: Mapping[str, Sequence[str]]) -> Pass:  # noqa: N802
    """Operators in the layouts desired for them: `{"nn.conv2d": ["NHWC", "OHWI"]}`.

    Raises TypeError, ValueError for layouts that the operator can't have;
    `docs/reference/relay_layouts.md`.
    """
    desired = checked_layouts(desired_layouts)
    return _on_functions("ConvertLayout", 3, lambda f, mod, _: convert_layout(f, mod, desired))
