"""Sums, products and extrema of one term are no loops: their first value is part of the expression.

TVM's schedules drop axes of length 1, and with them what says that a block is a reduction; its
first value stays.  What reads the result is then written into the block as into an element-wise
one, into its first value and its term both: the `x * gate` that is added to the gradient of a pool
over the whole image was added twice.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock
from tvm_ffi import structural_equal, structural_map

from ..graph.rebuild import with_changed_kernels
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
    return func if body.same_as(func.body) else func.with_body(body)


def _elementwise(block: Any) -> Any:
    first, store = block.init, block.body
    if not isinstance(first, tirx.BufferStore) or not isinstance(store, tirx.BufferStore):
        return block
    if not first.buffer.same_as(store.buffer) or not _alike(first.indices, store.indices):
        return block
    lengths = [axis.dom.extent for axis in block.iter_vars if _is_term(axis)]
    if any(not isinstance(n, tirx.IntImm) or int(n) != 1 for n in lengths):
        return block

    def so_far(load: Any) -> Any:
        own = load.source.same_as(store.buffer) and _alike(load.indices, store.indices)
        return first.value if own else load

    value = structural_map(store.value, (TensorLoad, so_far))
    axes = [
        tirx.IterVar(axis.dom, axis.var, tirx.IterVar.DataPar) if _is_term(axis) else axis
        for axis in block.iter_vars
    ]
    return SBlock(
        axes, block.reads, block.writes, block.name_hint,
        tirx.BufferStore(store.buffer, value, store.indices), None,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip


def _is_term(axis: Any) -> bool:
    return bool(axis.iter_type == tirx.IterVar.CommReduce)


def _alike(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(structural_equal, a, b))
