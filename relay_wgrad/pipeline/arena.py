"""One block of memory for all intermediate results of a function, each at a place of its own.

TVM's static plan gives a storage to several tensors one after another, but only whole.  A training
step's tensors come in many sizes, and what one of them leaves free fits none of the next: U-Net's
step took 9.1 GiB so where at most 7.6 are alive at once.  Here each tensor has an offset
(`packing`).

TVM's kernels take no tensor that begins at an offset, so each becomes one whose data pointer is
moved, which the virtual machine can do on CPUs and CUDA (`vm.builtin.ensure_zero_offset`).

A result is written in the place of an operand where the kernel may (`overwrites`) and nobody reads
the operand after it: both are one tensor of the plan then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from .. import keys
from ..graph.rebuild import rebuilt, with_first, with_functions, with_type
from ..graph.walk import bindings_of, result_of, variables_of
from ..ir import is_a, op_name
from .aliases import Parts, all_of, parts_of
from .overwrites import matched, overwrites_of
from .packing import Lifetime, packed
from .storages import MOVED, TENSOR, is_static, static_bytes

RESULT = "relax.builtin.alloc_tensor"
"""What makes a tensor that no plan has."""

NAME = "relay_wgrad.Arena"


@tvm.transform.module_pass(opt_level=0, name=NAME)
class Arena:
    """Packs static storages of functions; to run after `StaticPlanBlockMemory`.

    A function with branches stays as it is, and so do storages of other memory than a device's
    global one, and those whose tensors the function returns, of which TVM's plan has none.
    """

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with one storage for each device of a function, where that is smaller."""
        taken: list[Planned] = []
        out = with_functions(mod, lambda _, func: packed_function(func, mod, taken))
        return may_alias(out, taken)


@dataclass(eq=False)
class Planned:
    """A tensor of a static storage, None for a result's own: its binding, its storage, bytes, and
    steps of its life.

    device : its number.
    used : the step that first mentions it.
    over : in whose place it is written, by the call of `kernel`.
    """

    binding: relax.VarBinding
    storage: relax.Var | None
    device: int
    size: int
    first: int
    last: int
    used: int = -1
    over: Planned | None = None
    kernel: Any = None


def lifetimes(
    func: relax.Function, mod: tvm.IRModule | None = None, *, results: bool = False
) -> list[Planned]:
    """The tensors that a function's static plan places, in their order; a step is a binding.

    Empty for a function with branches.

    mod : whose kernels may write results in the place of operands; None: none does.
    results : those of static size that the function makes for its caller too.
    """
    bindings = bindings_of(func)
    if any(is_a(b.value, relax.If) for b in bindings):
        return []
    sizes: dict[Any, int] = {}
    devices: dict[Any, int] = {}
    found: list[Planned] = []
    parts: dict[Any, Parts] = {}
    calls: list[tuple[int, relax.Call, list[frozenset[int]]]] = []
    for step, binding in enumerate(bindings):
        value, mentioned = binding.value, parts_of(binding.value, parts)
        for i in all_of(mentioned):
            found[i].last = step
            found[i].used = step if found[i].used < 0 else found[i].used
        if mod is not None and mentioned and is_a(value, relax.Call):
            calls.append((step, value, [all_of(parts_of(arg, parts)) for arg in value.args[:]]))
        if (size := _packable(value)) is not None:
            sizes[binding.var], devices[binding.var] = size, int(value.args[1])
        elif op_name(value) == TENSOR and value.args[0] in sizes:
            parts[binding.var] = frozenset([len(found)])
            size = _bytes(*value.args[2:4]) or sizes[value.args[0]]
            storage = value.args[0]
            found.append(Planned(binding, storage, devices[storage], size, step, step))
        elif results and (size := _own_bytes(value)) is not None:
            parts[binding.var] = frozenset([len(found)])
            found.append(Planned(binding, None, device_of(value), size, step, step))
        else:
            parts[binding.var] = mentioned
            for storage in variables_of(value):  # by something else than a tensor of its own
                sizes.pop(storage, None)
    stay = {found[i].storage for i in all_of(parts_of(result_of(func.body), parts))}
    stay = (stay | {t.storage for t in found} - sizes.keys()) - {None}
    for step, call, given in calls:
        _place(step, call, given, found, stay, mod)
    return [t for t in found if t.storage not in stay]


def _place(
    step: int,
    call: relax.Call,
    given: list[frozenset[int]],
    found: list[Planned],
    stay: set[Any],
    mod: tvm.IRModule | None,
) -> None:
    """Says of a kernel's results which are written in the place of an operand.

    The operand's last use is this call, which reads it once; the result's first one is too; and
    both are places of one size.

    given : of each argument the tensors that it may be.
    """
    pairs = overwrites_of(mod, call.op) if mod is not None else []
    times = Counter(i for tensors in given for i in tensors)

    def one(place: int) -> Planned | None:
        if len(given[place]) != 1:
            return None
        (i,) = given[place]
        return found[i] if times[i] == 1 and found[i].storage not in stay else None

    def may(result: int, operand: int) -> bool:
        made, read = one(result), one(operand)
        return (
            made is not None
            and read is not None
            and read.storage is not None  # else its caller has it
            and made.used == read.last == step
            and made.size == read.size
            and made.device == read.device
        )

    for result, operand in matched(pairs, may).items():
        made = one(result)
        assert made is not None
        made.over, made.kernel = one(operand), call.op


