"""Element-wise kernels for a CPU that are the same for all sizes, so that one is compiled for many.

A training step computes the same of each of its parameters: of ResNet-50's 161 element-wise kernels
two thirds differ from another in nothing but sizes.  Where each element is made of those at its
place in other tensors, and of tensors of one element, a kernel needs no axes: here it learns its
sizes from its tensors, as any kernel of symbolic sizes does, and walks along memory in vectors as
they are written, so that its speed does not depend on sizes that are known.

Of kernels that also read something for each channel, say, it would: a row's end is computed one by
one, and they take four times as long to compile, so they stay as they are.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T
from tvm_ffi.structural import structural_map, structural_walk

from ..keys import SYMBOL

_LANES = 16  # elements of a vector as written
_PIECE = 1 << 12  # elements that a task computes
# Of which TVM's lowering leaves vectors as they are written.
_DTYPES = frozenset(("float32", "float64", "int32", "int64", "uint8", "int8", "bool"))
# Instructions.  Of other functions an expression is large, and is written twice here.
_FUNCTIONS = frozenset(("tirx.sqrt", "tirx.fabs", "tirx.isnan", "tirx.reinterpret"))


def shared(func: tirx.PrimFunc, block: Any, tasks: bool) -> tirx.PrimFunc | None:
    """A kernel's one block for any sizes; None where an element depends on others, or on its place.

    tasks : whether other threads are worth waking for it.
    """
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not all(map(_is_plain, func.params)):
        return None
    result, axes = store.buffer, [each.var for each in block.iter_vars]
    loads = _loads(store.value)
    if loads is None or _is_one(result) or not _is_whole(store.indices, result, axes):
        return None
    for load in loads:
        if not _is_one(load.source):
            same = _shape(load.source) == _shape(result)
            if not same or not _is_whole(load.indices, load.source, axes):
                return None
    tensors = {result, *(load.source for load in loads)}
    return _written(func, store, tasks) if tensors == set(func.params) else None


def _is_plain(param: Any) -> bool:
    """Whether it is a tensor of known sizes without strides, of a type that is lowered alike."""
    if not isinstance(param.ty, tirx.BufferType) or str(param.dtype) not in _DTYPES:
        return False
    return not len(param.strides) and all(isinstance(n, tirx.IntImm) for n in param.shape[:])


def _loads(value: Any) -> list[Any] | None:
    """What an expression reads; None where it is made of more than that and of instructions."""
    loads: list[Any] = []
    calls: set[str] = set()
    dtypes: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, TensorLoad):
            loads.append(node)
        elif isinstance(node, tvm.ir.Call):
            calls.add(str(getattr(node.op, "name", "")))
        if (dtype := getattr(getattr(node, "ty", None), "dtype", None)) is not None:
            dtypes.add(str(dtype))

    structural_walk(value, visit)
    if not (calls <= _FUNCTIONS and dtypes <= _DTYPES):
        return None
    read: list[Any] = []

    def number(load: Any) -> Any:
        read.append(tirx.Var("read", str(load.ty.dtype)))
        return read[-1]

    rest = structural_map(value, (TensorLoad, number))
    return loads if set(tirx.analysis.undefined_vars(rest)) <= set(read) else None


def _shape(tensor: Any) -> list[int]:
    return [int(n) for n in tensor.shape[:]]


def _is_one(tensor: Any) -> bool:
    return math.prod(_shape(tensor)) == 1


def _is_whole(indices: Any, tensor: Any, axes: list[Any]) -> bool:
    """Whether indices are all axes in their order, but for dimensions of one element."""
    pairs = zip(indices[:], _shape(tensor), strict=True)
    own = [index for index, size in pairs if not (size == 1 and isinstance(index, tirx.IntImm))]
    return len(own) == len(axes) and all(a.same_as(b) for a, b in zip(own, axes, strict=True))


def _written(func: tirx.PrimFunc, store: Any, tasks: bool) -> tirx.PrimFunc:
    """The function: dimensions of one element are unknown too, since another kernel has more."""
    result = store.buffer
    sizes = [tirx.Var(f"n{i}", "int64") for i in range(len(result.shape))]
    flat: dict[Any, Any] = {}
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        given = {}
        for i, param in enumerate(func.params):  # by their places, so that kernels are the same
            shape = _shape(param) if _is_one(param) else sizes
            given[param] = T.arg(f"x{i}", T.buffer(shape, str(param.dtype)))
        for param, own in given.items():
            whole = T.decl_buffer((math.prod(own.shape[:]),), str(own.dtype), data=own.data)
            flat[param] = IRBuilder.name(f"{own.name}_flat", whole)

        def element(i: Any) -> None:
            def load(node: Any) -> Any:
                return flat[node.source][0 if _is_one(node.source) else i]

            T.buffer_store(flat[result], structural_map(store.value, (TensorLoad, load)), [i])

        length = T.Bind(_int64(math.prod(sizes)))
        if tasks:
            with T.parallel(0, (length + (_PIECE - 1)) // _PIECE) as task:
                start = T.Bind(task * _PIECE)
                _row(start, T.Bind(tirx.min(_int64(_PIECE), length - start)), element)
        else:
            _row(_int64(0), length, element)
    attrs = dict(func.attrs.items()) if func.attrs else {}
    return builder.get().without_attr(SYMBOL).with_attrs(attrs)


def _row(start: Any, count: Any, element: Any) -> None:
    """The elements from a place on: vectors, and what is left over."""
    whole = T.Bind(count // _LANES * _LANES)
    with T.serial(0, whole // _LANES) as vector, T.vectorized(0, _LANES) as lane:
        element(start + vector * _LANES + lane)
    with T.serial(0, count - whole) as rest:
        element(start + whole + rest)


def _int64(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else value
