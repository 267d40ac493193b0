"""One variable for sizes of the run that a fused kernel's steps take for one.

Of tensors whose sizes only the run knows, a step's operands must agree: `x * y` of (n, 4) and
(m, 4) needs n to be m, which the kernel compares when it is called.  Where several such steps are
fused, FuseTIR takes the variables for different ones and writes a kernel that TVM cannot compile.
Here the function that is to be a kernel says that they are one, and the kernel compares as before.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ..graph.rebuild import with_functions
from ..graph.walk import bindings_of
from ..ir import op_name
from ..keys import PRIMITIVE


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.SameSizes")
class SameSizes:
    """To run between FuseOps and FuseTIR."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module; a function without such sizes is as it was."""

        def change(_: Any, func: relax.Function) -> relax.Function:
            fused = func.attrs and PRIMITIVE in func.attrs
            found = _same(mod, func) if fused else {}
            return func.bind_symbolic_vars(found) if found else func

        return with_functions(mod, change)


def _same(mod: tvm.IRModule, func: relax.Function) -> dict[Any, Any]:
    """Variables that another size of the function stands for."""
    found: dict[Any, Any] = {}

    def known(size: Any) -> Any:
        while isinstance(size, tirx.Var) and size in found:
            size = found[size]
        return size

    for binding in bindings_of(func):
        if op_name(binding.value) != "relax.call_tir":
            continue
        kernel, given = mod[binding.value.args[0]], binding.value.args[1]
        bound: dict[Any, Any] = {}
        for param, arg in zip(kernel.params, given.fields, strict=False):
            for size, own in _pairs(param, arg):
                own = known(own)
                first = known(bound.setdefault(size, own))
                if first.same_as(own):
                    continue
                if isinstance(own, tirx.Var):
                    found[own] = first
                elif isinstance(first, tirx.Var):
                    found[first] = own
    return {var: known(var) for var in found}


def _pairs(param: Any, arg: Any) -> list[tuple[Any, Any]]:
    """A kernel's variables of a tensor's sizes, with what the call has for them."""
    own, given = getattr(param, "shape", None), getattr(arg.ty, "shape", None)
    if own is None or not isinstance(given, relax.ShapeExpr):
        return []
    sizes = zip(own, given.values, strict=True)
    return [(size, own) for size, own in sizes if isinstance(size, tirx.Var)]
