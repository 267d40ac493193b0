"""Relay's passes.

    seq = relay.transform.Sequential([relay.transform.InferType(), ...])
    mod = seq(mod)

Each pass takes a Relay module and gives a new one; `docs/relay_passes.md` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...transform.raising.report import RaiseReport
from ..ast import Expr, IRModule
from ..infer import infer_module, infer_types
from ..types import Type
from .canonicalize import canonicalize_ops
from .convert_layout import checked_layouts, convert_layout
from .eliminate import (
    dead_code_elimination,
    eliminate_common_subexpr,
    remove_unused_functions,
)
from .fold_constant import fold_constant
from .gradient import first_order_gradient, gradient
from .legalize import legalize
from .normal_forms import to_a_normal_form, to_graph_normal_form
from .partition import AnnotateTarget, MergeCompilerRegions, MergeComposite, PartitionGraph
from .passes import (
    INFER_TYPE,
    FunctionChange,
    Pass,
    PassContext,
    PassInfo,
    Sequential,
    function_pass,
    module_pass,
    on_functions,
)
from .raise_conv_backward import raise_conv_backward
from .simplify_expr import simplify_expr
from .simplify_inference import simplify_inference

__all__ = [
    "AnnotateTarget",
    "CanonicalizeOps",
    "ConvertLayout",
    "DeadCodeElimination",
    "EliminateCommonSubexpr",
    "FirstOrderGradient",
    "FoldConstant",
    "InferType",
    "InferTypeLocal",
    "Legalize",
    "MergeCompilerRegions",
    "MergeComposite",
    "PartitionGraph",
    "Pass",
    "PassContext",
    "PassInfo",
    "RaiseConvBackward",
    "RemoveUnusedFunctions",
    "Sequential",
    "SimplifyExpr",
    "SimplifyInference",
    "ToANormalForm",
    "ToGraphNormalForm",
    "function_pass",
    "gradient",
    "module_pass",
]


def _on_functions(name: str, opt_level: int, change: FunctionChange) -> Pass:
    return Pass(on_functions(change), PassInfo(name, opt_level, (INFER_TYPE,)))


def InferType() -> Pass:  # noqa: N802
    """The type of every node, and of every function's result."""
    return Pass(lambda mod, _: infer_module(mod), PassInfo(INFER_TYPE))


def InferTypeLocal(expr: Expr) -> Type:  # noqa: N802
    """The type of one expression, which stays as it is."""
    return infer_types(expr)[expr]


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


def RemoveUnusedFunctions(entry_functions: Sequence[str] | None = None) -> Pass:  # noqa: N802
    """Only the functions that the entries, by default @main, call."""
    entries = list(entry_functions) if entry_functions is not None else ["main"]
    return Pass(
        lambda mod, _: remove_unused_functions(mod, entries), PassInfo("RemoveUnusedFunctions", 1)
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
    """Convolution gradients written with other operators as operators; see `docs/raising.md`.

    `on_report` gets what was raised, and what stays with its reason.
    """

    def change(mod: IRModule, context: PassContext) -> IRModule:
        out, report = raise_conv_backward(mod)
        if on_report is not None:
            on_report(report)
        return out

    return Pass(change, PassInfo("RaiseConvBackward", 0, (INFER_TYPE,)))


def ConvertLayout(desired_layouts: Mapping[str, Sequence[str]]) -> Pass:  # noqa: N802
    """Operators in the layouts desired for them: `{"nn.conv2d": ["NHWC", "OHWI"]}`.

    Raises TypeError, ValueError for layouts that the operator can't have; `docs/relay_layouts.md`.
    """
    desired = checked_layouts(desired_layouts)
    return _on_functions("ConvertLayout", 3, lambda f, mod, _: convert_layout(f, mod, desired))
