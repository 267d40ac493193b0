"""Which kernels get only tensors that the virtual machine has allocated for them itself.

Such a tensor is what its type says: of that dtype and shape, without strides, where the program
runs.  One of a caller's, or of a function from elsewhere, may be anything, a transposed view say.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst, GlobalVar
from tvm_ffi.structural import structural_walk

from ..graph.walk import bindings_of, functions_in
from ..ir import op_name

# A new tensor at some place of a storage; one at that place whose data begin there.
_TENSOR, _MOVED = "relax.vm.alloc_tensor", "vm.builtin.ensure_zero_offset"


def kernels_of_allocated(module: tvm.IRModule) -> set[str]:
    """Their names, of a module as the virtual machine's code generator takes it."""
    others: set[str] = set()
    for _, function in functions_in(module):
        placed: set[relax.Var] = set()  # somewhere in a storage
        known: set[Any] = set()
        for binding in bindings_of(function):
            value = binding.value
            if _is_tensor(value):
                placed.add(binding.var)
                if _is_zero(value.args[1]):
                    known.add(binding.var)
            elif _is_packed(value, _MOVED) and value.args[0] in placed:
                known.add(binding.var)
            elif not _is_kernel_of(value, known):
                others.update(_functions_named(value))
    return {
        name for var, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and (name := str(var.name_hint)) not in others
    }  # fmt: skip


def _is_tensor(value: Any) -> bool:
    """Whether it is a new tensor of a size that is known."""
    return op_name(value) == _TENSOR and isinstance(value.args[2], relax.ShapeExpr)


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == 0


def _is_packed(value: Any, name: str) -> bool:
    called = value.op if isinstance(value, relax.Call) else None
    return isinstance(called, relax.ExternFunc) and str(called.global_symbol) == name


def _is_kernel_of(value: Any, known: set[Any]) -> bool:
    """Whether it is a call of a kernel with known tensors alone."""
    return isinstance(value, relax.Call) and isinstance(value.op, GlobalVar) and all(
        isinstance(argument, GenericConst) or argument in known for argument in value.args
    )  # fmt: skip


def _functions_named(value: Any) -> list[str]:
    found: list[GlobalVar] = []
    structural_walk(value, (GlobalVar, found.append))
    return [str(var.name_hint) for var in found]
