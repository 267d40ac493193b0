"""Kernels of several results that have nothing in common become a kernel for each.

What splits a tensor writes all parts at once, so all of them and the whole are alive together.
Apart, one part can be read and given up before the next is written (`kernel_order`).  A device has
had a launch for each part before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm_ffi import structural_walk

from ..graph.rebuild import with_kernels, with_type
from ..graph.walk import Block, variables_of
from ..ir import op_name
from ..keys import SCHEDULED
from .workspaces import places_of_results


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.OneResult")
class OneResult:
    """To run once kernels are fused and before they are scheduled."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with such kernels and their calls in parts."""
        places = places_of_results(mod)
        made = {var: parts for var, place in places.items() if (parts := _apart(mod[var], place))}
        return with_kernels(mod, made, _in_parts)


def _apart(func: tirx.PrimFunc, place: int) -> list[tirx.PrimFunc]:
    """A kernel for each result, in their order; none where they have something in common.

    place : where a call's results end among the parameters.
    """
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or (func.attrs and SCHEDULED in func.attrs):
        return []
    block = root.block
    if len(func.params) != place or block.alloc_buffers or block.match_buffers:
        return []
    parts = list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else []
    targets = [_only_target(part) for part in parts]
    results = list(func.params)[place - len(parts) :]
    if len(parts) < 2 or {*targets} != {*results}:
        return []
    made = []
    for result in results:
        part = parts[targets.index(result)]
        inner = s_tir.SBlock([], [], [], block.name_hint, part, annotations=block.annotations)
        body = s_tir.SBlockRealize([], root.predicate, inner, root.span)
        params = [*list(func.params)[: place - len(parts)], result]
        made.append(tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span))
    return made


def _only_target(part: Any) -> Any:
    """The one tensor that a part of a kernel's body writes; None for several."""
    stores: list[Any] = []
    structural_walk(part, (tirx.BufferStore, stores.append))
    targets = {store.buffer for store in stores}
    return targets.pop() if len(targets) == 1 else None


def _in_parts(block: Block, apart: Mapping[Any, Sequence[Any]]) -> list[Any]:
    """A block's bindings, in which such a kernel's call is a tuple of calls; items are the calls'
    own results, so that none waits for another's."""
    rows: list[Any] = []
    parts: dict[Any, list[Any]] = {}
    for binding in block.bindings:
        value = binding.value
        if op_name(value) == "relax.call_tir" and value.args[0] in apart:
            kind = type(binding.var)
            parts[binding.var] = made = []
            for i, (kernel, ty) in enumerate(
                zip(apart[value.args[0]], value.ty_args[0].fields, strict=True)
            ):
                args = [kernel, *list(value.args)[1:]]
                call = relax.Call(value.op, args, value.attrs, [ty], value.span)
                made.append(kind(f"{binding.var.name}_{i}", ty))
                rows.append(relax.VarBinding(made[-1], with_type(call, ty), binding.span))
            rows.append(relax.VarBinding(binding.var, relax.Tuple(made)))
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in parts:
            one = parts[value.tuple_value][value.index]
            rows.append(relax.VarBinding(binding.var, one, binding.span))
        else:
            rows.append(binding)
    used = {var for row in rows for var in variables_of(row.value)}
    return [
        row for row in rows
        if row.var not in parts or row.var in used or not isinstance(row.var, relax.DataflowVar)
    ]  # fmt: skip
