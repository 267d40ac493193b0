"""A training graph as two functions: forward, and backward from a gradient of its first result.

The gradient of `sum(result * direction)` by the parameters is linear in `direction`.  What its
adjoint needs for the results is the forward part; all else is the backward part, which takes the
direction as its last argument.  Whatever scale that has is so in every half-precision tensor of the
backward part, as it is in PyTorch's.

Of the forward part's variables the backward part gets what convolutions and the like read, and what
cannot be made from those by element-wise operators; the others it computes again, fused with what
reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from .. import keys
from ..frontend import TrainingGraph
from ..graph.def_use import Graph
from ..graph.rebuild import substitute
from ..ir import bytes_of, op_name
from ..ops.elementwise import RELAX
from ..transform.depth_forms import Wanted
from ..transform.grad_paths import NO_GRAD
from .step import ADJOINT, converted, differentiated

FORWARD, BACKWARD, DIRECTION = "main_forward", ADJOINT, "output_gradient"

_OTHERS = "astype broadcast_to clip expand_dims nn.gelu nn.leakyrelu reshape squeeze where"
_ELEMENTWISE = frozenset(f"relax.{name}" for name in (*RELAX, *_OTHERS.split()))
_FUSING = _ELEMENTWISE | {"relax.sum", "relax.mean", "relax.collapse_sum_to", "relax.max"}
_SMALL = 8  # what is so much smaller than what is made of it is kept, for it to be made again


@dataclass(frozen=True)
class Source:
    """Where an argument of the backward part is from: the forward part's arguments, its outputs (of
    the graph), or what it keeps; `index` counts from the first of its kind."""

    kind: str  # "argument", "output" or "kept"
    index: int


@dataclass(frozen=True)
class TwoParts:
    """`module` has `main_forward`: (inputs…, parameters…) to (outputs…, kept…), and, where it was
    differentiated, `main_adjoint`: (`sources`…, direction) to (gradients…)."""

    module: tvm.IRModule
    outputs: int
    sources: tuple[Source, ...] = ()
    wrt: tuple[str, ...] = ()  # whose gradients there are


def two_parts(
    graph: TrainingGraph,
    *,
    wrt: Sequence[str],
    dtype: str | None = None,
    layout: str | None = None,
    checkpoint: str | Sequence[str] | None = None,
    wide_weight_gradients: bool = True,
    raise_norms: bool = False,
    blocks: Wanted = False,
) -> TwoParts:
    """The two parts of a graph, differentiated by `wrt`, parameters or inputs by name.

    Those that the first result does not depend on, or only where gradients stop, are left out: they
    have none, and not one of zeros that an optimizer would go by.  Without any there is the forward
    part alone, under the name `main_adjoint`.  The other options are those of `step_module` and
    `converted`.

    Raises ValueError as `relay_wgrad.transform.grad` does.
    """
    reached = _reached(graph, wrt)
    module = differentiated(
        graph, reached, DIRECTION if reached else None, dtype, checkpoint, wide_weight_gradients,
        raise_norms,
    )  # fmt: skip
    module = converted(module, layout, blocks=blocks)
    count = len(graph.outputs)
    return _split(module, count, reached) if reached else TwoParts(module, count)


def _reached(graph: TrainingGraph, wrt: Sequence[str]) -> tuple[str, ...]:
    """Those of the names whose values the first result depends on, by a way that has a gradient."""
    func = graph.main
    view = Graph(func)
    seen = view.needed_for(
        [func.body.body.fields[0]], lambda var: op_name(view.value.get(var)) != NO_GRAD
    )
    names = {var.name for var in func.params if var in seen}
    return tuple(name for name in wrt if name in names)


def _split(module: tvm.IRModule, count: int, wrt: tuple[str, ...]) -> TwoParts:
    """The adjoint of a function with a direction in two; `count`: of the graph's outputs."""
    func = relax.transform.CanonicalizeBindings()(module)[ADJOINT]
    graph = Graph(func)
    values = {binding.var: binding.value for binding in graph.bindings}
    results, gradients = (list(field.fields) for field in func.body.body.fields)
    outputs = results[:count]
    forward = _needed(outputs, graph, frozenset())
    backward = _needed(gradients, graph, forward)
    # A part of a tuple is as good as made.
    for var in values:
        value = values[var]
        is_part = var in backward and isinstance(value, relax.TupleGetItem)
        if is_part and value.tuple_value in forward:
            forward.add(var)
            backward.discard(var)
    kept, again = _saved_and_recomputed(graph, values, forward, backward, gradients)
    backward |= again
    given = [
        var for var in func.params[:-1]
        if var in gradients or any(user.var in backward for user in graph.users_of(var))
    ]  # fmt: skip
    sources = [Source("argument", func.params.index(var)) for var in given]
    saved: list[Any] = []
    for var in kept:
        if var in outputs:
            sources.append(Source("output", outputs.index(var)))
        else:
            sources.append(Source("kept", len(saved)))
            saved.append(var)
    order = [var for var in values if var in forward]
    later = [var for var in values if var in backward]
    params = list(func.params)
    parts = tvm.IRModule({
        FORWARD: _function(FORWARD, params[:-1], params[:-1], order, values, [*outputs, *saved]),
        BACKWARD: _function(
            BACKWARD, [*given, *kept, params[-1]], [*given, *kept, params[-1]], later, values,
            gradients,
        ),
    })  # fmt: skip
    for var, kernel in module.functions_items():
        if isinstance(kernel, tvm.tirx.PrimFunc):
            parts.update_func(var, kernel)
    return TwoParts(parts, count, tuple(sources), wrt)


