"""Which bindings a gradient flows through; a function in the form that the stock pass can take.

The stock pass asks every op for a gradient that its result has an adjoint of, whether or not it
depends on what is differentiated by: `arange(3) * w` stops at `arange`.  And the gradient of a
concatenation splits, but one part is no tuple.  Here edges on which no gradient flows are cut by
`relax.grad.no_grad`, and a concatenation of one tensor becomes that tensor.  Of what the stock pass
makes, sums with zeros are dropped: with them it begins the gradient of a tuple's field.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op

from ..graph.def_use import Graph
from ..graph.rebuild import Writer, bound, normal, substitute, with_bindings
from ..graph.walk import bindings_of, dataflow_block
from ..ir import op_name
from ..ops import auxiliary

NO_GRAD = "relax.grad.no_grad"
_CONCAT = "relax.concat"
_SUM, _ZEROS = "relax.add", ("relax.zeros", "relax.zeros_like")
_CHECKPOINTS = ("relax.grad.start_checkpoint", "relax.grad.end_checkpoint")


def flowing(bindings: Iterable[Any], wanted: Iterable[relax.Var]) -> set[relax.Var]:
    """The variables through which a gradient by `wanted` flows, these among them.

    It ends at `no_grad` and at what has no float value.
    """
    found = set(wanted)
    for binding in bindings:
        ends = op_name(binding.value) == NO_GRAD or not _has_float(binding.var.ty)
        if not ends and any(v in found for v in relax.analysis.free_vars(binding.value)):
            found.add(binding.var)
    return found


def without_gradient(func: relax.Function, wanted: Iterable[relax.Var], target: Any) -> Any:
    """The last binding between `wanted` and `target` whose op has no gradient, or None."""
    bindings = bindings_of(func)
    through = flowing(bindings, wanted)
    needed = {target}
    for binding in reversed(bindings):
        if binding.var not in needed or binding.var not in through:
            continue
        needed.update(relax.analysis.free_vars(binding.value))
        name = op_name(binding.value)
        known = not name or name in _CHECKPOINTS
        if not known and binding.value.op.get_attr("FPrimalGradient") is None:
            return binding
    return None


def prepared(func: relax.Function, wanted: Iterable[relax.Var], target: Any) -> relax.Function:
    """`func`, of one dataflow block, as the stock gradient of `target` by `wanted` takes it.

    The values are the same; the one given is not changed.
    """
    block = dataflow_block(func)
    through = {*flowing(block.bindings, wanted), target}
    writer, made, cut = Writer(block), set[relax.Var](), dict[relax.Var, relax.Var]()
    for binding in block.bindings:
        value = _joined(binding.value) if isinstance(binding, relax.VarBinding) else binding.value
        here: dict[relax.Var, relax.Var] = {}
        for var in relax.analysis.free_vars(value) if binding.var in through else ():
            stops = var in made and var not in through and isinstance(var.ty, relax.TensorType)
            if stops and _has_float(var.ty):
                if var not in cut:
                    cut[var] = writer.emit(f"{var.name}_fixed", relax.op.grad.no_grad(var))
                here[var] = cut[var]
        made.add(binding.var)
        writer.keep(bound(binding, value), here)
    return with_bindings(func, writer.bindings)


def without_stops(func: relax.Function) -> relax.Function:
    """`func` without its `no_grad`s: identities, once nothing is to be differentiated."""
    if not any(op_name(b.value) == NO_GRAD for b in bindings_of(func)):
        return func
    writer, same = Writer(dataflow_block(func)), dict[relax.Var, Any]()
    for binding in bindings_of(func):
        value = binding.value
        if op_name(value) == NO_GRAD:
            value = substitute(value.args[0], same)
            if isinstance(binding.var, relax.DataflowVar):
                same[binding.var] = value
                continue
        writer.keep(bound(binding, value), same)
    return with_bindings(func, writer.bindings)


def without_zero_sums(func: relax.Function) -> relax.Function:
    """`func`, of one dataflow block, with the other operand in the place of sums with zeros.

    A library would take the zeros for a residual, which is written and read for nothing.
    """
    graph = Graph(func)
    summed = ((binding.var, summed_with_zeros(graph, binding.var)) for binding in graph.bindings)
    other = {var: one for var, one in summed if one is not None}
    if not other:
        return func
    writer, same = Writer(dataflow_block(func)), dict[relax.Var, Any]()
    for binding in graph.bindings:
        if binding.var not in other:
            writer.keep(binding, same)
        elif isinstance(binding.var, relax.DataflowVar):
            same[binding.var] = substitute(other[binding.var], same)
        else:
            writer.keep(bound(binding, other[binding.var]), same)
    return with_bindings(func, _without_unread_fields(writer.bindings))


def _without_unread_fields(bindings: list[Any]) -> list[Any]:
    """Without zeros, tuples and their fields that nothing reads."""
    read, kept = set[relax.Var](), []
    for binding in reversed(bindings):
        var, value = binding.var, binding.value
        moves = isinstance(value, (relax.Tuple, relax.TupleGetItem)) or op_name(value) in _ZEROS
        if var in read or not moves or not isinstance(var, relax.DataflowVar):
            read.update(relax.analysis.free_vars(value))
            kept.append(binding)
    return kept[::-1]


def summed_with_zeros(graph: Graph, var: relax.Var) -> relax.Var | None:
    """What a variable is a sum of with zeros, neither of which is broadcast.

    It is that but for -0, which the sum makes 0.
    """
    total = graph.call(var, _SUM)
    for zeros, other in (total.args, reversed(total.args)) if total is not None else ():
        made = graph.call(_first_name(graph, zeros), *_ZEROS)
        if made is None or not isinstance(other, relax.Var) or var.ty.shape is None:
            continue
        if tvm_ffi.structural_equal(other.ty.shape, var.ty.shape):
            return other
    return None


def _first_name(graph: Graph, expr: Any) -> Any:
    """What an expression is but for other names, a field of a tuple that is written out too."""
    while True:
        expr = graph.resolved(expr)
        value = graph.value.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(value, relax.TupleGetItem):
            return expr
        whole = graph.bound_to(value.tuple_value)
        if not isinstance(whole, relax.Tuple):
            return expr
        expr = whole.fields[value.index]


@contextlib.contextmanager
def no_grad_differentiable() -> Iterator[None]:
    """Within: `no_grad` has a gradient, as after `register()`; upstream gives it none."""
    op = Op.get(NO_GRAD)
    missing = op.get_attr("FPrimalGradient") is None
    if missing:
        tvm.ir.register_op_attr(NO_GRAD, "FPrimalGradient", auxiliary.stop, 10)
    try:
        yield
    finally:
        if missing:
            op.reset_attr("FPrimalGradient")


def undifferentiable(func: relax.Function, wanted: Iterable[relax.Var]) -> tuple[str, str] | None:
    """(variable and op, the reason) of the first binding whose own gradient fails, or None."""
    bindings = bindings_of(func)
    through = flowing(bindings, wanted)
    for binding in bindings:
        name = op_name(binding.value)
        if not name or name in (NO_GRAD, *_CHECKPOINTS) or binding.var not in through:
            continue
        error = _gradient_error(binding.value, through)
        if error:
            return f"{binding.var.name!r} ({name})", error
    return None


def _gradient_error(value: relax.Call, through: set[relax.Var]) -> str:
    """Why one call cannot be differentiated, "" where it can."""
    builder = relax.BlockBuilder()
    params = list(relax.analysis.free_vars(value))
    with builder.function("f", params):
        with builder.dataflow():
            out: Any = builder.emit(value)
            while isinstance(out.ty, relax.TupleType):
                out = builder.emit(relax.TupleGetItem(out, 0))
            result = builder.emit_output(relax.op.sum(out))
        builder.emit_func_output(result)
    by = [p for p in params if p in through and isinstance(p.ty, relax.TensorType)]
    try:
        with no_grad_differentiable():
            relax.transform.Gradient("f", by)(builder.get())
    except (tvm.error.InternalError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        return str(error).strip().partition("\n")[0]
    return ""


def _joined(value: Any) -> Any:
    """A concatenation of one tensor is the tensor."""
    if op_name(value) != _CONCAT or len(value.args[0].ty.fields) != 1:
        return value
    parts = value.args[0]
    return (
        parts.fields[0] if isinstance(parts, relax.Tuple) else normal(relax.TupleGetItem(parts, 0))
    )


def _has_float(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(_has_float(field) for field in ty.fields)
    return isinstance(ty, relax.TensorType) and str(ty.dtype).startswith(("float", "bfloat"))
