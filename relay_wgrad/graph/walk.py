"""The blocks and bindings of a function, those of its branches among them; what expressions use.

A slice of one of TVM's arrays is a list, made in a third of the time that walking it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias

import tvm
from tvm import relax

from ..ir import is_a

Block: TypeAlias = Any  # relax.BindingBlock or DataflowBlock
Function: TypeAlias = tuple[tvm.ir.GlobalVar, relax.Function]


def functions_in(mod: tvm.IRModule, *, by_name: bool = False) -> list[Function]:
    """A module's Relax functions with their variables, in its order or by name."""
    found = [(var, f) for var, f in mod.functions_items() if isinstance(f, relax.Function)]
    return sorted(found, key=lambda item: str(item[0].name_hint)) if by_name else found


def blocks_of(func: relax.Function) -> Iterator[Block]:
    """A function's blocks in program order; those of a branch follow the block of their `If`."""
    yield from _blocks(func.body)


def bindings_of(func: relax.Function, *, branches: bool = True) -> list[relax.Binding]:
    """A function's bindings, in the order of `blocks_of`; without `branches` its own blocks'."""
    if branches:
        return [binding for block in blocks_of(func) for binding in block.bindings[:]]
    blocks = func.body.blocks if isinstance(func.body, relax.SeqExpr) else ()
    return [binding for block in blocks for binding in block.bindings[:]]


def bodies_of(func: relax.Function) -> list[relax.Expr]:
    """The bodies whose results leave their blocks: the function's and those of its branches."""
    branches = (b for block in blocks_of(func) if _may_branch(block) for b in block.bindings[:])
    return [func.body, *(body for b in branches for body in branches_of(b.value))]


def dataflow_block(func: Any) -> Any:
    """The block of a function that has no other, if it is a dataflow block; else None."""
    body = func.body if isinstance(func, relax.Function) else None
    blocks = list(body.blocks) if isinstance(body, relax.SeqExpr) else []
    return blocks[0] if len(blocks) == 1 and not _may_branch(blocks[0]) else None


def branches_of(value: relax.Expr) -> list[relax.Expr]:
    """The bodies of an `If`; none of anything else."""
    return [value.true_branch, value.false_branch] if is_a(value, relax.If) else []


def result_of(body: relax.Expr) -> relax.Expr:
    """What a body gives."""
    return body.body if isinstance(body, relax.SeqExpr) else body


def variables_of(expr: relax.Expr) -> list[relax.Var]:
    """The variables that an expression uses, each as often as it does.

    Of an `If` its condition, since branches are bodies of their own; of a local function what it
    captures.
    """
    found: list[relax.Var] = []
    rest = [expr]
    while rest:
        item = rest.pop()
        parts = _parts(item.__class__)
        if parts is _itself:
            found.append(item)
        elif parts is not None:
            rest += parts(item)
    return found


def _itself(var: relax.Var) -> list[Any]:
    """What a variable uses."""
    return [var]


_PARTS: dict[type, Callable[[Any], list[Any]]] = {
    relax.Var: _itself,
    relax.Call: lambda call: [call.op, *call.args[:]],
    relax.Tuple: lambda tup: tup.fields[:],
    relax.TupleGetItem: lambda item: [item.tuple_value],
    relax.If: lambda choice: [choice.cond],
    relax.Function: lambda func: relax.analysis.free_vars(func)[::-1],
}
"""What an expression of each class uses."""


@cache
def _parts(kind: Any) -> Callable[[Any], list[Any]] | None:
    """A class's row, found once; None of one that uses nothing."""
    return next((parts for of, parts in _PARTS.items() if issubclass(kind, of)), None)


def _blocks(body: relax.Expr) -> Iterator[Block]:
    if not isinstance(body, relax.SeqExpr):
        return
    for block in body.blocks[:]:
        yield block
        for binding in block.bindings[:] if _may_branch(block) else ():
            for branch in branches_of(binding.value):
                yield from _blocks(branch)


def _may_branch(block: Block) -> bool:
    """Whether an `If` may stand in a block: none can in a dataflow block."""
    return not isinstance(block, relax.DataflowBlock)