def _needed(wanted: Sequence[Any], graph: Graph, known: Collection[Any]) -> set[Any]:
    """The variables, of those with a value and not `known`, that `wanted` are made of."""
    found = graph.needed_for(wanted, lambda var: var not in known)
    return {var for var in found if var in graph.index and var not in known}


def _saved_and_recomputed(
    graph: Graph,
    values: dict[Any, Any],
    forward: set[Any],
    backward: set[Any],
    gradients: Sequence[Any],
) -> tuple[list[Any], set[Any]]:
    """(forward variables that the backward part is given, those that it computes again)."""
    readers: dict[Any, list[str]] = {}
    for var in forward:
        found = [op_name(user.value) for user in graph.users_of(var) if user.var in backward]
        found += [""] if var in gradients else []
        if found:
            readers[var] = found
    kept = {
        var for var, ops in readers.items()
        if not isinstance(values[var], relax.Tuple)
        and not (op_name(values[var]) in _ELEMENTWISE and all(op in _FUSING for op in ops))
    }  # fmt: skip
    again: set[Any] = set()
    for var in values:  # in the order of the program, so that operands are decided first
        if var in readers and var not in kept:
            made = _chain(var, values, kept, graph.params)
            if made is None:
                kept.add(var)
            else:
                kept |= made[0]
                again |= made[1]
    again -= kept
    # What was made again for one may have been kept for another since, or be needed no more.
    again = _needed(gradients, graph, kept) & again
    for var in kept:
        if not isinstance(var.ty, relax.TensorType):
            raise ValueError(f"two_parts: the backward part reads {var.name!r}, which is {var.ty}")
    return [var for var in values if var in kept], again


def _chain(
    var: Any, values: dict[Any, Any], kept: set[Any], params: set[Any]
) -> tuple[set[Any], set[Any]] | None:
    """(small variables to keep, those to compute) for `var` to be computed again from what is kept;
    None where it cannot be."""
    small, made, stack = set(), {var}, list(relax.analysis.free_vars(values[var]))
    limit = bytes_of(var.ty)
    is_tuple = isinstance(values[var], relax.Tuple)
    while stack:
        operand = stack.pop()
        if operand in kept or operand in params or operand in made or operand in small:
            continue
        if is_tuple and operand not in made:
            small.add(operand)  # a tuple's own parts have to be there in any case
        elif op_name(values[operand]) in _ELEMENTWISE and bytes_of(operand.ty) <= limit:
            made.add(operand)
            stack.extend(relax.analysis.free_vars(values[operand]))
        elif isinstance(operand.ty, relax.TensorType) and bytes_of(operand.ty) * _SMALL <= limit:
            small.add(operand)
        else:
            return None
    return small, made


def _function(
    name: str,
    params: Sequence[Any],
    old: Sequence[Any],
    order: Sequence[Any],
    values: dict[Any, Any],
    results: Sequence[Any],
) -> relax.Function:
    """A function of these bindings; a variable may be among the results more than once."""
    new = [relax.Var(var.name, var.ty) for var in params]
    env: dict[Any, Any] = dict(zip(old, new, strict=True))
    bb = relax.BlockBuilder()
    with bb.function(name, new):
        with bb.dataflow():
            for var in order:
                env[var] = bb.emit(substitute(values[var], env), var.name)
            made = [bb.emit_output(substitute(result, env)) for result in results]
        bb.emit_func_output(relax.Tuple(made))
    return bb.get()[name].with_attr(keys.SYMBOL, name)
