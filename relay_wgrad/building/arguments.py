"""Which kernels get only tensors that are what the kernels say, so that they need not look.

A tensor that the virtual machine has allocated is what its type says: of that dtype and shape,
without strides, where the program runs.  One of a caller's may be anything, a transposed view say:
a function compares the sizes of its parameters when it begins, and here each is given once to a
kernel that does nothing but look at the rest.  A tensor of a function from elsewhere is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst, GlobalVar
from tvm_ffi.structural import structural_walk

from ..graph.rebuild import rebuilt, unused_name, with_functions, with_type
from ..graph.walk import Block, bindings_of, functions_in
from ..ir import is_a, op_name
from ..keys import SYMBOL

# A new tensor at some place of a storage; one at that place whose data begin there; another view.
_TENSOR, _MOVED, _VIEW = (
    "relax.vm.alloc_tensor", "vm.builtin.ensure_zero_offset", "vm.builtin.reshape",
)  # fmt: skip
# What a function compares before its own code: its parameters' types, and the sizes of each.
_TYPE, _TUPLE, _SIZES = (
    "vm.builtin.check_tensor_info", "vm.builtin.check_tuple_info", "vm.builtin.match_shape",
)  # fmt: skip
_TABLE = "vm.builtin.alloc_shape_heap"  # of sizes, for that
_KILL = "relax.vm.kill_object"


@dataclass(frozen=True)
class _Known:
    """A tensor that is what its type says; if it is a caller's, once that has been looked at.

    parameter : the caller's, or None.  moved : whether its data begin where it does; not so of a
        tensor at a place of a storage.
    """

    parameter: Any = None
    moved: bool = True


class _Kind(NamedTuple):
    """What one look is for: tensors of a dtype, of so many dimensions."""

    dtype: str
    dims: int


def with_looks(module: tvm.IRModule) -> tuple[tvm.IRModule, set[str]]:
    """The module, as the virtual machine's code generator takes it, with looks at parameters.

    Returns it, and the names of kernels all of whose arguments are then known.
    """
    kernels = {v: f for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}
    others: set[str] = set()
    given: dict[GlobalVar, list[tuple[str, Any]]] = {}  # kernels and the parameters that they get
    for caller, function in functions_in(module):
        known, given[caller] = _compared(_prologue(function)), []
        for binding in bindings_of(function):
            value = binding.value
            if (tensor := _tensor(binding, known)) is not None:
                known[binding.var] = tensor
            elif not _fits(value, kernels, known):
                others.update(_functions_named(value))
            else:
                name = str(value.op.name_hint)
                tensors = [known[each] for each in value.args if each in known]
                given[caller] += [(name, t.parameter) for t in tensors if t.parameter is not None]
    looks = {
        caller: dict.fromkeys(var for name, var in pairs if name not in others)
        for caller, pairs in given.items()
    }
    return _looking(module, looks), {str(var.name_hint) for var in kernels} - others


def _compared(prologue: Sequence[relax.Binding]) -> dict[Any, _Known]:
    """A function's parameters of known sizes that it compares with these: by their names, and an
    item of a tuple by that and its place, since it has a name wherever it is taken out."""
    items: dict[Any, Any] = {}
    found: dict[Any, _Known] = {}
    for binding in prologue:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            items[binding.var] = value.tuple_value, int(value.index)
        elif (packed := _packed(value)) in (_SIZES, _TYPE):
            tensor = value.args[0]
            sizes = _sizes(tensor.ty)
            if sizes is not None and (packed == _SIZES or not sizes):
                found[tensor] = _Known(tensor)
                if tensor in items:
                    found[items[tensor]] = found[tensor]
    return found


def _prologue(function: relax.Function) -> list[relax.Binding]:
    """Its bindings before its own code."""
    return list(takewhile(lambda each: _compares(each.value), bindings_of(function)))


def _compares(value: Any) -> bool:
    """Whether it takes a parameter apart, compares it, or makes the table of sizes for that."""
    if op_name(value) == "relax.call_builtin_with_ctx":
        made = value.args[0]
        return isinstance(made, relax.ExternFunc) and str(made.global_symbol) == _TABLE
    parts = is_a(value, relax.TupleGetItem) or op_name(value) == "relax.null_value"
    return parts or _packed(value) in (_TYPE, _TUPLE, _SIZES)


def _tensor(binding: Any, known: Mapping[Any, _Known]) -> _Known | None:
    """The tensor that a binding makes or names, where it is known."""
    value = binding.value
    if is_a(value, relax.Var):
        return known.get(value)
    if is_a(value, relax.TupleGetItem):
        return known.get((value.tuple_value, int(value.index)))
    if op_name(value) == _TENSOR and is_a(place := value.args[1], tirx.IntImm):
        static = _sizes(binding.var.ty) is not None
        return _Known(moved=int(place) == 0) if static else None
    packed = _packed(value)
    of = known.get(value.args[0]) if packed in (_MOVED, _VIEW) else None
    if of is None or packed == _MOVED:
        return None if of is None else replace(of, moved=True)
    return of if of.moved and _sizes(binding.var.ty) is not None else None


def _sizes(ty: Any) -> tuple[int, ...] | None:
    """Of a tensor whose sizes and dtype are known."""
    if not is_a(ty, relax.TensorType) or not is_a(ty.shape, relax.ShapeExpr):
        return None
    sizes = ty.shape.values[:]
    is_known = ty.dtype is not None and all(is_a(n, tirx.IntImm) for n in sizes)
    return tuple(map(int, sizes)) if is_known else None


def _packed(value: Any) -> str:
    """The name of a called function from elsewhere; "" of anything else."""
    called: Any = value.op if is_a(value, relax.Call) else None
    return str(called.global_symbol) if is_a(called, relax.ExternFunc) else ""


def _fits(value: Any, kernels: Mapping[GlobalVar, Any], known: Mapping[Any, _Known]) -> bool:
    """Whether it is a call of a kernel with known tensors of the types that it names."""
    called = value.op if is_a(value, relax.Call) else None
    kernel = kernels.get(called) if is_a(called, GlobalVar) else None
    if kernel is None:
        return False
    buffers, arguments = kernel.params[:], value.args[:]
    if len(buffers) != len(arguments):
        return False
    own: dict[Any, int] = {}
    for buffer, argument in zip(buffers, arguments, strict=True):
        is_constant = is_a(argument, GenericConst)
        tensor = _Known() if is_constant else known.get(argument, _Known(moved=False))
        sizes = _sizes(argument.ty)
        if not (tensor.moved and sizes is not None and _is(buffer, argument.ty, sizes, own)):
            return False
    return True


def _is(buffer: Any, ty: Any, sizes: Sequence[int], own: dict[Any, int]) -> bool:
    """Whether a kernel's buffer is one after another's elements of a tensor's type.

    own : what sizes are that a kernel learns of its tensors, of those before; it learns more.
    """
    if not is_a(buffer.ty, tirx.BufferType) or str(buffer.dtype) != str(ty.dtype):
        return False
    shape, offset = buffer.shape[:], buffer.elem_offset
    if len(buffer.strides) or not is_a(offset, tirx.IntImm) or int(offset) != 0:
        return False
    if len(shape) != len(sizes):
        return False
    for size, given in zip(shape, sizes, strict=True):
        is_learnt = is_a(size, tirx.Var)
        if not is_learnt and not is_a(size, tirx.IntImm):
            return False
        if given != (own.setdefault(size, given) if is_learnt else int(size)):
            return False
    return True


def _functions_named(value: Any) -> list[str]:
    if op_name(value) == _KILL or _compares(value):  # most of what is left, with variables alone
        return []
    found: list[GlobalVar] = []
    structural_walk(value, (GlobalVar, found.append))
    return [str(var.name_hint) for var in found]


def _looking(module: tvm.IRModule, looks: Mapping[GlobalVar, Iterable[Any]]) -> tvm.IRModule:
    """The module whose functions look at these of their parameters before their own code."""
    taken, nothing = {str(var.name_hint) for var in module.get_global_vars()}, relax.TupleType([])
    kernels: dict[_Kind, GlobalVar] = {}

    def call(var: Any) -> relax.Binding:
        kind = _Kind(str(var.ty.dtype), len(var.ty.shape.values))
        if kind not in kernels:
            kernels[kind] = GlobalVar(unused_name("look_{}_{}".format(*kind), taken))
        value = with_type(relax.Call(kernels[kind], [var]), nothing)
        return relax.VarBinding(relax.Var("_", nothing), value)

    def changed(caller: GlobalVar, function: relax.Function) -> relax.Function:
        calls = [call(var) for var in looks[caller]]
        return _with_calls(function, calls) if calls else function

    out = with_functions(module, changed).clone()
    for kind, var in kernels.items():
        out.update_func(var, _look(kind).with_attr(SYMBOL, str(var.name_hint)))
    return out


def _with_calls(function: relax.Function, calls: Sequence[relax.Binding]) -> relax.Function:
    """The function that does these when it has compared its parameters."""
    left = len(_prologue(function))  # bindings before their place

    def rewrite(block: Block) -> list[relax.Binding] | None:
        nonlocal left
        bindings, after = block.bindings[:], left
        left -= len(bindings)
        if not 0 < after <= len(bindings):
            return None
        return [*bindings[:after], *calls, *bindings[after:]]

    return rebuilt(function, rewrite)


def _look(kind: _Kind) -> tirx.PrimFunc:
    """A kernel of a tensor of any sizes that does nothing: TVM lets it look at its argument."""
    sizes = [tirx.Var(f"n{i}", "int64") for i in range(kind.dims)]
    tensor = tirx.decl_buffer(sizes, kind.dtype, name="tensor")
    return tirx.PrimFunc([tensor], tirx.Evaluate(tirx.IntImm("int32", 0)))
