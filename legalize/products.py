"""FLegalize of matrix products: batches of them on a CPU have a kernel of ours.

The others are `legalize.half_reductions`'s; those of two matrices are convolutions by then, where
they are large (`relay_wgrad.pipeline.products`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target
from tvm_ffi import structural_equal

from relay_wgrad import keys
from relay_wgrad.dtypes import HALVES
from relay_wgrad.ir import OPAQUE
from relay_wgrad.opdef import OpDef
from relay_wgrad.pipeline.targets import llvm_target

from .cpu.batched_products import batches
from .half_reductions import WIDE, wide_rule

_PRODUCTS = 1 << 12  # of one matrix: with fewer, what comes before and after is better fused
_WIDES = ("float32", "float64")


def matmul_rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule of `relax.matmul`."""
    others = wide_rule(definition, upstream)

    def rule(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        sizes, dtype = _batch(call), str(call.args[0].ty.dtype)
        if not sizes:
            return others(bb, call)
        if dtype not in HALVES:
            return _product(bb, call.args, sizes, call.ty)
        # Sums are float32, and rounded once.
        given = [bb.emit(relax.op.astype(x, WIDE)) for x in call.args]
        wide = relax.TensorType(call.ty.shape, WIDE)
        made = bb.emit(_product(bb, given, sizes, wide))
        return relax.op.astype(made, str(call.ty.dtype))

    return rule


def _product(
    bb: relax.BlockBuilder, operands: Sequence[relax.Expr], sizes: tuple[int, ...], ty: Any
) -> relax.Expr:
    """The kernel's call, with all axes before the last two as one."""
    m, n, k = sizes
    dtype, outer = str(ty.dtype), list(ty.shape.values)[:-2]
    func = _kernel(sizes, dtype, str(Target.current(allow_none=False)))
    count = math.prod(outer, start=1)
    flat = [
        bb.emit(relax.op.reshape(x, relax.ShapeExpr([count, *last])))
        for x, last in zip(operands, ((m, k), (k, n)), strict=True)
    ]
    out = relax.TensorType(relax.ShapeExpr([count, m, n]), dtype)
    made = bb.emit(relax.call_tir(bb.add_func(func, "products"), flat, out_ty=out))
    return relax.op.reshape(made, ty.shape)


def _batch(call: relax.Call) -> tuple[int, ...]:
    """(m, n, k) of a batch of products that the kernel is for; else ()."""
    if llvm_target() is None:
        return ()
    types = [x.ty for x in (*call.args, call)]
    if any(not isinstance(ty.shape, relax.ShapeExpr) or ty.ndim < 3 for ty in types):
        return ()
    dtypes = {str(ty.dtype) for ty in types[:2]}
    given, result = dtypes.pop(), str(types[2].dtype)
    if dtypes or not (given == result in _WIDES or (given in HALVES and result in (given, WIDE))):
        return ()
    a, b = (list(ty.shape.values) for ty in types[:2])
    if len(a) != len(b) or not all(map(structural_equal, a[:-2], b[:-2])):
        return ()
    sizes = (*a[-2:], b[-1])
    if not all(isinstance(size, tvm.tirx.IntImm) for size in sizes):
        return ()
    m, k, n = map(int, sizes)
    return (m, n, k) if m * n * k >= _PRODUCTS else ()


@lru_cache(maxsize=256)
def _kernel(sizes: tuple[int, ...], dtype: str, target: str) -> tvm.tirx.PrimFunc:
    func = batches(sizes, dtype, Target(target)).without_attr(keys.SYMBOL)
    return func.with_attr({keys.OP_PATTERN: OPAQUE, keys.SOURCE: "llvm products"})
