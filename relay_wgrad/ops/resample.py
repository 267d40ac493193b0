"""`relax.nn.resample(x, index, weight, axis)`: along one axis, sums of few elements with weights.

    y[…, p, …] = sum over t of weight[p, t] x[…, index[p, t], …]        (nothing for index -1)

Interpolation (nearest, linear, cubic, antialiased), adaptive average pooling, padding by copies of
what is inside, and any choice along an axis are this, one axis after another.  It is linear in x,
and its transpose is itself again, with another table: so no gradient needs sums into memory that
others write, and every order has one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Constant

from .. import opdef
from ..attrs import as_int
from ..dtypes import wide_of
from ..layout_rules.stock import follow_rule
from ..problem import DTYPE_BYTES
from ..relation import Checks, as_size
from .algebra import get_op, operands

Array = np.ndarray[Any, Any]
NAME = "relax.nn.resample"
OP = "resample"


def resample(x: relax.Expr, index: relax.Expr, weight: relax.Expr, axis: int) -> relax.Expr:
    """Along one axis of x, each element of the result a weighted sum of few of x's.

    Parameters
    ----------
    x : float tensor.
    index : (P, T) int32, places along the axis; -1 for none.  A constant, where gradients are
        wanted; another tensor must itself see to it that its places are x's.
    weight : (P, T) float32, float64 for x of float64; a constant likewise.
    axis : which axis, from 0.

    Returns
    -------
    relax.Expr : a call of x's type, P elements long along the axis.  Sums are in float32, or
        float64.

    Raises
    ------
    TypeError, ValueError : for an axis that is no integer, here; for types, shapes and places that
        do not fit when the call's type is inferred.
    RuntimeError : before `relay_wgrad.register()`.
    """
    operands(OP, x=x, index=index, weight=weight)
    attrs = tvm.ir.make_node("ir.DictAttrs", axis=as_int(OP, "axis", axis))
    return relax.Call(get_op(NAME), [x, index, weight], attrs=attrs)


def table_of(matrix: Array) -> tuple[Array, Array]:
    """(index, weight) of a matrix (P, H), which multiplies each column of x: its elements that
    are not 0."""
    rows, columns = np.nonzero(matrix)
    return _table(rows, columns, matrix[rows, columns], matrix.shape[0])


def transposed(index: Array, weight: Array, size: int) -> tuple[Array, Array]:
    """The table of the transpose, for x of `size` elements along the axis."""
    rows, terms = np.nonzero(index >= 0)
    return _table(index[rows, terms], rows, weight[rows, terms], size)


def _table(rows: Array, columns: Array, values: Array, count: int) -> tuple[Array, Array]:
    """The table of `count` rows with these elements, in each row by their columns."""
    order = np.lexsort((columns, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    counts = np.bincount(rows, minlength=count)
    index = np.full((count, max(int(counts.max(initial=0)), 1)), -1, "int32")
    weight = np.zeros(index.shape, values.dtype)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    index[rows, places], weight[rows, places] = columns, values
    return index, weight


def infer_type(call: relax.Call, ctx: relax.BlockBuilder) -> relax.Type:
    """(x, index, weight) -> x's type, P elements long along the axis."""
    checks = Checks(OP)
    checks.arity(call, ("x", "index", "weight"))
    axis = as_int(OP, "axis", call.attrs["axis"])
    x, index, weight = (arg.ty for arg in call.args)
    for name, ty in (("x", x), ("index", index), ("weight", weight)):
        if not isinstance(ty, relax.TensorType):
            raise TypeError(f"{OP}: {name} must be a tensor, got {ty}")
    if str(x.dtype) not in DTYPE_BYTES:
        raise TypeError(f"{OP}: x must be one of {', '.join(DTYPE_BYTES)}, got {x.dtype}")
    wide = wide_of(str(x.dtype))
    for name, ty, dtype in (("index", index, "int32"), ("weight", weight, wide)):
        if str(ty.dtype) != dtype:
            raise TypeError(f"{OP}: {name} must be {dtype} for x of {x.dtype}, got {ty.dtype}")
        if ty.ndim != 2 or not isinstance(ty.shape, relax.ShapeExpr):
            raise checks.error(f"{name} must have two known sizes, got {ty}")
    sizes = [tuple(as_size(v) for v in ty.shape.values) for ty in (index, weight)]
    if sizes[0] != sizes[1]:
        raise checks.error(f"index and weight must be of one shape, got {sizes[0]} and {sizes[1]}")
    if not 0 <= axis < x.ndim:
        raise checks.error(f"axis must be one of x's, 0 … {x.ndim - 1}, got {axis}: x {x}")
    device = checks.result_vdevice(list(call.args))
    if not isinstance(x.shape, relax.ShapeExpr):
        return relax.TensorType(dtype=x.dtype, ndim=x.ndim, vdevice=device)
    shape = list(x.shape.values)
    size = as_size(shape[axis])
    if isinstance(call.args[1], Constant) and isinstance(size, int):
        places = call.args[1].value.numpy()
        if places.size and not (places.min() >= -1 and places.max() < size):
            raise checks.error(
                f"index must be -1 … {size - 1}, got {places.min()} … {places.max()}: x {x}"
            )
    shape[axis] = index.shape.values[0]
    return relax.TensorType(shape, x.dtype, device)


def gradient(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> list[Any]:
    """The transpose; index and weight are constants."""
    x, index, weight = call.args
    axis = int(call.attrs["axis"])
    size = as_size(x.ty.shape.values[axis]) if isinstance(x.ty.shape, relax.ShapeExpr) else None
    if not isinstance(size, int) or not all(isinstance(v, Constant) for v in (index, weight)):
        raise ValueError(
            f"{OP}: no gradient but for constant index and weight and a known size along axis"
            f" {axis}, got {x.ty}"
        )
    back = transposed(index.value.numpy(), weight.value.numpy(), size)
    made = (relax.const(back[0], "int32"), relax.const(back[1], str(weight.ty.dtype)))
    return [resample(ct, *made, axis), *map(relax.op.grad.no_grad, (index, weight))]


DEF = opdef.OpDef(
    name=NAME,
    summary="along one axis, sums of few elements with weights: interpolation, uneven pooling",
    arguments=(
        ("x", "Tensor", "What is resampled."),
        ("index", "Tensor", "(P, T) places along the axis; -1: none."),
        ("weight", "Tensor", "(P, T) weights."),
    ),
    constructor=resample,
    legalizer="legalize.resample:rule",
    rules={
        opdef.INFER_TYPE: infer_type,
        opdef.GRADIENT: gradient,
        opdef.INFER_LAYOUT: follow_rule(NAME),
        opdef.PURITY: True,
        opdef.MIXED_POLICY: opdef.MIXED_NEVER,
    },
)
