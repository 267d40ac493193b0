"""A pass that computes what is broadcast once, where computing it takes long.

A gate is a sigmoid of a number for each channel of an image, and what a mean gives back is divided
by a count: fusion makes such small tensors part of the kernel that broadcasts them, which then
divides, or takes an exponential, for each pixel.  On a GPU a division is some ten instructions, as
much as all else of a kernel that waits for memory.  Here the last kernel before a broadcast is
marked as a sum is: what makes it is fused with it, what broadcasts it reads its result.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_walk

from ..graph.def_use import Graph
from ..graph.walk import functions_in
from ..ir import tensor_bytes
from ..keys import OP_PATTERN
from .recompute import INJECTIVE, SUM
from .targets import cuda_target

_LARGER = 8  # times as many bytes
# Bytes that a broadcast has at least: of halves so many divisions take an H200 as long as a launch.
_MANY = 1 << 23
# What takes many instructions; of functions all but these.
_CHEAP = ("abs", "fabs", "if_then_else", "likely", "reinterpret", "max_value", "min_value")


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.broadcast_once")
class BroadcastOnce:
    """For kernels that AnnotateTIROpPattern has marked, before `Recompute`; on CUDA alone."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with other marks."""
        if cuda_target() is None:
            return mod
        kernels = {
            var: func
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and func.attrs and OP_PATTERN in func.attrs
        }
        costly = {var for var, func in kernels.items() if _is_costly(func)}
        ends = {
            var
            for _, func in functions_in(mod)
            for var in _Ends(Graph(func), kernels, costly).kernels()
        }
        out = mod.clone() if ends else mod
        for var in ends:
            out.update_func(var, kernels[var].with_attr(OP_PATTERN, SUM))
        return out


class _Ends:
    """Of a function: kernels whose results are broadcast, and that take long or follow such."""

    def __init__(self, graph: Graph, kernels: dict[Any, Any], costly: set[Any]) -> None:
        self.graph, self.kernels_of, self.costly = graph, kernels, costly
        self.long: dict[relax.Var, bool] = {}

    def kernels(self) -> set[Any]:
        found = set()
        for binding in self.graph.bindings:
            var, kernel = binding.var, self._kernel(binding.value)
            if kernel is None:
                continue
            made = [v for v in binding.value.args[1].fields if self.long.get(v)]
            self.long[var] = kernel in self.costly or bool(made)
            if self.long[var] and self._is_broadcast(var):
                found.add(kernel)
                self.long[var] = False  # of what reads it
        return found

    def _kernel(self, value: Any) -> Any:
        """The element-wise kernel that a value is a call of."""
        if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.call_tir":
            return None
        kernel = value.args[0]
        known = kernel in self.kernels_of and len(value.args) == 2
        good = known and int(self.kernels_of[kernel].attrs[OP_PATTERN]) <= INJECTIVE
        return kernel if good and isinstance(value.ty, relax.TensorType) else None

    def _is_broadcast(self, var: relax.Var) -> bool:
        """Whether a kernel that fusion would make it part of is much larger, and large."""
        size = tensor_bytes(var.ty)
        users = (u.value for u in self.graph.users_of(var) if self._kernel(u.value) is not None)
        sizes = [tensor_bytes(user.ty) for user in users]
        known = [n for n in sizes if n is not None]
        return size is not None and any(n >= max(_MANY, _LARGER * size) for n in known)


def _is_costly(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def called(node: Any) -> None:
        name = str(getattr(node.op, "name", "")).rpartition(".")[2]
        if str(getattr(node.ty, "dtype", "")).startswith(("float", "bfloat")):
            found.extend([name] if name not in _CHEAP else [])

    def divided(node: Any) -> None:
        if str(node.ty.dtype).startswith(("float", "bfloat")):
            found.append("/")

    structural_walk(func.body, [(tvm.ir.Call, called), (tirx.Div, divided)])
    return bool(found)
