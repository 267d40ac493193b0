"""Layers: products of matrices, activations, dropout, upsampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ...pipeline.fold_constant import LARGEST, is_worth
from ..dims import rounded_product
from ..types import ANY, Dim, TensorType, TupleType, Type
from . import relations
from .facts import (
    ALWAYS,
    BROADCAST,
    ELEMWISE,
    FOLLOW,
    INJECTIVE,
    NEVER,
    OPAQUE,
    OUT_ELEMWISE_FUSABLE,
    image_roles,
)
from .relations import agree, mapped
from .table import REQUIRED, Attr, Call, Site, define, lookup, show
from .te import choice
from .windows import rank_of, spatial_axes

R = relax.op


def broadcast_along(s: Site, vector: Any, axis: int, ndim: int) -> Any:
    """A vector with axes of size 1 around it, to broadcast along `axis`."""
    others = [i for i in range(ndim) if i != axis]
    return s.emit(R.expand_dims(vector, others)) if others else vector


def _bias_axis(call: Call) -> int:
    data, axis = call.tensor(), call.attrs["axis"]
    if not -len(data.shape) <= axis < len(data.shape):
        call.fail(
            "The axis in bias_add must be in range for the shape;"
            f" attempted to access index {axis} of {show(data)}"
        )
    return int(axis % len(data.shape))


def _bias_add_type(call: Call) -> Type:
    data, axis = call.tensor(), _bias_axis(call)
    call.must_be(1, TensorType((data.shape[axis],), data.dtype), f"for {show(data)}, axis={axis}")
    return data


def _bias_add(s: Site) -> Any:
    return R.add(s.args[0], broadcast_along(s, s.args[1], _bias_axis(s), len(s.tensor().shape)))


def _product_type(call: Call, transpose_a: bool, transpose_b: bool) -> Type:
    """(…, M, K) by (K, N), either with its last two axes swapped."""
    a, b = call.tensor(0), call.tensor(1)
    least = 2 if transpose_a else 1
    if len(a.shape) < least or len(b.shape) != 2:
        call.fail(
            f"{call.inputs[0]} must have at least {least} axes and {call.inputs[1]} 2,"
            f" got {show(a)} and {show(b)}"
        )
    k, n = b.shape[::-1] if transpose_b else b.shape
    units = call.attrs["units"]
    if units is not None and not agree(units, n):
        call.fail(f"units={units} must be the {call.inputs[1]}'s {n}: {show(b)}")
    shape = list(a.shape)
    reduced = shape.pop(-2) if transpose_a else shape.pop()
    if not agree(reduced, k):
        call.fail(f"the axes to sum over must match, got {reduced} of {show(a)}, {k} of {show(b)}")
    dtype = call.attrs["out_dtype"]
    if dtype is None:
        dtype = call.same_dtype(0, 1)
    return TensorType((*shape, n if units is None else units), dtype)


def _dense_type(call: Call) -> Type:
    return _product_type(call, False, True)


def _matmul_type(call: Call) -> Type:
    return _product_type(call, call.attrs["transpose_a"], call.attrs["transpose_b"])


def _batch_matmul_type(call: Call) -> Type:
    x, y = call.tensor(0), call.tensor(1)
    if len(x.shape) != 3 or len(y.shape) != 3:
        call.fail(f"x and y must have 3 axes, got {show(x)} and {show(y)}")
    xb, xi, xk = x.shape if not call.attrs["transpose_a"] else (x.shape[0], *x.shape[:0:-1])
    yb, yk, yj = y.shape if not call.attrs["transpose_b"] else (y.shape[0], *y.shape[:0:-1])
    if not agree(xb, yb) and 1 not in (xb, yb):
        call.fail(f"BatchDot: batch dimensions don't match, x shape={show(x)}, y shape={show(y)}")
    if not agree(xk, yk):
        call.fail(
            f"BatchDot: shapes of x and y is inconsistent, x shape={show(x)}, y shape={show(y)}"
        )
    dtype = call.attrs["out_dtype"]
    if dtype is None:
        dtype = call.same_dtype(0, 1)
    batch: Dim = ANY
    if xb is not ANY and yb is not ANY:
        # Of two that nothing tells apart, the number.
        batch = yb if xb == 1 or (isinstance(yb, int) and yb != 1) else xb
    return TensorType((batch, xi, yj), dtype)


def _swapped(s: Site, x: Any, ndim: int, swap: bool) -> Any:
    """The last two axes swapped."""
    axes = [*range(ndim - 2), ndim - 1, ndim - 2]
    return s.emit(R.permute_dims(x, axes)) if swap else x


def _matmul(s: Site, transpose_a: bool, transpose_b: bool) -> Any:
    a = _swapped(s, s.args[0], len(s.tensor(0).shape), transpose_a)
    b = _swapped(s, s.args[1], len(s.tensor(1).shape), transpose_b)
    return R.matmul(a, b, s.attrs["out_dtype"])


def _leaky_relu(s: Site) -> Any:
    """x where x > 0, else alpha times x."""
    x = s.args[0]
    low = s.emit(R.multiply(x, s.const(s.attrs["alpha"])))
    return R.where(s.emit(R.greater(x, s.const(0.0))), x, low)


def _prelu_type(call: Call) -> Type:
    data = call.tensor()
    axis = call.attrs["axis"]
    if not 0 <= axis < len(data.shape):
        call.fail(f"Wrong axis ({axis})value, for {show(data)}.")
    call.must_be(1, TensorType((data.shape[axis],), data.dtype), f"for {show(data)}, axis={axis}")
    return data


def _prelu(s: Site) -> Any:
    x = s.args[0]
    alpha = broadcast_along(s, s.args[1], s.attrs["axis"], len(s.tensor().shape))
    low = s.emit(R.multiply(x, alpha))
    return R.where(s.emit(R.greater(x, s.const(0.0))), x, low)


def _softmax_type(call: Call) -> Type:
    call.axis(call.attrs["axis"], len(call.tensor().shape))
    return call.tensor()


def _dropout_type(call: Call) -> Type:
    if not 0 <= call.attrs["rate"] <= 1:
        call.fail(f"rate must be in [0, 1], got {call.attrs['rate']}")
    return TupleType((call.tensor(), call.tensor()))


def _dropout(s: Site) -> Any:
    """As Relay runs it: the identity, and a mask of ones."""
    return relax.Tuple([s.args[0], s.emit(R.ones_like(s.args[0]))])


_SCALES = ("scale_d", "scale_h", "scale_w")
_METHODS = {2: ("nearest_neighbor", "bilinear"), 3: ("nearest_neighbor", "trilinear")}


def _upsampling_type(call: Call) -> Type:
    data, a, rank = call.tensor(), call.attrs, rank_of(call.op)
    shape = list(data.shape)
    choice(call, "method", _METHODS[rank])
    if rank == 3:
        modes = ("half_pixel", "align_corners", "asymmetric")
        choice(call, "coordinate_transformation_mode", modes)
    for axis, name in zip(spatial_axes(call, a["layout"], rank), _SCALES[-rank:], strict=True):
        if not 0 < a[name] < float("inf"):
            call.fail(f"{name} must be positive and finite, got {a[name]}")
        # Halves go away from zero.
        shape[axis] = mapped(shape[axis], lambda n, f=a[name]: rounded_product(n, f))  # type: ignore[misc]
    return TensorType(tuple(shape), data.dtype)


def resize_matrix(size: int, out: int, linear: bool, align: bool) -> Any:
    """(out, size): each row has the weights of the pixels that a new one is made of.

    Raises ValueError for a matrix that is too large for a constant.
    """
    count = 8 * size * out
    if not is_worth(count, 0):
        raise ValueError(
            f"nn.upsampling: from {size} to {out} pixels takes a matrix of {count:,} bytes, more"
            f" than {LARGEST:,}"
        )
    step = (size - 1) / (out - 1 if out > 1 else 1) if align else size / out
    at = np.arange(out) * step
    low = np.floor(at + (0 if linear else 1e-5)).astype(int)
    part = at - low if linear else np.zeros(out)
    matrix, rows = np.zeros((out, size)), np.arange(out)
    matrix[rows, np.clip(low, 0, size - 1)] += 1 - part
    matrix[rows, np.clip(low + 1, 0, size - 1)] += part
    return matrix


def _upsampling(s: Site) -> Any:
    """Along H, then W: whole factors of the nearest pixel by broadcasting, else by a matrix."""
    x, a = s.args[0], s.attrs
    dims, outs, sizes = s.tensor().shape, s.result_type.shape, s.sizes(s.tensor())
    linear, align = a["method"] == "bilinear", a["align_corners"]
    for axis, name in zip(spatial_axes(s, a["layout"]), _SCALES[-2:], strict=True):
        size, out = dims[axis], outs[axis]
        if size == out:
            continue
        times = out // size if isinstance(out, int) and isinstance(size, int) else int(a[name])
        whole = size * times == out  # type: ignore[operator]
        sizes[axis] = s.sizes(s.out)[axis]
        if not linear and not align and whole:
            wide = [*sizes[:axis], s.sizes(s.tensor())[axis], times, *sizes[axis + 1 :]]
            x = s.emit(R.broadcast_to(s.emit(R.expand_dims(x, axis + 1)), wide))
            x = s.emit(R.reshape(x, sizes))
            continue
        if not isinstance(size, int) or not isinstance(out, int):
            s.fail(
                f"only the nearest pixel by whole factors, with sizes that only the run knows,"
                f" got {a['method']} of {show(s.tensor())}"
            )
        matrix = relax.const(resize_matrix(size, out, linear, align).T, s.tensor().dtype)
        x = _times_matrix(s, x, axis, len(sizes), matrix)
    return x


def _times_matrix(s: Site, x: Any, axis: int, ndim: int, matrix: Any) -> Any:
    """x times a constant matrix along an axis."""
    order: Sequence[int] = [*(i for i in range(ndim) if i != axis), axis]
    back = [order.index(i) for i in range(ndim)]
    if axis != ndim - 1:
        x = s.emit(R.permute_dims(x, order))
    x = s.emit(R.matmul(x, matrix))
    return s.emit(R.permute_dims(x, back)) if axis != ndim - 1 else x


def as_resize(call: Call, out: Type) -> dict[str, Any]:
    """The attributes of `image.resize3d` that does the same as an upsampling of volumes."""
    a, axes = call.attrs, spatial_axes(call, call.attrs["layout"], 3)
    assert isinstance(out, TensorType)
    sizes = [out.shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        call.fail(f"cannot be built with unknown sizes, got {show(call.tensor())}")
    return lookup("image.resize3d").read({
        "size": sizes, "roi": (0.0,) * 6, "layout": a["layout"],
        "method": a["method"].removeprefix("tri"),
        "coordinate_transformation_mode": a["coordinate_transformation_mode"],
        "rounding_method": "",
    })  # fmt: skip


def _upsampling_of_volumes(s: Site) -> Any:
    return lookup("image.resize3d").builder(replace(s, attrs=as_resize(s, s.out)))


UNITS = Attr("units", None, "int?", always=True)
OUT_DTYPE = Attr("out_dtype", None, "dtype", asked="")
TRANSPOSE = (Attr("transpose_a", False, "bool"), Attr("transpose_b", False, "bool"))

define("nn.bias_add", "data bias", _bias_add_type, _bias_add, "relay", Attr("axis", 1, "int"),
       kind=BROADCAST, level=1, precision=FOLLOW,
       doc="`data` plus one number for each index along `axis`.")  # fmt: skip
define("nn.dense", "data weight", _dense_type, lambda s: _matmul(s, False, True), "relay",
       UNITS, OUT_DTYPE,
       kind=OUT_ELEMWISE_FUSABLE, level=1, precision=ALWAYS,
       doc="data · weightᵀ: (…, in) and (units, in) to (…, units).")  # fmt: skip
define("nn.matmul", "tensor_a tensor_b", _matmul_type,
       lambda s: _matmul(s, s.attrs["transpose_a"], s.attrs["transpose_b"]), "numpy",
       UNITS, OUT_DTYPE, *TRANSPOSE,
       kind=OUT_ELEMWISE_FUSABLE, level=1)  # fmt: skip
define("nn.batch_matmul", "tensor_a tensor_b", _batch_matmul_type,
       lambda s: _matmul(s, s.attrs["transpose_a"], s.attrs["transpose_b"]), "numpy",
       OUT_DTYPE, *TRANSPOSE,
       kind=OUT_ELEMWISE_FUSABLE, level=10, precision=ALWAYS,
       signature="tensor_a, tensor_b, out_dtype, transpose_a, transpose_b=True",
       doc="A product of matrices for each index of the first axis; b is transposed by "
           "default.")  # fmt: skip
define("nn.leaky_relu", "data", relations.identity, _leaky_relu, "torch",
       Attr("alpha", 0.25, "float", asked=0.01),
       kind=ELEMWISE, level=3, precision=FOLLOW, operands=1,
       doc="Each element, `alpha` times as large where it is negative.")  # fmt: skip
define("nn.prelu", "data alpha", _prelu_type, _prelu, "torch", Attr("axis", 1, "int"),
       kind=BROADCAST, level=3, precision=FOLLOW,
       doc="`leaky_relu` with one `alpha` for each index along `axis`.")  # fmt: skip
define("nn.softmax", "data", _softmax_type, lambda s: R.nn.softmax(s.args[0], s.attrs["axis"]),
       "relay", Attr("axis", -1, "int"),
       kind=OUT_ELEMWISE_FUSABLE, level=1, precision=NEVER,
       doc="exp(data) over its sum along `axis`.")  # fmt: skip
define("nn.log_softmax", "data", _softmax_type,
       lambda s: R.nn.log_softmax(s.args[0], s.attrs["axis"]), "torch",
       Attr("axis", -1, "int"),
       kind=OUT_ELEMWISE_FUSABLE, level=1,
       doc="The logarithm of `softmax`.")  # fmt: skip
define("nn.dropout", "data", _dropout_type, _dropout, "numpy", Attr("rate", 0.5, "float"),
       kind=OPAQUE, level=1, precision=FOLLOW, stateful=True)  # fmt: skip
define("nn.upsampling", "data", _upsampling_type, _upsampling, "torch",
       *(Attr(name, REQUIRED, "float", asked=1) for name in _SCALES[1:]),
       Attr("layout", "NCHW", "str"), Attr("method", "nearest_neighbor", "str"),
       Attr("align_corners", False, "bool"),
       kind=INJECTIVE, level=2, roles=image_roles(),
       doc="Height and width times a factor.")  # fmt: skip
define("nn.upsampling3d", "data", _upsampling_type, _upsampling_of_volumes, "torch",
       *(Attr(name, REQUIRED, "float", asked=1) for name in _SCALES),
       Attr("layout", "NCDHW", "str"), Attr("method", "nearest_neighbor", "str"),
       Attr("coordinate_transformation_mode", "half_pixel", "str"),
       kind=INJECTIVE, level=2,
       doc="Depth, height and width times a factor; `method` is nearest_neighbor or "
           "trilinear.")  # fmt: skip
