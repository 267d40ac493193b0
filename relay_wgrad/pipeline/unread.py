"""Kernels' operands of which nothing is read.

A gradient takes what it is a gradient at, and some need no more of it than its sizes: of an average
pooling what was pooled.  The kernel does not read it, but as its operand it is kept until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ..graph.rebuild import with_kernels, with_type
from ..graph.walk import Block
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
        places = places_of_results(mod)
        unread = {var: some for var, at in places.items() if (some := _unread(mod[var], at))}
        made = {var: [_reading(mod[var], some)] for var, some in unread.items()}
        return with_kernels(mod, made, lambda block, new: _without(block, new, unread))


def _reading(func: tirx.PrimFunc, unread: Sequence[int]) -> tirx.PrimFunc:
    """A kernel without its parameters of these places."""
    params = [param for i, param in enumerate(func.params) if i not in unread]
    return tirx.PrimFunc(params, func.body, func.ret_type, func.attrs, func.span)


def _unread(func: tirx.PrimFunc, place: int) -> list[int]:
    """Places of operands that a kernel's text does not mention; those before `place` are operands.

    One whose sizes are variables stays: it tells the kernel what they are.
    """
    seen = set(tirx.analysis.undefined_vars(func.body))
    params = func.params[:place]
    return [
        i for i, param in enumerate(params)
        if hasattr(param, "shape") and lengths_are_known(param.shape) and param not in seen
    ]  # fmt: skip


def _without(
    block: Block, new: Mapping[Any, Sequence[Any]], unread: Mapping[Any, Sequence[int]]
) -> list[relax.Binding]:
    """A block's bindings, in which those kernels' calls give what they read."""
    rows = []
    for binding in block.bindings[:]:
        value = binding.value
        if op_name(value) != "relax.call_tir" or value.args[0] not in new:
            rows.append(binding)
            continue
        (kernel,), places = new[value.args[0]], unread[value.args[0]]
        read = [arg for i, arg in enumerate(value.args[1].fields) if i not in places]
        args = [kernel, relax.Tuple(read), *list(value.args)[2:]]
        call = relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
        rows.append(relax.VarBinding(binding.var, with_type(call, value.ty), binding.span))
    return rows
