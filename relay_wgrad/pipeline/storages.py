"""Memory of intermediate results that a virtual machine keeps from call to call.

A static plan gives a function some storages, which each call takes from a pool and gives back, and
makes tensors in them.  A captured CUDA graph holds their addresses, so they must stay its own: here
the first call of a function takes and makes them, and they live as long as its virtual machine.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import tvm
from tvm import relax

from .. import keys
from ..graph.rebuild import bound, rebuilt, unused_name, with_first, with_type
from ..graph.walk import Block, bindings_of, functions_in, result_of, variables_of
from ..ir import op_name

_CACHED = "vm.builtin.cuda_graph.get_cached_alloc"  # (function, number): made once for a machine
_INVOKE = "vm.builtin.invoke_closure"
_NOTHING = "nothing"
_STORAGE = "relax.memory.alloc_storage"
TENSOR = "relax.memory.alloc_tensor"
MOVED = "vm.builtin.ensure_zero_offset"


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.KeepStorages")
class KeepStorages:
    """Moves static storages and their tensors out of functions; to run once both are planned."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module whose functions take their storages from a function that runs once."""
        out, number = mod.clone(), 0
        for var, func in functions_in(mod):
            kept = _static_bindings(bindings_of(func, branches=False))
            if not kept:
                continue
            used = _used(func, kept)
            made = maker_of(list(kept.values()), used)
            maker = with_type(tvm.ir.GlobalVar(f"{var.name_hint}_storages"), made.ty)
            out[maker] = made
            out[var] = taking(func, kept, used, maker, made.ret_ty, number)
            number += 1
        return out


def _static_bindings(bindings: list[Any]) -> dict[Any, Any]:
    """The bindings of static storages and of their tensors of known shapes, by their variables."""
    kept: dict[Any, Any] = {}
    for binding in bindings:
        value = binding.value
        of_one = (op_name(value) == TENSOR and is_static(value.args[2])) or is_moved(value)
        if static_bytes(value) is not None or (of_one and value.args[0] in kept):
            kept[binding.var] = binding
    return kept


def _used(func: relax.Function, kept: dict[Any, Any]) -> list[Any]:
    """Those that something mentions which stays."""
    rest = [*(b.value for b in bindings_of(func) if b.var not in kept), result_of(func.body)]
    mentioned = {var for expr in rest for var in variables_of(expr)}
    return [var for var in kept if var in mentioned]


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.LetGo")
class LetGo:
    """Functions that begin with giving up what their machine's last call returned.

    A virtual machine holds that until another call returns, so while a step runs the gradients of
    the one before were there too, though nobody could see them.  Here each call first makes one
    that returns nothing.
    """

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with such a call in each function that others may call."""
        called = {
            var: func
            for var, func in functions_in(mod)
            if func.attrs is not None and keys.SYMBOL in func.attrs
        }
        if not called:
            return mod
        # Not by a module's builder, which compares a function that it adds with all others.
        out, made = mod.clone(), _giving_nothing()
        taken = {str(var.name_hint) for var in mod.get_global_vars()}
        nothing = with_type(tvm.ir.GlobalVar(unused_name(_NOTHING, taken)), made.ty)
        out[nothing] = made
        for var, func in called.items():
            call = _with_context(_INVOKE, [nothing], made.ret_ty)
            binding = relax.VarBinding(relax.Var(_NOTHING, call.ty), call)
            out[var] = with_first(func, [binding])
        return out


def _giving_nothing() -> relax.Function:
    bb = relax.BlockBuilder()
    with bb.function(_NOTHING, [], attrs={"relax.force_pure": True}, private=True):
        # No empty tuple, for which the machine has no register.
        bb.emit_func_output(relax.ShapeExpr([]))
    return bb.get()[_NOTHING]


def is_moved(value: Any) -> bool:
    """Whether it makes of a tensor at an offset one whose data pointer is moved."""
    called = value.op if isinstance(value, relax.Call) else None
    return isinstance(called, relax.ExternFunc) and str(called.global_symbol) == MOVED


def is_static(shape: Any) -> bool:
    """Whether all lengths are known."""
    return lengths_are_known(shape.values)


def lengths_are_known(lengths: Iterable[Any]) -> bool:
    """Whether each is a number."""
    return all(isinstance(length, tvm.tirx.IntImm) for length in lengths)


def static_bytes(value: Any) -> int | None:
    """The size of a storage that a function's plan takes; None for anything else."""
    if op_name(value) != _STORAGE:
        return None
    (size,) = value.args[0].values
    return int(size) if isinstance(size, tvm.tirx.IntImm) else None


def maker_of(bindings: Sequence[Any], used: Sequence[Any]) -> relax.Function:
    """A function that makes storages and tensors, and gives those that are `used`."""
    made: dict[Any, Any] = {}
    bb = relax.BlockBuilder()
    with bb.function("storages", [], attrs={"relax.force_pure": True}, private=True):
        for binding in bindings:
            value = binding.value
            args = [made.get(arg, arg) for arg in value.args]
            made[binding.var] = bb.emit(relax.Call(value.op, args, value.attrs, value.ty_args))
        bb.emit_func_output(relax.Tuple([made[var] for var in used]))
    return bb.get()["storages"]


def taking(
    func: relax.Function,
    kept: Container[Any],
    used: Sequence[Any],
    maker: Any,
    kind: Any,
    number: int,
) -> relax.Function:
    """The function without the bindings of `kept`, of which it takes the `used` from what a machine
    makes once, by that number, calling `maker`."""
    taken = relax.Var("storages", kind)
    call = _with_context(_CACHED, [maker, tvm.tirx.IntImm("int64", number)], kind)
    places = {var: i for i, var in enumerate(used)}

    def rewrite(block: Block) -> list[relax.Binding]:
        return [
            bound(b, relax.TupleGetItem(taken, places[b.var])) if b.var in places else b
            for b in block.bindings
            if b.var in places or b.var not in kept
        ]

    return with_first(rebuilt(func, rewrite), [relax.VarBinding(taken, call)])


def _with_context(name: str, args: list[Any], kind: Any) -> relax.Call:
    """A call of one of the virtual machine's functions, which is given the machine."""
    builtin = tvm.ir.Op.get("relax.call_builtin_with_ctx")
    call = relax.Call(builtin, [relax.ExternFunc(name), relax.Tuple(args)], ty_args=[kind])
    made: relax.Call = with_type(call, kind)
    return made
