"""`ConvertLayout`: a whole function to NHWC (or back), with nothing left over between its ops.

The stock pass takes one forward walk and asks each op by itself; where an op has no rule the
tensors go back to their first layout, and an op of two operands may pull both the wrong way.  This
pass decides for the function as a whole (`analysis`) and then writes it once
(`rewrite`), both in linear time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from ...graph.rebuild import rebuilt, substitute, with_bindings
from ...graph.walk import Block, blocks_of, dataflow_block
from ...layout_rules.perms import Perm, compose, is_identity, reorder
from ...layouts import ACTIVATION, KERNEL, is_permutation, permutation
from ..surface import ModulePass, check_names, functions_of, kind_of
from .analysis import Analysis
from .rewrite import Rewriter

PARAMS_ATTR = "relay_wgrad.converted_params"
RESULTS_ATTR = "relay_wgrad.converted_results"
_CHOICES = ("keep", "convert")


def ConvertLayout(  # noqa: N802 - a pass, named as the stock one
    layout: str = "NHWC",
    functions: Sequence[str] | None = None,
    kernel_layout: str | None = None,
    params: str = "keep",
) -> tvm.transform.Pass:
    """A pass that moves every convolution of a module, and all that lies between, to a layout.

    Parameters
    ----------
    layout : of activations and their gradients, a permutation of NCHW.
    functions : names of the Relax functions to convert; by default all.
    kernel_layout : of weights and their gradients, a permutation of OIHW in the forward
        convolution's letters (O counts K); by default the one that is stored as `layout` is with
        N, C for O, I: OHWI for NHWC.
    params : "keep" leaves the functions' types as they are; each weight is converted once on its
        way in, and its gradient once on its way out.  "convert" has weights come and gradients go
        in `kernel_layout`: parameter and result types change, and `converted_params` and
        `converted_results` say how.

    Raises
    ------
    ValueError : for layouts that are no such permutation, functions that the module lacks, and with
        params="convert" a function that is called by another or has several blocks.
    TypeError : for arguments of another type.
    """
    kernel_layout = _checked(layout, kernel_layout, params)
    check_names("ConvertLayout", functions)
    wanted = None if functions is None else tuple(functions)

    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        found = functions_of("ConvertLayout", mod, None)
        out = mod.clone()
        for name, func in functions_of("ConvertLayout", mod, wanted).items():
            converted = convert_function(func, layout, kernel_layout, params)
            if params == "convert" and not _same_type(func, converted):
                _check_uncalled(mod, name, found)
                del out[name]  # its GlobalVar has the old type
            out[name] = converted
        return out

    return ModulePass("ConvertLayout", run, counterpart="ConvertLayout")


def _checked(layout: Any, kernel_layout: Any, params: Any) -> str:
    """The kernel layout, after all that can be said of the arguments alone."""
    for name, value, canonical in (
        ("layout", layout, ACTIVATION),
        ("kernel_layout", kernel_layout, KERNEL),
    ):
        if value is None and name == "kernel_layout":
            continue
        if not isinstance(value, str):
            raise TypeError(f"ConvertLayout: {name} must be a string, got {value!r}")
        if not is_permutation(value, canonical):
            raise ValueError(
                f"ConvertLayout: {name} must be a permutation of {canonical}, got {value!r}"
            )
    if params not in _CHOICES:
        raise ValueError(f"ConvertLayout: params must be one of {_CHOICES}, got {params!r}")
    if kernel_layout is None:
        return "".join(KERNEL[axis] for axis in permutation(ACTIVATION, layout))
    return str(kernel_layout)


def convert_function(
    func: relax.Function, layout: str, kernel_layout: str, params: str
) -> relax.Function:
    """One function; see `ConvertLayout`."""
    if params == "convert":
        return _convert_with_params(func, layout, kernel_layout)

    def rewrite(block: Block) -> list[relax.Binding] | None:
        if not isinstance(block, relax.DataflowBlock):
            return None
        return Rewriter(Analysis(block, layout, kernel_layout)).run()

    return rebuilt(func, rewrite)


def _convert_with_params(func: relax.Function, layout: str, kernel_layout: str) -> relax.Function:
    if (block := dataflow_block(func)) is None:
        raise ValueError(
            "ConvertLayout: params='convert' needs a function of one dataflow block, got"
            f" {len(list(blocks_of(func)))} blocks"
        )
    analysis = Analysis(block, layout, kernel_layout)
    given: dict[relax.Var, tuple[relax.Var, Perm]] = {}
    for param in func.params:
        if isinstance(param.ty, relax.TensorType) and analysis.group(param).weight:
            perm = analysis.layout(param)
            if not is_identity(perm):
                given[param] = (relax.Var(param.name, _permuted(param.ty, perm)), perm)
    rewriter = Rewriter(analysis, given, _paths(func.body.body))
    bindings = rewriter.run()
    new_params = [given[p][0] if p in given else p for p in func.params]
    attrs = dict(func.attrs.items()) if func.attrs is not None else {}
    result = substitute(func.body.body, rewriter.replaced)
    out = with_bindings(func, bindings, params=new_params, result=result)
    changes: dict[str, dict[str, Perm]] = {
        PARAMS_ATTR: {p.name: perm for p, (_, perm) in given.items()},
        RESULTS_ATTR: {".".join(map(str, path)): perm for path, perm in rewriter.converted.items()},
    }
    for name, now in changes.items():
        before = {str(k): tuple(int(a) for a in v) for k, v in attrs.get(name, {}).items()}
        total = {k: compose(before[k], p) if k in before else p for k, p in now.items()}
        total = {**{k: v for k, v in before.items() if k not in now}, **total}
        total = {k: v for k, v in total.items() if not is_identity(v)}
        if total:
            out = out.with_attr(name, {k: list(v) for k, v in total.items()})
        elif name in attrs:
            out = out.without_attr(name)
    return out


def _paths(result: relax.Expr, path: tuple[int, ...] = ()) -> dict[relax.Var, tuple[int, ...]]:
    """Where each variable stands in a function's result."""
    if isinstance(result, relax.Tuple):
        found: dict[relax.Var, tuple[int, ...]] = {}
        for i, item in enumerate(result.fields):
            found.update(_paths(item, (*path, i)))
        return found
    return {result: path} if isinstance(result, relax.Var) else {}


