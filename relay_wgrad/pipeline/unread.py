"""Kernels' operands of which nothing is read.

A gradient takes what it is a gradient at, and some need no more of it than its sizes: of an average
pooling what was pooled.  The kernel does not read it, but as its operand it is kept until then.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ..graph.rebuild import rebuilt, with_type
from ..ir import op_name
from .storages import lengths_are_known
from .workspaces import places_of_results


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Unread")
class Unread:
    """Drops such operands; to run once kernels are fused.

    A kernel that is called in another way or by its symbol stays as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with kernels and their calls changed."""
        functions = dict(mod.functions_items())
        changed: dict[Any, tuple[Any, list[int]]] = {}
        for var, place in places_of_results(mod).items():
            func = mod[var]
            unread = _unread(func, place)
            if not unread:
                continue
            params = [p for i, p in enumerate(func.params) if i not in unread]
            made = tirx.PrimFunc(params, func.body, func.ret_type, func.attrs, func.span)
            new = with_type(tvm.ir.GlobalVar(var.name_hint), made.ty)
            changed[var] = new, unread
            del functions[var]
            functions[new] = made
        if not changed:
            return mod
        for var, func in functions.items():
            if isinstance(func, relax.Function):
                functions[var] = rebuilt(func, lambda block: _without(block, changed))
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _unread(func: tirx.PrimFunc, place: int) -> list[int]:
    """Places of operands that a kernel's text does not mention; those before `place` are operands.

    One whose sizes are variables stays: it tells the kernel what they are.
    """
    seen = set(tirx.analysis.undefined_vars(func.body))
    params = list(func.params)[:place]
    return [
        i for i, param in enumerate(params)
        if hasattr(param, "shape") and lengths_are_known(param.shape) and param not in seen
    ]  # fmt: skip


def _without(block: Any, changed: dict[Any, tuple[Any, list[int]]]) -> list[Any]:
    """A block's bindings, in which those kernels' calls give what they read."""
    rows = []
    for binding in block.bindings:
        value = binding.value
        if op_name(value) != "relax.call_tir" or value.args[0] not in changed:
            rows.append(binding)
            continue
        kernel, unread = changed[value.args[0]]
        read = [arg for i, arg in enumerate(value.args[1].fields) if i not in unread]
        args = [kernel, relax.Tuple(read), *list(value.args)[2:]]
        call = relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
        rows.append(relax.VarBinding(binding.var, with_type(call, value.ty), binding.span))
    return rows
