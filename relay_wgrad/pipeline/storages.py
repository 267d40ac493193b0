"""Memory of intermediate results that a virtual machine keeps from call to call.

TVM's static plan gives a function some storages, which each call takes from a pool and gives back.
A captured CUDA graph holds their addresses, so they must stay its own: here the first call of a
function takes them, and they live as long as its virtual machine.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..ir import op_name

_CACHED = "vm.builtin.cuda_graph.get_cached_alloc"  # (function, number): made once for a machine
_STORAGE = "relax.memory.alloc_storage"


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.KeepStorages")
class KeepStorages:
    """Moves static storages out of functions; to run right after `StaticPlanBlockMemory`."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module whose functions take their storages from a function that runs once."""
        out = mod.clone()
        number = 0
        for var, func in mod.functions_items():
            if not isinstance(func, relax.Function):
                continue
            bindings = (b for block in func.body.blocks for b in block.bindings)
            storages = [b for b in bindings if static_bytes(b.value) is not None]
            if not storages:
                continue
            maker = tvm.ir.GlobalVar(f"{var.name_hint}_storages")
            made = _maker([b.value for b in storages])
            relax.expr._update_type(maker, made.ty)
            out[maker] = made
            out[var] = _taking(func, [b.var for b in storages], maker, made.ret_ty, number)
            number += 1
        return out


def static_bytes(value: Any) -> int | None:
    """The size of a storage that a function's plan takes; None for anything else."""
    if op_name(value) != _STORAGE:
        return None
    (size,) = value.args[0].values
    return int(size) if isinstance(size, tvm.tirx.IntImm) else None


def _maker(calls: list[relax.Call]) -> relax.Function:
    bb = relax.BlockBuilder()
    with bb.function("storages", [], attrs={"relax.force_pure": True}, private=True):
        made = [bb.emit(call) for call in calls]
        bb.emit_func_output(relax.Tuple(made))
    return bb.get()["storages"]


def _taking(
    func: relax.Function, storages: list[Any], maker: Any, kind: Any, number: int
) -> relax.Function:
    taken = relax.Var("storages", kind)
    builtin = tvm.ir.Op.get("relax.call_builtin_with_ctx")
    args = relax.Tuple([maker, tvm.tirx.IntImm("int64", number)])
    call = relax.Call(builtin, [relax.ExternFunc(_CACHED), args], ty_args=[kind])
    relax.expr._update_type(call, kind)
    blocks = [relax.BindingBlock([relax.VarBinding(taken, call)])]
    places = {var: i for i, var in enumerate(storages)}
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            if binding.var in places:
                item = relax.TupleGetItem(taken, places[binding.var])
                binding = relax.VarBinding(binding.var, item)
            bindings.append(binding)
        blocks.append(relax.BindingBlock(bindings))
    body = relax.SeqExpr(blocks, func.body.body)
    relax.expr._update_type(body, func.body.ty)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
