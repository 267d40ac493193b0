"""How large a constant may be that a compiler computes ahead of the run.

Upstream's `FoldConstant` computes whatever has constants for arguments: a broadcast to gigabytes
fills the memory of the compiler, and is then written into the library.  Here such a call stays one,
and its memory is the run's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Op

from ..graph.rebuild import rewritten
from ..graph.walk import bindings_of, functions_in
from ..ir import is_a, op_name, tensor_bytes
from .ieee import exact_floats

LARGEST = 2**28  # bytes of a result that is larger than what it is computed from
_CALL, _LEFT = "relax.call_tir", "relax.call_dps_packed"


def is_worth(result: int, given: int) -> bool:
    """Whether a result of so many bytes may be a constant; `given`: its largest argument's."""
    return result <= max(LARGEST, given)


def fold_constants() -> tvm.transform.Pass:
    """Upstream's pass but for calls whose results are too large (`is_worth`) or have no elements,
    and what needs them.

    For modules that are legalized: operators that are no kernels yet are folded at any size.
    """

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.fold_constants")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        if not any(map(_stays, _values(mod))):
            return _folded(mod)
        # What is no `call_tir` is left alone.
        return _renamed(_folded(_renamed(mod, _CALL, _LEFT)), _LEFT, _CALL)

    return run


def _folded(mod: tvm.IRModule) -> tvm.IRModule:
    """By upstream's pass, with kernels that compute as they will at the run (`exact_floats`)."""
    out = relax.transform.FoldConstant()(exact_floats()(mod))
    kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    out = out.clone()
    for var, func in kernels.items():
        out.update_func(var, func)  # as they were, to be fused and scheduled
    return out


def _values(mod: tvm.IRModule) -> Iterator[Any]:
    """What variables of the functions are bound to."""
    for _, func in functions_in(mod):
        for binding in bindings_of(func):
            yield binding.value


def _stays(call: Any, name: str = _CALL) -> bool:
    """Whether it is the call of a kernel whose result may not be a constant."""
    if op_name(call) != name or not is_a(call.args[0], relax.GlobalVar):
        return False
    size = tensor_bytes(call.ty)
    if size is None:
        return False  # upstream's pass computes none of those
    if 0 < size <= LARGEST:  # whatever it is given
        return False
    given = max((tensor_bytes(arg.ty) or 0 for arg in call.args[1].fields), default=0)
    # A library can't be read back with a constant that has no elements.
    return size == 0 or not is_worth(size, given)


def _renamed(mod: tvm.IRModule, old: str, new: str) -> tvm.IRModule:
    """The module with such calls by another operator."""
    return rewritten(mod, _Rewriter(mod, old, new))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, old: str, new: str) -> None:
        super().__init__(mod)
        self.old, self.new = old, new

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Every such call."""
        if not _stays(call, self.old):
            return super().visit_call_(call)
        return relax.Call(Op.get(self.new), call.args, call.attrs, call.ty_args)
