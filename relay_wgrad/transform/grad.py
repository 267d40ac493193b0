"""`grad`: gradients of any order on top of the stock `relax.transform.Gradient`.

The stock pass makes `f_adjoint`, which returns f's value and the partials.  Differentiating that
function again differentiates the value again, and differentiating a function that calls it gives
zeros, both without a word.  Here the second order is made by inlining: a new function contracts the
partials with given directions to a scalar, and the stock pass differentiates that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from .. import registry
from ..argument_types import checked_bool
from ..graph.rebuild import Writer, bound, rebuilt, with_bindings, with_params
from ..graph.walk import Block, bindings_of, blocks_of, dataflow_block, functions_in
from ..ir import expressions, op_name
from ..keys import SYMBOL
from .grad_paths import (
    no_grad_differentiable,
    prepared,
    undifferentiable,
    without_stops,
    without_zero_sums,
)
from .grad_types import check_partials
from .size_checks import check_of, checked
from .surface import ModulePass, check_relax_module

_TRANSPOSE = "relax.permute_dims"


def adjoint_name(fn: str, order: int | str = "") -> str:
    """What a function's gradient is called, by upstream's pass too; several orders are numbered."""
    return f"{fn}_adjoint{order}"


def grad(
    mod: tvm.IRModule,
    fn: str = "main",
    *,
    order: int = 1,
    wrt: Sequence[relax.Var | str] | None = None,
    target_index: int = 0,
    inline: bool = False,
) -> tvm.IRModule:
    """Adds the gradient of `mod[fn]` to the module.

    Parameters
    ----------
    mod : a module whose function `fn` has one dataflow block and returns a float scalar, or a tuple
        whose field `target_index` is one.
    order : 1 adds `<fn>_adjoint(params…) -> (value, (partials…))`.  A higher order k adds
        `<fn>_adjoint1` to `<fn>_adjoint<k>` instead; each takes the parameters and k-1 directions
        for every differentiated one, named `<param>_d1`, `<param>_d2`, …, of its type.  What is
        differentiated for order k is the inner product of the (k-1)th gradient with its
        directions: for k = 2 the partials are the Hessian times the directions.
    wrt : parameters (or their names) to differentiate by; default: all float tensors among them.
    inline : whether calls of other Relax functions of the module are inlined first.

    Returns
    -------
    tvm.IRModule : a new module; the one given is not changed.

    Raises
    ------
    ValueError : naming what cannot be differentiated: an unknown function or parameter, an
        `_adjoint` function, a call of another Relax function (of which the stock pass takes the
        gradient to be zero) without `inline=True`, a body that is not one dataflow block, a result
        that is no float scalar, an op without a gradient, or with a rule whose partial is not of
        its operand's type, an order below 1.
    TypeError : for an argument of another type.
    RuntimeError : before `relay_wgrad.register()`.
    """
    check_relax_module("grad", mod, counterpart="FirstOrderGradient")
    if not registry.is_registered():
        raise RuntimeError("grad: call relay_wgrad.register() first")
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise ValueError(f"grad: order must be an integer of at least 1, got {order!r}")
    if isinstance(target_index, bool) or not isinstance(target_index, int):
        raise TypeError(f"grad: target_index must be an integer, got {target_index!r}")
    checked_bool("grad: inline", inline)
    func = _lookup(mod, fn)
    if re.search(r"_adjoint\d*$", fn):
        raise ValueError(
            f"grad: {fn!r} is a gradient already and returns (value, partials): differentiating it"
            " would differentiate the value again; use order=2 on the original function"
        )
    check, func = check_of(mod, func)
    func = _without_scalar_transposes(_check_calls(mod, fn, func, inline))
    _check_block(fn, func)
    _check_target(fn, func, target_index)
    params = _targets(fn, func, wrt)
    # The adjoint's parameters are new variables in the same places; names may repeat.
    places = {param: i for i, param in enumerate(func.params)}
    wanted = [places[param] for param in params]
    out = mod.clone()
    for k in range(1, order + 1):
        name = adjoint_name(fn, "" if order == 1 else k)
        adjoint = _first(mod, fn, func, params, target_index, name)
        out[name] = checked(without_zero_sums(without_stops(adjoint)), check)
        if k < order:  # a further order has to see where gradients stop
            func, params = _contract(adjoint, wanted, k)
            target_index = 0
    return out


def Gradient(  # noqa: N802 - a pass, named as the stock one
    func_name: str,
    require_grads: Sequence[relax.Var | str] | None = None,
    target_index: int = 0,
) -> tvm.transform.Pass:
    """The stock pass of that name with `grad`'s checks, for use in a `Sequential`."""

    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return grad(mod, func_name, wrt=require_grads, target_index=target_index)

    return ModulePass("Gradient", run, counterpart="FirstOrderGradient")


