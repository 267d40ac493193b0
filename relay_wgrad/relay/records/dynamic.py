"""Relay's `dyn` operators: sizes, axes and widths are arguments, whose values only the run knows.

The run computes the sizes as a small vector first, and makes variables of it (`runtime_sizes.py`).
What it can't check of a value never reads what is not the tensor's: numbers of elements are
compared, slices held within the tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax, te, tirx, topi

from ...layouts import is_permutation, to_layout
from ..types import ANY, TensorType, TupleType, Type
from . import image, nn, sort_scan  # noqa: F401  (whose attributes these have)
from .facts import FOLLOW
from .relations import broadcast
from .runtime_sizes import (
    checked,
    clamped_bound,
    length,
    number,
    numbers,
    own_sizes,
    reshaped,
    scalar,
    sizes,
    slice_bounds,
    stated,
    total,
    unknown,
)
from .shape import SHAPE
from .table import Attr, Call, Site, define, in_float32, lookup, show
from .te import choice, integer_indices, program, rank

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
    if s.tensor().dtype != s.result_type.dtype:
        fill = s.emit(R.astype(fill, s.result_type.dtype))
    return R.broadcast_to(fill, stated(s, 1))


def _filled(make: Any) -> Any:
    def build(s: Site) -> Any:
        return make(stated(s, 0), s.result_type.dtype)

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
    dtype, axis = s.result_type.dtype, s.axis(s.attrs["axis"], len(s.result_type.shape))
    (depth,) = sizes(s, 1, lambda i, k: k[()].astype("int64"), s.args[3])
    dims = s.sizes(s.tensor())

    def hot(s: Site, indices: Any, on: Any, off: Any) -> Any:
        def at(*i: Any) -> Any:
            place = (*i[:axis], *i[axis + 1 :])
            is_on = indices[place].astype("int64") == i[axis]
            return tirx.Select(is_on, on[()].astype(dtype), off[()].astype(dtype))

        return te.compute((*dims[:axis], depth, *dims[axis:]), at)

    return program(s, hot, *s.args[:3])


# ---- parts and borders ---------------------------------------------------------------------------


def _slice_type(call: Call) -> Type:
    data, count = call.tensor(), length(call, 1)
    choice(call, "slice_mode", ("end", "size"))
    if not 0 < count <= len(data.shape) or count != length(call, 2):
        call.fail(f"begin and end must be as long, and no more than the axes of {show(data)}")
    if length(call, 3) not in (1, count):
        call.fail(f"strides must be 1 or {count} integers, got {show(call.tensor(3))}")
    return TensorType((ANY,) * count + data.shape[count:], data.dtype)


def _slice(s: Site) -> Any:
    """As NumPy's: each begin and end is held within the axis."""
    count, strides = length(s, 1), length(s, 3)
    by_size = s.attrs["slice_mode"] == "size"

    def bounds(i: int, own: Any, begin: Any, end: Any, stride: Any) -> tuple[Any, Any, Any]:
        size = own[i]
        step, low, high = slice_bounds(size, stride[i if strides > 1 else 0].astype("int64"))
        first, last = begin[i].astype("int64"), end[i].astype("int64")
        if by_size:
            first = clamped_bound(first, size, low, size)
            return first, tirx.Select(last < 0, size, tirx.Min(first + last, size)), number(1)
        return clamped_bound(first, size, low, high), clamped_bound(last, size, low, high), step

    def taken(i: int, *tensors: Any) -> Any:
        first, last, step = bounds(i, *tensors)
        reach = tirx.Select(step < 0, first - last, last - first)
        step = tirx.Select(step < 0, -step, step)
        return tirx.Max(tirx.floordiv(reach + step - 1, step), number(0))

    given = (own_sizes(s), *s.args[1:])
    new = sizes(s, count, taken, *given) + s.sizes(s.tensor())[count:]
    first = numbers(s, count, lambda i, *t: bounds(i, *t)[0], *given)
    step = numbers(s, count, lambda i, *t: bounds(i, *t)[2], *given)

    def cut(s: Site, x: Any, first: Any, step: Any) -> Any:
        def at(*i: Any) -> Any:
            moved = [first[k] + i[k] * step[k] for k in range(count)]
            place = (*moved, *i[count:])
            return x[place]

        return te.compute(new, at)

    return program(s, cut, s.args[0], first, step)


def _topk_type(call: Call) -> Type:
    k = rank(call, 1, 0, 1)
    if k.shape and k.shape[0] != 1:
        call.fail(f"k must be one number, got {show(k)}")
    attrs = {**call.attrs, "k": 0}
    made = lookup("topk").relation(replace(call, types=call.types[:1], attrs=attrs))
    axis = call.axis(call.attrs["axis"], len(call.tensor().shape))

    def opened(ty: Type) -> Type:
        assert isinstance(ty, TensorType)
        return replace(ty, shape=(*ty.shape[:axis], ANY, *ty.shape[axis + 1 :]))

    return (
        TupleType(tuple(map(opened, made.fields))) if isinstance(made, TupleType) else opened(made)
    )