def may_alias(mod: tvm.IRModule, tensors: Iterable[Planned]) -> tvm.IRModule:
    """A module whose kernels that write tensors in the place of an operand are told so."""
    out = mod.clone()
    for kernel in {t.kernel for t in tensors if isinstance(t.kernel, tvm.ir.GlobalVar)}:
        out[kernel] = out[kernel].with_attr(keys.NO_ALIAS, False)
    return out


def packed_function(
    func: relax.Function, mod: tvm.IRModule, taken: list[Planned]
) -> relax.Function:
    """The function with its static storages as one for each device, or as it was.

    taken : where the tensors are added that have a place of it.
    """
    tensors = lifetimes(func, mod)
    calls = {b.var: b.value for b in bindings_of(func)}
    groups: dict[int, list[Planned]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device, []).append(tensor)
    arenas: list[relax.VarBinding] = []
    rows: dict[Any, list[relax.VarBinding]] = {}
    for device, group in groups.items():
        lives, of_each = places_of(group)
        places = packed(lives)
        storages = list(dict.fromkeys(t.storage for t in group))
        if places.size >= sum(static_bytes(calls[s]) or 0 for s in storages):
            continue
        arena = arena_of(places.size, device)
        arenas.append(arena)
        rows |= {storage: [] for storage in storages}
        for tensor, place in zip(group, of_each, strict=True):
            offset = places.offsets[place]
            rows[tensor.binding.var] = placed(tensor.binding, arena.var, offset)
        taken += group
    if not arenas:
        return func
    made = rebuilt(
        func, lambda block: [row for b in block.bindings for row in rows.get(b.var, [b])]
    )
    return with_first(made, arenas)


def places_of(tensors: Sequence[Planned]) -> tuple[list[Lifetime], list[int]]:
    """(the lives of places, the place of each tensor): one for those written over each other."""
    lives: list[Lifetime] = []
    place: dict[Planned, int] = {}
    for tensor in tensors:
        if tensor.over is None:
            place[tensor] = len(lives)
            lives.append(Lifetime(tensor.size, tensor.first, tensor.last))
        else:
            place[tensor] = at = place[tensor.over]
            lives[at] = lives[at]._replace(last=max(lives[at].last, tensor.last))
    return lives, list(place.values())


def device_of(value: Any) -> int:
    """The number of the device that a storage or a result's tensor is taken of."""
    return int(value.args[2 if op_name(value) == RESULT else 1])


def arena_of(size: int, device: int) -> relax.VarBinding:
    """A variable with a storage of so many bytes."""
    shape = relax.ShapeExpr([tvm.tirx.IntImm("int64", size)])
    call = relax.op.memory.alloc_storage(shape, device, "global", "uint8")
    with_type(call, relax.AnyType())
    return relax.VarBinding(relax.Var("arena", relax.AnyType()), call)


def placed(binding: relax.VarBinding, arena: relax.Var, offset: int) -> list[relax.VarBinding]:
    """The tensor at a place of the arena, its data pointer moved there."""
    call, ty = binding.value, binding.var.ty
    if op_name(call) == RESULT:
        shape, dtype, device, _ = call.args
        op, attrs, rest = tvm.ir.Op.get(TENSOR), None, [shape, dtype, device]
    else:
        op, attrs, rest = call.op, call.attrs, list(call.args)[2:]
    args = [arena, tvm.tirx.IntImm("int64", offset), *rest]
    taken = with_type(relax.Call(op, args, attrs, call.ty_args), ty)
    if not offset:
        return [relax.VarBinding(binding.var, taken)]
    at = relax.Var(f"{binding.var.name}_at", ty)
    moved = with_type(relax.Call(relax.ExternFunc(MOVED), [at], ty_args=[ty]), ty)
    return [relax.VarBinding(at, taken), relax.VarBinding(binding.var, moved)]


def _packable(value: Any) -> int | None:
    """The size of a static storage of a device's global memory."""
    size = static_bytes(value)
    if size is None or str(value.args[2].value) != "global":
        return None
    return size if isinstance(value.args[1], tvm.tirx.IntImm) else None


def _own_bytes(value: Any) -> int | None:
    """The size of a tensor that is made for a function's caller, in global memory, if known."""
    if op_name(value) != RESULT or str(value.args[3].value) != "global":
        return None
    return _bytes(*value.args[:2])


def _bytes(shape: Any, dtype: Any) -> int | None:
    """Of a tensor, if its shape is known."""
    if not is_static(shape):
        return None
    bits = tvm.DataType(str(dtype.value)).bits
    return math.prod(map(int, shape.values)) * ((bits + 7) // 8)