def _lookup(mod: tvm.IRModule, fn: str) -> relax.Function:
    found = {gv.name_hint: func for gv, func in functions_in(mod, by_name=True)}
    if fn not in found:
        names = ", ".join(found)
        raise ValueError(f"grad: the module has no Relax function {fn!r}; it has: {names}")
    return found[fn]


def _called(mod: tvm.IRModule, func: relax.Function) -> list[str]:
    """Names of the functions that are called other than by call_tir."""
    callees = [part.op for part in expressions(func) if isinstance(part, relax.Call)]
    named = [
        c.name_hint for c in callees
        if isinstance(c, tvm.ir.GlobalVar) and isinstance(mod[c], relax.Function)
    ]  # fmt: skip
    return sorted({*named, *(c.name for c in callees if isinstance(c, relax.Var))})


def _check_calls(mod: tvm.IRModule, fn: str, func: relax.Function, inline: bool) -> relax.Function:
    called = _called(mod, func)
    if not called:
        return func
    if not inline:
        raise ValueError(
            f"grad: {fn!r} calls the Relax function(s) {', '.join(called)}, whose gradient the"
            " stock pass silently takes to be zero; pass inline=True to inline them first"
        )
    functions = {gv.name_hint: f for gv, f in functions_in(mod) if gv.name_hint != fn}
    inlined = _inline(func, functions)
    if left := _called(mod, inlined):
        raise ValueError(f"grad: calls that cannot be inlined into {fn!r}: {', '.join(left)}")
    return inlined


def _check_block(fn: str, func: relax.Function) -> None:
    """Raises for a body that is not one dataflow block, with what it has instead."""
    rule = f"grad: the body of {fn!r} must be one dataflow block, but it has"
    blocks = list(blocks_of(func))
    for block in blocks:
        if isinstance(block, relax.DataflowBlock):
            continue
        for binding in block.bindings:
            value, name = binding.value, binding.var.name
            if isinstance(value, relax.If):
                raise ValueError(f"{rule} an `if` (bound to {name!r})")
            if isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc):
                packed = value.op.global_symbol
                raise ValueError(f"{rule} a call of the packed function {packed!r} ({name!r})")
        first = block.bindings[0].var.name
        raise ValueError(
            f"{rule} bindings outside of one ({first!r} is the first); in TVMScript a dataflow"
            " block is `with R.dataflow():`"
        )
    if len(blocks) != 1:
        raise ValueError(f"{rule} {len(blocks) or 'no'} blocks")


def _check_target(fn: str, func: relax.Function, index: int) -> None:
    """Raises for a result that is no float scalar."""
    result = func.body.body
    if isinstance(result, relax.Tuple):
        fields = list(result.fields)
    elif isinstance(result.ty, relax.TupleType):
        raise ValueError(
            f"grad: {fn!r} returns the tuple {result.name!r} as one variable: return its fields,"
            " (a, b), so that one can be differentiated"
        )
    else:
        fields = [result]
    if not 0 <= index < len(fields):
        raise ValueError(
            f"grad: target_index must be from 0 to {len(fields) - 1}, since {fn!r} returns"
            f" {len(fields)} value(s), got {index}"
        )
    ty = fields[index].ty
    if not _is_float(ty) or ty.ndim != 0:
        which = f"result {index} of {fn!r}" if len(fields) > 1 else f"the result of {fn!r}"
        hint = "; a sum or a mean makes it one" if _is_float(ty) else ""
        raise ValueError(
            f"grad: {which} must be a float scalar to be differentiated, but it is {ty}{hint}"
        )