def _permuted(ty: relax.TensorType, perm: Perm) -> relax.TensorType:
    if not isinstance(ty.shape, relax.ShapeExpr):
        return ty
    return relax.TensorType(reorder(list(ty.shape.values), perm), ty.dtype, ty.vdevice)


def _same_type(a: relax.Function, b: relax.Function) -> bool:
    pairs = zip([*a.params], [*b.params], strict=True)
    return all(x.same_as(y) for x, y in pairs) and a.ret_ty.same_as(b.ret_ty)


def _check_uncalled(mod: tvm.IRModule, name: str, found: Mapping[str, relax.Function]) -> None:
    for caller, func in found.items():
        if caller == name:
            continue
        if any(gv.name_hint == name for gv in relax.analysis.all_global_vars(func)):
            raise ValueError(
                f"ConvertLayout: params='convert' changes the type of {name!r}, which {caller!r}"
                " calls; inline it first, or name the functions to convert"
            )


def converted_params(func: relax.Function) -> dict[str, Perm]:
    """Parameters that params="convert" changed: name -> axes, so that the function now takes
    `value.transpose(axes)` for what it took before.  Empty where there are none.
    """
    return _stored(func, PARAMS_ATTR)


def converted_results(func: relax.Function) -> dict[tuple[int, ...], Perm]:
    """Results that params="convert" changed: path in the result's tuple -> axes, as above."""
    stored = _stored(func, RESULTS_ATTR)
    return {tuple(int(i) for i in path.split(".") if i): perm for path, perm in stored.items()}


def _stored(func: relax.Function, name: str) -> dict[str, Perm]:
    if not isinstance(func, relax.Function):
        raise TypeError(f"expected a Relax function, got {kind_of(func)}")
    if func.attrs is None or name not in func.attrs:
        return {}
    return {str(k): tuple(int(a) for a in v) for k, v in func.attrs[name].items()}


__all__ = ["ConvertLayout", "convert_function", "converted_params", "converted_results"]
