"""Tensors that are known to have no elements, and means over them.

TVM's kernels for them divide by a size that is the number 0, which no compiler of it takes, and its
reader of libraries takes a constant of no bytes for a damaged file, if what it has just allocated
for it is no null pointer.  Where only the run knows the sizes, kernels are right
(`reduction_init`).
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm_ffi.structural import structural_walk

from ..graph.rebuild import rewritten
from ..graph.walk import functions_in
from ..ir import is_a, op_name
from ..ops import ALL, size_rules

# Whose result over nothing is NaN; the other reductions' is what their kernels begin with.
_MEANS = frozenset(
    f"relax.{name}" for name in ("mean", "variance", "std", "nn.cross_entropy_with_logits")
)
# What refuses sizes of 0 itself (`ops.size_rules`), makes no tensor of operands, or is no operator.
_REFUSING = {d.name for d in ALL if d.sizes is not None} - set(size_rules.OF_SOME)
_STAY = frozenset(("relax.zeros", "relax.full", *_REFUSING))
_NO_OPERATORS = ("relax.call_", "relax.builtin.", "relax.memory.", "relax.vm.")


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Nothing")
class Nothing:
    """What has no elements becomes `zeros`, and a mean over nothing NaN; for a module before TVM's
    passes for libraries."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module; itself where each tensor has elements, or may have."""
        found: dict[int, Any] = {}  # by their hashes, which are addresses: a variable stands often

        def add(value: Any) -> None:
            found[hash(value)] = value

        for _, function in functions_in(mod):  # each result is a variable's
            structural_walk(function, ((relax.Var, GenericConst), add))
        some = any(_is_empty(value.ty) for value in found.values())
        return rewritten(mod, _Rewriter(mod)) if some else mod


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def visit_generic_const_(self, constant: Any) -> relax.Expr:
        """One without elements is made at the run."""
        return self.builder_.emit(_full(constant.ty, 0.0)) if _is_empty(constant.ty) else constant

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """A call of an operator."""
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if not name or name in _STAY or name.startswith(_NO_OPERATORS):
            return call
        ty = call.ty
        if isinstance(ty, relax.TupleType):
            if ty.fields and all(map(_is_empty, ty.fields)):
                return relax.Tuple([self.builder_.emit(_full(field, 0.0)) for field in ty.fields])
        elif _is_empty(ty):
            return _full(ty, 0.0)
        elif name in _MEANS and _is_empty(call.args[0].ty) and _has_nan(ty):
            return _full(ty, math.nan)
        return call


def _is_empty(ty: Any) -> bool:
    if not is_a(ty, relax.TensorType) or not is_a(ty.shape, relax.ShapeExpr):
        return False
    return any(is_a(size, tirx.IntImm) and int(size) == 0 for size in ty.shape.values[:])


def _has_nan(ty: relax.TensorType) -> bool:
    return str(ty.dtype).startswith(("float", "bfloat"))


def _full(ty: relax.TensorType, value: float) -> relax.Call:
    dtype = str(ty.dtype)
    if not value:
        return relax.op.zeros(ty.shape, dtype)
    return relax.op.broadcast_to(relax.const(value, dtype), ty.shape)
