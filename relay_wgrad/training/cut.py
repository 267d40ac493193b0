"""What crosses a cut through a function: what one part has computed and a later one reads.

It is kept between the parts, or where element-wise operators make it of what is kept anyway or is
smaller, and only such operators and reductions read it, computed again, fused with what reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tvm
from tvm import relax

from .. import keys
from ..graph.def_use import Graph
from ..graph.rebuild import substitute
from ..ir import bytes_of, op_name
from ..ops.elementwise import PER_ELEMENT
from ..pipeline.again import moves

FUSING = PER_ELEMENT | {"relax.sum", "relax.mean", "relax.collapse_sum_to", "relax.max"}
"""Operators that are fused with what makes their operands."""
_MOVING = frozenset(f"relax.{name}" for name in ("astype", "permute_dims", "reshape"))
_FIFTIETH = 50
_SMALL = 8  # what is so much smaller than what is made of it is kept, for it to be made again


def needed(wanted: Sequence[Any], graph: Graph, known: Collection[Any]) -> set[Any]:
    """The variables, of those with a value and not `known`, that `wanted` are made of."""
    found = graph.needed_for(wanted, lambda var: var not in known)
    return {var for var in found if var in graph.index and var not in known}


def saved_and_recomputed(
    graph: Graph,
    values: dict[Any, Any],
    made: set[Any],
    later: set[Any],
    wanted: Sequence[Any],
) -> tuple[list[Any], set[Any]]:
    """(of what is made, what the later part is given, what it computes again).

    later : the variables of that part; wanted : what it is there for.
    """
    readers: dict[Any, list[str]] = {}
    for var in made:
        found = [op_name(user.value) for user in graph.users_of(var) if user.var in later]
        found += [""] if var in wanted else []
        if found:
            readers[var] = found
    kept = {
        var for var, ops in readers.items()
        if not isinstance(values[var], relax.Tuple)
        and not (op_name(values[var]) in PER_ELEMENT and all(op in FUSING for op in ops))
    }  # fmt: skip
    again: set[Any] = set()
    for var in values:  # in the order of the program, so that operands are decided first
        if var in readers and var not in kept:
            chain = _chain(var, values, kept, graph.params)
            if chain is None:
                kept.add(var)
            else:
                kept |= chain[0]
                again |= chain[1]
    again -= kept
    # What was made again for one may have been kept for another since, or be needed no more.
    again = needed(wanted, graph, kept) & again
    for var in kept:
        if not isinstance(var.ty, relax.TensorType):
            raise ValueError(f"a later part reads {var.name!r}, which is {var.ty}")
    return [var for var in values if var in kept], again


def _chain(
    var: Any, values: dict[Any, Any], kept: set[Any], params: set[Any]
) -> tuple[set[Any], set[Any]] | None:
    """(variables to keep in its place, those to compute) for `var` to be computed again from what
    is kept; None where it cannot be, or where that would be no less."""
    made, stack = {var}, list(relax.analysis.free_vars(values[var]))
    limit = bytes_of(var.ty)
    small, roots = set[Any](), set[Any]()  # roots: such as half operands of a float32 sigmoid
    is_tuple = isinstance(values[var], relax.Tuple)
    while stack:
        operand = stack.pop()
        if operand in kept or operand in params or operand in made or operand in small | roots:
            continue
        if is_tuple and operand not in made:
            small.add(operand)  # a tuple's own parts have to be there in any case
        elif op_name(values[operand]) in PER_ELEMENT and bytes_of(operand.ty) <= limit:
            made.add(operand)
            stack.extend(relax.analysis.free_vars(values[operand]))
        elif isinstance(operand.ty, relax.TensorType) and bytes_of(operand.ty) * _SMALL <= limit:
            small.add(operand)
        elif isinstance(operand.ty, relax.TensorType):
            roots.add(operand)
        else:
            return None
    if roots and sum(bytes_of(root.ty) for root in roots) >= limit:
        return None
    return small | roots, made


def moved_again(
    module: tvm.IRModule,
    graph: Graph,
    values: dict[Any, Any],
    kept: Sequence[Any],
    later: Sequence[Any],
) -> dict[Any, list[Any]]:
    """Of what is kept that which kernels that move elements make of the function's arguments, such
    as a batch as blocks of pixels: by the one of the later part that reads it first, what to make
    again before that.

    As much as a fiftieth of all that is kept, and read in the second half of the later part: the
    most is alive at its beginning.  `relay_wgrad.pipeline.again` does the same within a function.
    """
    whole, found = sum(bytes_of(var.ty) for var in kept), dict[Any, list[Any]]()
    for var in kept:
        readers = {user.var for user in graph.users_of(var)}
        first = next((i for i, one in enumerate(later) if one in readers), 0)
        if bytes_of(var.ty) * _FIFTIETH < whole or 2 * first < len(later):
            continue
        chain = needed([var], graph, ())
        if all(_moves(module, values[one]) for one in chain):
            before = found.setdefault(later[first], [])
            before += [one for one in values if one in chain and one not in before]
    return found


def _moves(module: tvm.IRModule, value: Any) -> bool:
    name = op_name(value)
    return name in _MOVING or (name == "relax.call_tir" and moves(module, value.args[0]))


def function_of(
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