def _topk(s: Site) -> Any:
    """All are sorted, and the first k stay; all of them where k is below 1."""
    axis, which = s.axis(s.attrs["axis"], len(s.tensor().shape)), s.attrs["ret_type"]

    def taken(i: int, own: Any, k: Any) -> Any:
        asked, size = scalar(k).astype("int64"), own[axis]
        return tirx.Select(asked < 1, size, tirx.Min(asked, size))

    (count,) = sizes(s, 1, taken, own_sizes(s), s.args[1])
    every = R.topk(
        s.args[0], -1, axis, "both", not s.attrs["is_ascend"], s.attrs["dtype"] or "int32"
    )
    made = s.emit(every)
    dims = s.sizes(s.tensor())

    def first(s: Site, x: Any) -> Any:
        return te.compute((*dims[:axis], count, *dims[axis + 1 :]), lambda *i: x[i])

    parts = [program(s, first, s.emit(relax.TupleGetItem(made, i))) for i in range(2)]
    if which == "both":
        return relax.Tuple([s.emit(part) for part in parts])
    return parts[which == "indices"]


def _pad_type(call: Call) -> Type:
    data, widths = call.tensor(), rank(call, 1, 2)
    integer_indices(call, 1)
    rank(call, 2, 0)
    choice(call, "pad_mode", ("constant",))
    if widths.shape != (len(data.shape), 2):
        call.fail(f"pad_width must be ({len(data.shape)}, 2), got {show(widths)}")
    return unknown(len(data.shape), data.dtype)


def _pad(s: Site) -> Any:
    """Widths below zero cut, as those that are known do."""
    dims, dtype = s.sizes(s.tensor()), s.tensor().dtype

    def grown(i: int, own: Any, widths: Any) -> Any:
        return own[i] + widths[i, 0].astype("int64") + widths[i, 1].astype("int64")

    new = sizes(s, len(dims), grown, own_sizes(s), s.args[1])

    def padded(s: Site, x: Any, widths: Any, value: Any) -> Any:
        def at(*i: Any) -> Any:
            moved = [j - widths[k, 0].astype("int64") for k, j in enumerate(i)]
            inside = [test for j, n in zip(moved, x.shape, strict=True) for test in (j >= 0, j < n)]
            return tirx.if_then_else(tirx.all(*inside), x[tuple(moved)], value[()].astype(dtype))

        return te.compute(new, at)

    return program(s, padded, *s.args)


# ---- images --------------------------------------------------------------------------------------


def _image_type(canonical: str) -> Any:
    def relation(call: Call) -> Type:
        data, layout = rank(call, 0, len(canonical)), str(call.attrs["layout"])
        if not is_permutation(layout, canonical):
            call.fail(f"layout must have the letters {canonical}, got {layout!r}")
        n, c, *_ = to_layout(data.shape, layout, canonical)
        shape = (n, c, *(ANY for _ in canonical[2:]))
        dtype = call.attrs.get("out_dtype") or data.dtype
        return TensorType(to_layout(shape, canonical, layout), dtype)

    return relation


def _resize(s: Site) -> Any:
    if s.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        s.fail("takes no region that only the run knows")
    return _resized(s, stated(s, 1), s.attrs)


def _resized(s: Site, size: list[Any], a: Any) -> Any:
    make = topi.image.resize3d if len(size) == 3 else topi.image.resize2d

    def resized(s: Site, data: Any) -> Any:
        return make(
            data, [0.0] * (2 * len(size)), size, a["layout"], a["method"],
            a["coordinate_transformation_mode"], a["rounding_method"], a["cubic_alpha"],
            a["cubic_exclude"], a.get("extrapolation_value", 0.0), s.tensor().dtype,
        )  # fmt: skip

    return program(s, resized, s.args[0])


def _upsampling(canonical: str) -> Any:
    def build(s: Site) -> Any:
        a, layout = s.attrs, str(s.attrs["layout"])
        places = [layout.index(letter) for letter in canonical[2:]]

        def scaled(i: int, own: Any, *scales: Any) -> Any:
            times = own[places[i]].astype("float64") * scalar(scales[i]).astype("float64")
            return te.floor(times + 0.5).astype("int64")

        size = sizes(s, len(places), scaled, own_sizes(s), *s.args[1:])
        mode = "align_corners" if a.get("align_corners") else "asymmetric"
        method = "linear" if a["method"].endswith("linear") else a["method"]
        return _resized(s, size, {
            "layout": layout, "method": method, "rounding_method": "", "cubic_alpha": -0.5,
            "coordinate_transformation_mode": a.get("coordinate_transformation_mode", mode),
            "cubic_exclude": 0,
        })  # fmt: skip

    return in_float32(build)


def _copied(name: str, *without: str) -> tuple[Attr, ...]:
    """The attributes of the operator of known sizes."""
    return tuple(attr for attr in lookup(name).attrs if attr.name not in without)


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
define("dyn.strided_slice", "data begin end strides", _slice_type, _slice, "numpy",
       Attr("slice_mode", "end", "str"),
       precision=FOLLOW)  # fmt: skip
define("dyn.topk", "data k", _topk_type, _topk, "numpy", *_copied("topk", "k"))
define("dyn.nn.pad", "data pad_width pad_value", _pad_type, _pad, "numpy",
       Attr("pad_mode", "constant", "str"))  # fmt: skip
define("dyn.image.resize2d", "data size roi", _image_type("NCHW"), in_float32(_resize), "torch",
       *_copied("image.resize2d", "size", "roi"))  # fmt: skip
define("dyn.nn.upsampling", "data scale_h scale_w", _image_type("NCHW"), _upsampling("NCHW"),
       "torch", *_copied("nn.upsampling", "scale_h", "scale_w"))  # fmt: skip
define("dyn.nn.upsampling3d", "data scale_d scale_h scale_w", _image_type("NCDHW"),
       _upsampling("NCDHW"), "torch",
       *_copied("nn.upsampling3d", "scale_d", "scale_h", "scale_w"))  # fmt: skip
