"""Relay's `dyn` operators: sizes, axes and widths are arguments, whose values only the run knows.

The run computes the sizes as a small vector first, and makes variables of it (`runtime_sizes.py`).
What it can't check of a value never reads what is not the tensor's: numbers of elements are
compared, slices held within the tensor.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ..types import ANY, TensorType, Type
from .facts import FOLLOW
from .relations import broadcast
from .runtime_sizes import (
    checked,
    length,
    number,
    own_sizes,
    reshaped,
    scalar,
    sizes,
    stated,
    total,
    unknown,
)
from .shape import SHAPE
from .table import Attr, Call, Site, define, show
from .te import integer_indices, program, rank

R = relax.op
_LEFT = -1  # codes of `newshape`: what is left
_PRODUCT = -3  # the product of the next two


def _of_shape(index: int) -> Any:
    """The relation of what has the shape that an argument says."""

    def relation(call: Call) -> Type:
        dtype = call.attrs.get("dtype") or call.tensor(0).dtype
        return unknown(length(call, index), dtype)

    return relation


# ---- reshapes ------------------------------------------------------------------------------------


def _reshape(s: Site) -> Any:
    """Codes n, 0, -1 and -3; any other is a negative size, which the run refuses."""
    count, ndim = length(s, 1), len(s.tensor().shape)

    def at(vector: Any, place: Any) -> Any:
        out = number(1)
        for i in range(ndim):
            out = tirx.Select(place == i, vector[i].astype("int64"), out)
        return out

    def one(i: int, codes: Any, own: Any) -> Any:
        code = [codes[k].astype("int64") for k in range(count)]
        place, made, known = number(0), [], number(1)
        for c in code:
            pair = at(own, place) * at(own, place + 1)
            size = tirx.Select(c == 0, at(own, place), tirx.Select(c == _PRODUCT, pair, c))
            made.append(size)
            known = known * tirx.Select(c == _LEFT, number(1), size)
            place = place + tirx.Select(c == _PRODUCT, number(2), number(1))
        whole = number(1)
        for k in range(ndim):
            whole = whole * own[k].astype("int64")
        rest = tirx.floordiv(whole, tirx.Max(known, number(1)))
        return tirx.Select(code[i] == _LEFT, rest, made[i])

    new = sizes(s, count, one, s.args[1], own_sizes(s))
    return reshaped(s, s.args[0], s.sizes(s.tensor()), new)


def _expand_dims_type(call: Call) -> Type:
    data, axis = call.tensor(), rank(call, 1, 0, 1)
    integer_indices(call, 1)
    if call.attrs["num_newaxis"] < 0 or (axis.shape and axis.shape[0] != 1):
        call.fail(f"takes one axis and num_newaxis >= 0, got {show(axis)}")
    return unknown(len(data.shape) + call.attrs["num_newaxis"], data.dtype)


def _expand_dims(s: Site) -> Any:
    ndim, more = len(s.tensor().shape), s.attrs["num_newaxis"]

    def one(i: int, own: Any, axis: Any) -> Any:
        given = scalar(axis).astype("int64")
        at = tirx.Select(given < 0, given + ndim + 1, given)
        before = own[i] if i < ndim else number(1)
        after = own[i - more] if i >= more else number(1)
        return tirx.Select(at > i, before, tirx.Select(at + more > i, number(1), after))

    new = sizes(s, ndim + more, one, own_sizes(s), s.args[1])
    return reshaped(s, s.args[0], s.sizes(s.tensor()), new)


def _squeeze_type(call: Call) -> Type:
    data, count = call.tensor(), length(call, 1)
    if count > len(data.shape):
        call.fail(f"{count} axes of {show(data)}")
    return unknown(len(data.shape) - count, data.dtype)


def _squeeze(s: Site) -> Any:
    """The i-th of the axes that stay; each that goes must have been 1."""
    ndim, count = len(s.tensor().shape), length(s, 1)

    def one(i: int, own: Any, axes: Any) -> Any:
        out, place = number(-1), number(0)
        for k in range(ndim):
            goes: Any = tirx.const(False, "bool")
            for j in range(count):
                axis = axes[j].astype("int64")
                goes = tirx.any(goes, axis == k, axis == k - ndim)
            here = tirx.all(tirx.Not(goes), place == i)
            out = tirx.Select(here, own[k], out)
            place = place + tirx.Select(goes, number(0), number(1))
        return out

    new = sizes(s, ndim - count, one, own_sizes(s), s.args[1])
    return reshaped(s, s.args[0], s.sizes(s.tensor()), new)


# ---- repetition ----------------------------------------------------------------------------------


def _broadcast_to_type(call: Call) -> Type:
    made, data = _of_shape(1)(call), call.tensor()
    if len(data.shape) > len(made.shape):
        call.fail(f"{show(data)} does not broadcast to {len(made.shape)} axes")
    broadcast(call, data, made, data.dtype)
    return made


def _broadcast_to(s: Site) -> Any:
    """Sizes other than 1 must be those that are asked for."""
    new, dims = stated(s, 1), s.sizes(s.tensor())
    ahead = len(new) - len(dims)

    def fits(i: int, own: Any, asked: Any) -> Any:
        out = tirx.const(True, "bool")
        for k in range(len(dims)):
            same = own[k] == asked[ahead + k].astype("int64")
            out = tirx.all(out, tirx.any(own[k] == 1, same))
        return out

    own = own_sizes(s)
    x = checked(s, s.args[0], dims, fits, own, s.args[1])

    def repeated(s: Site, x: Any, own: Any) -> Any:
        def at(*i: Any) -> Any:
            place = [tirx.Select(own[k] == 1, number(0), j) for k, j in enumerate(i[ahead:])]
            return x[tuple(place)]

        return te.compute(new, at)

    return program(s, repeated, x, own)


def _tile_type(call: Call) -> Type:
    data = call.tensor()
    return unknown(max(len(data.shape), length(call, 1, integers=False)), data.dtype)


def _tile(s: Site) -> Any:
    """Each axis as two, of which the outer is broadcast."""
    reps, dims = stated(s, 1, integers=False), s.sizes(s.tensor())
    ndim = max(len(reps), len(dims))
    dims = [1] * (ndim - len(dims)) + dims
    reps = [1] * (ndim - len(reps)) + reps
    x = s.emit(R.reshape(s.args[0], [d for size in dims for d in (1, size)]))
    wide = [d for rep, size in zip(reps, dims, strict=True) for d in (rep, size)]
    x = s.emit(R.broadcast_to(x, wide))
    return R.reshape(x, [total(pair) for pair in zip(reps, dims, strict=True)])


# ---- new tensors ---------------------------------------------------------------------------------


def _full(s: Site) -> Any:
    fill = s.args[0]
    if s.tensor().dtype != s.made.dtype:
        fill = s.emit(R.astype(fill, s.made.dtype))
    return R.broadcast_to(fill, stated(s, 1))


def _filled(make: Any) -> Any:
    def build(s: Site) -> Any:
        return make(stated(s, 0), s.made.dtype)

    return build


def _one_hot_type(call: Call) -> Type:
    indices = call.tensor()
    integer_indices(call, 0, 3)
    for index in (1, 2, 3):
        rank(call, index, 0)
    axis = call.axis(call.attrs["axis"], len(indices.shape) + 1)
    dtype = call.attrs["dtype"] or call.same_dtype(1, 2)
    return TensorType((*indices.shape[:axis], ANY, *indices.shape[axis:]), dtype)


def _one_hot(s: Site) -> Any:
    dtype, axis = s.made.dtype, s.axis(s.attrs["axis"], len(s.made.shape))
    (depth,) = sizes(s, 1, lambda i, k: k[()].astype("int64"), s.args[3])
    dims = s.sizes(s.tensor())

    def hot(s: Site, indices: Any, on: Any, off: Any) -> Any:
        def at(*i: Any) -> Any:
            place = (*i[:axis], *i[axis + 1 :])
            is_on = indices[place].astype("int64") == i[axis]
            return tirx.Select(is_on, on[()].astype(dtype), off[()].astype(dtype))

        return te.compute((*dims[:axis], depth, *dims[axis:]), at)

    return program(s, hot, *s.args[:3])


define("dyn.reshape", "data newshape", _of_shape(1), _reshape, "numpy",
       Attr("newshape", (), "ints"), Attr("allowzero", False, "bool"),
       precision=FOLLOW)  # fmt: skip
define("dyn.expand_dims", "data axis", _expand_dims_type, _expand_dims, "numpy",
       Attr("num_newaxis", 1, "int"))  # fmt: skip
define("dyn.squeeze", "data axis", _squeeze_type, _squeeze, "numpy")
define("dyn.broadcast_to", "data shape", _broadcast_to_type, _broadcast_to, "numpy", *SHAPE,
       precision=FOLLOW)  # fmt: skip
define("dyn.tile", "data reps", _tile_type, _tile, "numpy", precision=FOLLOW)
define("dyn.full", "fill_value shape", _of_shape(1), _full, "numpy", *SHAPE, precision=FOLLOW)
define("dyn.zeros", "shape", _of_shape(0), _filled(R.zeros), "numpy", *SHAPE)
define("dyn.ones", "shape", _of_shape(0), _filled(R.ones), "numpy", *SHAPE)
define("dyn.one_hot", "indices on_value off_value depth", _one_hot_type, _one_hot, "numpy",
       Attr("axis", -1, "int"), Attr("dtype", None, "dtype"))  # fmt: skip