def _without_scalar_transposes(func: relax.Function) -> relax.Function:
    """Stock ConvertLayout leaves permute_dims of the scalar loss, at which stock Gradient fails."""

    def is_one(binding: relax.Binding) -> bool:
        return op_name(binding.value) == _TRANSPOSE and binding.var.ty.ndim == 0

    def rewrite(block: Block) -> list[relax.Binding] | None:
        bindings = list(block.bindings)
        if not any(map(is_one, bindings)):
            return None
        return [bound(b, b.value.args[0]) if is_one(b) else b for b in bindings]

    return rebuilt(func, rewrite)


def _is_float(ty: relax.Type) -> bool:
    return isinstance(ty, relax.TensorType) and str(ty.dtype).startswith(("float", "bfloat"))


def _targets(
    fn: str, func: relax.Function, wrt: Sequence[relax.Var | str] | None
) -> list[relax.Var]:
    if wrt is None:
        chosen = [p for p in func.params if _is_float(p.ty)]
    elif isinstance(wrt, str) or not isinstance(wrt, Sequence):
        raise TypeError(f"grad: wrt must be a sequence of parameters or names, got {wrt!r}")
    else:
        known: dict[str, list[relax.Var]] = {}
        for param in func.params:
            known.setdefault(param.name, []).append(param)
        chosen = [_parameter(fn, known, item) for item in wrt]
    if not chosen:
        raise ValueError(f"grad: {fn!r} has no float parameter to differentiate by")
    seen: set[relax.Var] = set()
    for param in chosen:
        if not _is_float(param.ty):
            raise ValueError(f"grad: parameter {param.name!r} is no float tensor: {param.ty}")
        if str(param.ty.dtype) == "bfloat16":
            raise ValueError(
                f"grad: parameter {param.name!r} is bfloat16, by which the stock pass cannot"
                " differentiate: keep it in float32 and cast it inside the function"
            )
        if param in seen:
            raise ValueError(f"grad: parameter {param.name!r} is named twice in wrt")
        seen.add(param)
    return chosen


def _parameter(fn: str, known: dict[str, list[relax.Var]], item: Any) -> relax.Var:
    """The parameter that `item` is, or the only one that it names, of those `known` by name."""
    if isinstance(item, relax.Var):
        found = [p for p in known.get(item.name, ()) if p.same_as(item)]
    elif isinstance(item, str):
        found = known.get(item, [])
    else:
        raise TypeError(f"grad: wrt holds parameters or their names, got {item!r}")
    if len(found) == 1:
        return found[0]
    name = item if isinstance(item, str) else item.name
    if found:
        raise ValueError(f"grad: {fn!r} has {len(found)} parameters {name!r}: pass the variable")
    names = ", ".join(p.name for same in known.values() for p in same)
    raise ValueError(f"grad: {fn!r} has no parameter {name!r}; it has: {names}")


def _first(
    mod: tvm.IRModule,
    fn: str,
    func: relax.Function,
    params: list[relax.Var],
    target_index: int,
    name: str,
) -> relax.Function:
    """The stock pass on `func`, of the module's function `fn`: its adjoint, named `name`."""
    # The stock pass checkpoints what depends on parameters alone, and does not count the variables
    # of symbolic sizes among them: the whole forward part would be emitted twice, and a size within
    # an argument (a ShapeExpr) not be found.  For its time they are parameters.
    sizes = list(relax.analysis.defined_symbolic_vars(func))
    work = mod.clone()
    if adjoint_name(fn) in work:
        del work[adjoint_name(fn)]
    result = func.body.body
    target = result.fields[target_index] if isinstance(result, relax.Tuple) else result
    func = prepared(func, params, target)
    check_partials(fn, func, params)
    work[fn] = with_params(func, [*func.params, *sizes])
    try:
        with no_grad_differentiable():
            adjoint = relax.transform.Gradient(fn, params, target_index)(work)[adjoint_name(fn)]
    except tvm.error.InternalError as error:
        reason = _reason(func, params, error)
        raise ValueError(f"grad: {fn!r} cannot be differentiated: {reason}") from error
    adjoint = with_params(adjoint, adjoint.params[: len(func.params)])
    return adjoint.with_attr(SYMBOL, name)


