"""A pass: running sums and products of half precision are computed in float32.

TVM compiles `cumsum` and `cumprod` before it legalizes, so no rule of an operator reaches them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from ..dtypes import HALVES
from ..graph.rebuild import rewritten
from ..layout_rules.in_layout import attrs_with

_SCANS = ("relax.cumsum", "relax.cumprod")


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.half_scans")
class HalfScans:
    """For a module before TVM's `DispatchSortScan`."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module, where each such call has a float32 result, which is then rounded."""
        return rewritten(mod, _Rewriter(mod))


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """A call of either with a half-precision result becomes two."""
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, Op) or call.op.name not in _SCANS:
            return call
        dtype = str(call.ty.dtype)
        if dtype not in HALVES:
            return call
        wide = relax.op.astype(call.args[0], "float32")
        attrs = attrs_with(call.attrs, dtype="float32")
        scanned = self.builder_.emit(relax.Call(call.op, [wide], attrs, call.ty_args))
        return relax.op.astype(scanned, dtype)
