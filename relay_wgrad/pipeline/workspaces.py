"""Memory that a kernel needs between its parts, given by who calls it.

A kernel whose later launch reads what an earlier one wrote (sums in parts) has a buffer in a
device's memory.  TVM takes it from a pool of the thread that calls, when it is called.  The pool
has one such buffer for all streams of the thread, and gives it back to the device when a later
kernel wants more: a captured CUDA graph then writes to what is somebody else's by now.  So such
buffers become results of the kernel that nobody reads: the caller's plan gives them memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm_ffi import structural_walk

from ..graph.rebuild import with_fields, with_kernels, with_type
from ..graph.walk import Block, bindings_of, bodies_of, functions_in, result_of
from ..ir import op_name
from ..keys import SYMBOL
from ..layout_rules.in_layout import attrs_with

_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Workspaces")
class Workspaces:
    """Kernels get their buffers from callers; to run before `CallTIRRewrite`.

    Buffers whose sizes only the run knows, and kernels that are called in another way or by their
    symbol, stay as they are.
    """

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with kernels and their calls changed."""
        places = places_of_results(mod, in_place=True)
        found = {var: with_workspaces(mod[var], place) for var, place in places.items()}
        made = {var: [kernel] for var, (kernel, some) in found.items() if some}
        more = {var: [_type(buffer) for buffer in some] for var, (_, some) in found.items()}
        return with_kernels(mod, made, lambda block, new: _with_workspaces(block, new, more))


def places_of_results(mod: tvm.IRModule, *, in_place: bool = False) -> dict[Any, int]:
    """Of kernels that are only called with results: parameters that are operands and results.

    in_place : calls of which a result lies in an operand's place count too, not as another way.
    """
    calls = _CALLS if in_place else _CALLS[:1]
    found: dict[Any, int] = {}
    others: set[Any] = set()
    for _, func in functions_in(mod):
        for binding in bindings_of(func):
            value = binding.value
            if op_name(value) in calls:
                args, kind = value.args, value.ty_args[0]
                results = len(kind.fields) if isinstance(kind, relax.TupleType) else 1
                place = len(args[1].fields) + results
                if found.setdefault(args[0], place) != place:
                    others.add(args[0])
            elif not isinstance(value, relax.If):  # whose branches' bindings are among these
                structural_walk(value, (tvm.ir.GlobalVar, others.add))
        for body in bodies_of(func):
            structural_walk(result_of(body), (tvm.ir.GlobalVar, others.add))
    return {
        var: place for var, place in found.items()
        if var not in others and isinstance(mod[var], tirx.PrimFunc)
        and SYMBOL not in (mod[var].attrs or {})
    }  # fmt: skip


def _with_workspaces(
    block: Block, new: Mapping[Any, Sequence[Any]], wanted: Mapping[Any, list[Any]]
) -> list[Any]:
    """A block's bindings, in which those kernels' calls give what the kernels want."""
    rows = []
    for binding in block.bindings:
        value = binding.value
        if op_name(value) not in _CALLS or value.args[0] not in new:
            rows.append(binding)
            continue
        kind, (kernel,), more = value.ty_args[0], new[value.args[0]], wanted[value.args[0]]
        is_tuple = isinstance(kind, relax.TupleType)
        results = list(kind.fields) if is_tuple else [kind]
        whole, attrs = relax.TupleType([*results, *more]), value.attrs
        if op_name(value) == _CALLS[1]:
            places = [*map(int, attrs.inplace_indices), *(-1 for _ in more)]
            attrs = attrs_with(attrs, inplace_indices=places)
        call = with_type(relax.Call(value.op, [kernel, *value.args[1:]], attrs, [whole]), whole)
        variable, name = type(binding.var), binding.var.name
        made = variable(f"{name}_with", whole)
        parts = [variable(f"{name}_{i}", ty) for i, ty in enumerate(results)]
        rows.append(relax.VarBinding(made, call))
        if is_tuple:
            items = [relax.TupleGetItem(made, i) for i in range(len(parts))]
            rows += [relax.VarBinding(part, item) for part, item in zip(parts, items, strict=True)]
            rows.append(relax.VarBinding(binding.var, relax.Tuple(parts)))
        else:
            rows.append(relax.VarBinding(binding.var, relax.TupleGetItem(made, 0)))
    return rows


def _type(buffer: Any) -> relax.TensorType:
    return relax.TensorType([int(length) for length in buffer.ty.shape], str(buffer.ty.dtype))


def with_workspaces(func: Any, place: int) -> tuple[Any, list[Any]]:
    """(a kernel that takes its buffers as parameters from a place on, those buffers).

    The kernel itself and none, where it has no such buffers of known sizes.
    """
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize):
        return func, []
    block = root.block
    found = [b for b in block.alloc_buffers if _is_workspace(b)]
    if not found:
        return func, []
    kept = [b for b in block.alloc_buffers if not _is_workspace(b)]
    inner = with_fields(block, alloc_buffers=kept)
    body = s_tir.SBlockRealize(root.iter_values, root.predicate, inner, root.span)
    params = [*func.params[:place], *found, *func.params[place:]]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span), found


def _is_workspace(buffer: Any) -> bool:
    """Whether a buffer lies in the device's memory and its size is known."""
    sizes = all(isinstance(length, tirx.IntImm) for length in buffer.ty.shape)
    return sizes and str(buffer.ty.storage_scope) in ("", "global")