def _reason(func: relax.Function, params: list[relax.Var], error: Exception) -> str:
    """What the stock pass's failed check means, and where."""
    text = str(error).strip()
    missing = re.search(r"FPrimalGradient has not been registered for (\S+)", text)
    if missing is None:
        found = undifferentiable(func, params)
        where = f"at {found[0]}: {found[1]}" if found else text.partition("\n")[0]
        return f"TVM's gradient fails {where}" if found else f"TVM's gradient fails: {where}"
    for binding in bindings_of(func):
        value = binding.value
        if op_name(value) == missing[1]:
            names = [a.global_symbol for a in value.args if isinstance(a, relax.ExternFunc)]
            packed = f" of {names[0]!r}" if names else ""
            return (
                f"{binding.var.name!r} is a {missing[1]}{packed}, an op that has no gradient"
                " (no FPrimalGradient rule)"
            )
    return f"{missing[1]} has no gradient (no FPrimalGradient rule)"


def _alone(function_pass: tvm.transform.Pass, func: relax.Function) -> relax.Function:
    """A pass applied to one function that calls no other."""
    symbol = func.attrs[SYMBOL] if func.attrs and SYMBOL in func.attrs else None
    out = function_pass(tvm.IRModule({"f": func.with_attr(SYMBOL, "f")}))["f"]
    return out.with_attr(SYMBOL, symbol) if symbol is not None else out


def _contract(
    adjoint: relax.Function, wanted: list[int], k: int
) -> tuple[relax.Function, list[relax.Var]]:
    """A function of the adjoint's parameters and of directions: sum of <partial, direction>.

    Returns it with its parameters at the places `wanted`, which are differentiated.
    """
    directions = [relax.Var(f"{adjoint.params[i].name}_d{k}", adjoint.params[i].ty) for i in wanted]
    doubles = any(str(d.ty.dtype) == "float64" for d in directions)
    wide = "float64" if doubles else "float32"
    writer, terms = Writer(dataflow_block(adjoint), bindings_of(adjoint)), list[relax.Var]()
    for partial, direction in zip(adjoint.body.body[1], directions, strict=True):
        # Half-precision terms are summed in float32, and terms of all dtypes together.
        factors = [partial, direction]
        if str(direction.ty.dtype) != wide:
            factors = [writer.emit("wide", relax.op.astype(v, wide)) for v in factors]
        product = writer.emit("product", relax.op.multiply(*factors))
        terms.append(writer.emit("term", relax.op.sum(product)))
    total, *rest = terms
    for term in rest:
        total = writer.emit("total", relax.op.add(total, term))
    out = writer.output("contracted", total)
    made = with_bindings(
        adjoint, writer.bindings, params=[*adjoint.params, *directions], result=out
    )
    func = _alone(relax.transform.CanonicalizeBindings(), made)
    func = relax.utils.copy_with_new_vars(func)
    return func, [func.params[i] for i in wanted]


def _inline(func: relax.Function, functions: dict[str, relax.Function]) -> relax.Function:
    """Calls replaced by bodies; tuples that only carried results over are projected away."""
    func = func.inline_functions(functions)
    func = _alone(relax.transform.CanonicalizeBindings(), _alone(relax.transform.Normalize(), func))
    if relax.analysis.free_symbolic_vars(func):
        # The stock inliner leaves a callee's size variables unbound where they are arguments.
        raise ValueError("grad: functions with symbolic sizes cannot be inlined; inline by hand")
    return func
