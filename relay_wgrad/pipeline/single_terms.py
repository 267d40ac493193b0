"""Sums, products and extrema of one term are no loops: their first value is part of the expression.

TVM's schedules drop axes of length 1, and with them what says that a block is a reduction; its
first value stays.  What reads the result is then written into the block as into an element-wise
one, into its first value and its term both: the `x * gate` that is added to the gradient of a pool
over the whole image was added twice.  A search of one element did not compile.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock
from tvm_ffi import structural_equal, structural_map, structural_walk

from ..graph.rebuild import with_changed_kernels, with_fields
from ..keys import SCHEDULED


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.SingleTerms")
class SingleTerms:
    """To run once kernels are fused and before they are scheduled."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with such blocks as element-wise ones."""
        return with_changed_kernels(mod, with_single_terms)


def with_single_terms(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with each reduction of one term written as its first value and that term; itself
    where there is none, and once it is scheduled."""
    if func.attrs and SCHEDULED in func.attrs:
        return func
    body = structural_map(func.body, (SBlock, _elementwise))
    return func if body.same_as(func.body) else func.with_body(_without_unread(body))


def _elementwise(block: Any) -> Any:
    lengths = [axis.dom.extent for axis in block.iter_vars if _is_term(axis)]
    if block.init is None or any(not isinstance(n, tirx.IntImm) or int(n) != 1 for n in lengths):
        return block
    first = _statements(block.init)
    if not all(isinstance(x, tirx.BufferStore) for x in first):
        return block
    named: dict[Any, Any] = {}

    def so_far(load: Any) -> Any:
        return next((x.value for x in first if _is_at(load, x)), load)

    def of_one(value: Any) -> Any:
        value = structural_map(value, (TensorLoad, so_far))
        return structural_map(value, (tvm.ir.Var, lambda var: named.get(var, var)))

    stores: list[Any] = []
    for statement in _statements(block.body):
        # A search names its number and its index; in vectors TVM cannot compile such a name.
        if isinstance(statement, tirx.Bind):
            named[statement.var] = of_one(statement.value)
        elif isinstance(statement, tirx.BufferStore) and any(_is_at(statement, x) for x in first):
            made = of_one(statement.value)
            stores.append(tirx.BufferStore(statement.buffer, made, statement.indices))
        else:
            return block
    axes = [
        tirx.IterVar(axis.dom, axis.var, tirx.IterVar.DataPar) if _is_term(axis) else axis
        for axis in block.iter_vars
    ]
    return with_fields(block, iter_vars=axes, body=_as_one(stores), init=None)


def _without_unread(body: Any) -> Any:
    """The kernel without tensors of its own that nothing reads, as a search's numbers where it is
    of one: TVM's lowering divides by zero there."""
    made: list[Any] = []
    needed: list[Any] = []  # read, or the first that a block stores, which stays

    def seen(block: Any) -> None:
        made.extend(block.alloc_buffers)
        needed.extend(store.buffer for store in _stores(block)[:1])

    structural_walk(body, (SBlock, seen))
    structural_walk(body, (TensorLoad, lambda load: needed.append(load.source)))
    unread = [x for x in made if not any(x.same_as(buffer) for buffer in needed)]

    def is_kept(buffer: Any) -> bool:
        return not any(buffer.same_as(x) for x in unread)

    def reading(block: Any) -> Any:
        stores = _stores(block)
        kept = [x for x in stores if is_kept(x.buffer)]
        return with_fields(
            block, writes=[x for x in block.writes if is_kept(x.source)],
            body=_as_one(kept) if len(kept) < len(stores) else block.body,
            alloc_buffers=[x for x in block.alloc_buffers if is_kept(x)],
        )  # fmt: skip

    return structural_map(body, (SBlock, reading)) if unread else body


def _stores(block: Any) -> list[Any]:
    return [x for x in _statements(block.body) if isinstance(x, tirx.BufferStore)]


def _as_one(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _statements(body: Any) -> list[Any]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _is_at(access: Any, store: Any) -> bool:
    """Whether a load or a store is of the element that another stores."""
    buffer = access.buffer if isinstance(access, tirx.BufferStore) else access.source
    return buffer.same_as(store.buffer) and _alike(access.indices, store.indices)


def _is_term(axis: Any) -> bool:
    return bool(axis.iter_type == tirx.IterVar.CommReduce)


def _alike(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(structural_equal, a, b))
