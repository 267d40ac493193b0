"""Operators that move elements without changing them: shapes, axes, layouts, broadcasts, joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax

from ..dims import same
from ..types import ANY, Dim, TensorType, Type
from . import relations
from .blocked_layouts import Axes, parse_layout, relayout, split_sizes, whole_sizes
from .facts import BROADCAST, COMM_REDUCE, FOLLOW, INJECTIVE
from .relations import agree, mapped, product
from .reshapes import new_shape
from .runtime_sizes import reshaped
from .table import REQUIRED, Attr, Call, Site, define, show, show_shape

R = relax.op


def _to_out(s: Site) -> Any:
    """A reshape to the result's type."""
    return s.reshape(s.args[0], s.result_type.shape)


def _reshape_type(call: Call) -> Type:
    data = call.tensor()
    return TensorType(new_shape(call, data.shape), data.dtype)


def _reverse_reshape_type(call: Call) -> Type:
    """As `reshape`, from the last axis to the first."""
    data = call.tensor()
    attrs = {"newshape": tuple(reversed(call.attrs["newshape"])), "allowzero": False}
    made = new_shape(replace(call, attrs=attrs), data.shape[::-1])
    return TensorType(made[::-1], data.dtype)


def _reshape_like_type(call: Call) -> Type:
    """Axes [lhs_begin, lhs_end) of data become axes [rhs_begin, rhs_end) of the other."""
    lhs, rhs = call.tensor(0), call.tensor(1)
    bounds = []
    for side, shape in (("lhs", lhs.shape), ("rhs", rhs.shape)):
        for end in ("begin", "end"):
            value, ndim = call.attrs[f"{side}_{end}"], len(shape)
            value = ndim if value is None else value
            if not -ndim <= value <= ndim:
                call.fail(f"{side}_{end} must be in [-ndim, ndim], got {value} and ndim={ndim}")
            bounds.append(value + ndim if value < 0 else value)
    a, b, c, d = bounds
    out = lhs.shape[:a] + rhs.shape[c:d] + lhs.shape[b:]
    before, after = product(lhs.shape), product(out)
    if isinstance(before, int) and isinstance(after, int) and before != after:
        call.fail(
            f"Reshape inputs size should be compatible, but found data_shape"
            f" {show_shape(lhs.shape)} not same as output_shape {show_shape(out)}"
        )
    return TensorType(out, lhs.dtype)


def _reshape_like(s: Site) -> Any:
    """The run compares the numbers of elements where they are not proved to be one."""
    if same(product(s.tensor().shape), product(s.result_type.shape)):
        return _to_out(s)
    return reshaped(s, s.args[0], s.sizes(s.tensor()), s.sizes(s.out))


def _batch_flatten_type(call: Call) -> Type:
    data = call.tensor()
    if not data.shape:
        call.fail("data must have at least one axis, got a scalar")
    return TensorType((data.shape[0], product(data.shape[1:])), data.dtype)


def _axes(call: Call) -> list[int]:
    """transpose's axes, all of them, non-negative."""
    ndim, axes = len(call.tensor().shape), call.attrs["axes"]
    if axes is None:
        return list(range(ndim))[::-1]
    if len(axes) != ndim:
        call.fail(f"Dimension mismatch: axes has {len(axes)} elements, but data.ndim = {ndim}")
    out = []
    for axis in axes:
        if not -ndim <= axis < ndim:
            call.fail(
                "transpose only allows each `axis` in `axes` in range [-data.ndim, data.ndim),"
                f" but got axis = {axis}, and data.ndim = {ndim}"
            )
        if axis % ndim in out:
            call.fail(f"Duplicate axes in transpose: {axis % ndim}")
        out.append(axis % ndim)
    return out


def _transpose_type(call: Call) -> Type:
    data = call.tensor()
    return TensorType(tuple(data.shape[i] for i in _axes(call)), data.dtype)


def _transpose(s: Site) -> Any:
    return R.permute_dims(s.args[0], _axes(s))


def _expand_dims_type(call: Call) -> Type:
    data, axis, count = call.tensor(), call.attrs["axis"], call.attrs["num_newaxis"]
    ndim = len(data.shape)
    if count < 0:
        call.fail(f"expand_dims only accepts `num_newaxis >= 0`, but got num_newaxis = {count}")
    if not -ndim - 1 <= axis <= ndim:
        call.fail(
            "expand_dims only accepts `axis` in [-data.ndim - 1, data.ndim], but got axis ="
            f" {axis}, and data.ndim = {ndim}"
        )
    at = axis + ndim + 1 if axis < 0 else axis
    return TensorType(data.shape[:at] + (1,) * count + data.shape[at:], data.dtype)


def _expand_dims(s: Site) -> Any:
    ndim, axis, count = len(s.tensor().shape), s.attrs["axis"], s.attrs["num_newaxis"]
    at = axis + ndim + 1 if axis < 0 else axis
    return R.expand_dims(s.args[0], list(range(at, at + count))) if count else s.args[0]


def _squeezed(call: Call) -> list[int]:
    """squeeze's axes, non-negative."""
    shape, given = call.tensor().shape, call.attrs["axis"]
    if given is None:
        if any(not isinstance(d, int) for d in shape):
            call.fail(f"axis needs to be defined for dynamic input, got {show(call.tensor())}")
        return [i for i, d in enumerate(shape) if d == 1]
    axes = [call.axis(axis, len(shape)) for axis in given]
    for axis in axes:
        if not agree(shape[axis], 1):
            call.fail(
                "cannot squeeze axis with dimension not equal to 1: axis"
                f" {axis} of {show(call.tensor())}"
            )
    return axes


def _squeeze_type(call: Call) -> Type:
    data, axes = call.tensor(), _squeezed(call)
    return TensorType(tuple(d for i, d in enumerate(data.shape) if i not in axes), data.dtype)


def _squeeze(s: Site) -> Any:
    axes = _squeezed(s)
    return R.squeeze(s.args[0], axes) if axes else s.args[0]


def _broadcast_to_type(call: Call) -> Type:
    data, shape = call.tensor(), relations.target(call).shape
    return _must_broadcast(call, data, TensorType(shape, data.dtype))


def _broadcast_to_like_type(call: Call) -> Type:
    call.same_dtype(0, 1)
    return _must_broadcast(call, call.tensor(0), call.tensor(1))


def _must_broadcast(call: Call, small: TensorType, large: TensorType) -> TensorType:
    """`large`, to which `small` must broadcast."""
    both = relations.broadcast(call, small, large, large.dtype)
    if len(both.shape) != len(large.shape) or not all(map(agree, both.shape, large.shape)):
        call.fail(f"{show(small)} does not broadcast to {show_shape(large.shape)}")
    return large


def _broadcast_to(s: Site) -> Any:
    return R.broadcast_to(s.args[0], s.sizes(s.out))


def _broadcast_to_like(s: Site) -> Any:
    return R.broadcast_to(s.args[0], s.shape(1))


def _collapse_like_type(call: Call) -> Type:
    call.same_dtype(0, 1)
    return _must_broadcast_back(call, call.tensor(1))


def _collapse_to_type(call: Call) -> Type:
    """The second argument holds the shape as data; the attribute says it ahead of the run."""
    data, shape, given = call.tensor(0), call.tensor(1), call.attrs["shape"]
    if len(shape.shape) != 1 or shape.shape[0] is ANY:
        call.fail(f"Parameter must have static rank, got {show(shape)}")
    if given is None:
        assert isinstance(shape.shape[0], int)
        given = (ANY,) * shape.shape[0]
    elif len(given) != shape.shape[0]:
        call.fail(f"shape={list(given)} and its argument {show(shape)} differ in length")
    return _must_broadcast_back(call, TensorType(tuple(given), data.dtype))


def _must_broadcast_back(call: Call, small: TensorType) -> TensorType:
    """`small`, which must broadcast to the data whose sums it holds."""
    _must_broadcast(call, small, call.tensor(0))
    return small


def _collapse(s: Site) -> Any:
    if s.result_type.shape == s.tensor().shape and ANY not in s.result_type.shape:
        return s.args[0]
    if s.op == "collapse_sum_like":
        return R.collapse_sum_to(s.args[0], s.shape(1))
    return R.collapse_sum_to(s.args[0], s.sizes(s.out))


def _reps(call: Call) -> tuple[tuple[Dim, ...], tuple[int, ...]]:
    """tile's sizes and repetitions, padded with 1 at the left to one length."""
    shape, reps = call.tensor().shape, call.attrs["reps"]
    for rep in reps:
        if rep < 1:
            call.fail(f"Tile reps value should always be larger than 0, but get: {rep}")
    ndim = max(len(shape), len(reps))
    return (1,) * (ndim - len(shape)) + shape, (1,) * (ndim - len(reps)) + reps


def _tile_type(call: Call) -> Type:
    return TensorType(tuple(map(_times, *_reps(call))), call.tensor().dtype)


def _times(size: Dim, count: int) -> Dim:
    return mapped(size, lambda n: n * count)


def _tile(s: Site) -> Any:
    """Each repeated axis as two, of which the outer is broadcast: ops that have gradients."""
    shape, reps = _reps(s)
    if all(rep == 1 for rep in reps):
        return s.reshape(s.args[0], shape) if len(shape) != len(s.tensor().shape) else s.args[0]
    sizes = s.sizes(TensorType(shape))
    pairs = [d for size in sizes for d in (1, size)]
    wide = [d for rep, size in zip(reps, sizes, strict=True) for d in (rep, size)]
    x = s.emit(R.reshape(s.args[0], pairs))
    return R.reshape(s.emit(R.broadcast_to(x, wide)), s.sizes(s.out))


def _repeat_axis(call: Call) -> int:
    data, repeats, axis = call.tensor(), call.attrs["repeats"], call.attrs["axis"]
    if repeats < 1:
        call.fail(f"repeat only accepts `repeats >= 1`, but got repeats = {repeats}")
    if axis is None:
        call.fail("axis must be an integer, got None")
    return call.axis(axis, len(data.shape))


def _repeat_type(call: Call) -> Type:
    data, axis = call.tensor(), _repeat_axis(call)
    shape = list(data.shape)
    shape[axis] = _times(shape[axis], call.attrs["repeats"])
    return TensorType(tuple(shape), data.dtype)


def _repeat(s: Site) -> Any:
    """As `tile`, with the new axis inside."""
    axis, sizes = _repeat_axis(s), s.sizes(s.tensor())
    x = s.emit(R.expand_dims(s.args[0], axis + 1))
    wide = [*sizes[: axis + 1], s.attrs["repeats"], *sizes[axis + 1 :]]
    return R.reshape(s.emit(R.broadcast_to(x, wide)), s.sizes(s.out))


def _layouts(call: Call) -> tuple[Axes, Axes, dict[str, Dim]]:
    """Source and destination axes, and the whole size of each."""
    src, dst = call.attrs["src_layout"], call.attrs["dst_layout"]
    a, b = parse_layout(call, "src_layout", src), parse_layout(call, "dst_layout", dst)
    if {axis for axis, _ in a} != {axis for axis, _ in b}:
        call.fail(f"cannot convert from {src} to {dst}")
    return a, b, whole_sizes(call, 0, "src_layout", src)


def _layout_transform_type(call: Call) -> Type:
    _, dst, sizes = _layouts(call)
    return TensorType(split_sizes(call, dst, sizes), call.tensor().dtype)


def _layout_transform(s: Site) -> Any:
    return relayout(s, s.args[0], *_layouts(s))


define("reshape", "data", _reshape_type, _to_out, "relay",
       Attr("newshape", REQUIRED, "sizes"), Attr("allowzero", False, "bool"),
       kind=INJECTIVE, level=3, precision=FOLLOW, reshapes=True,
       doc="The elements in another shape.\n\n"
           "0 copies a size of `data`, -1 is what is left, -2 all remaining sizes, -3 the "
           "product of two, -4 splits one into the two that follow.")  # fmt: skip
define("contrib_reverse_reshape", "data", _reverse_reshape_type, _to_out, "numpy",
       Attr("newshape", REQUIRED, "sizes"), reshapes=True)  # fmt: skip
define("reshape_like", "data shape_like", _reshape_like_type, _reshape_like, "numpy",
       Attr("lhs_begin", 0, "int"), Attr("lhs_end", None, "int?"),
       Attr("rhs_begin", 0, "int"), Attr("rhs_end", None, "int?"),
       kind=INJECTIVE, level=3,
       doc="`data` with its axes [lhs_begin, lhs_end) as [rhs_begin, rhs_end) of "
           "`shape_like`.")  # fmt: skip
define("nn.batch_flatten", "data", _batch_flatten_type, _to_out, "relay",
       kind=INJECTIVE, level=2, precision=FOLLOW,
       doc="All axes but the first as one.")  # fmt: skip
define("transpose", "data", _transpose_type, _transpose, "relay",
       Attr("axes", None, "ints?", always=True),
       kind=INJECTIVE, level=3, precision=FOLLOW,
       doc="The axes in another order, by default reversed.")  # fmt: skip
define("expand_dims", "data", _expand_dims_type, _expand_dims, "relay",
       Attr("axis", REQUIRED, "int"), Attr("num_newaxis", 1, "int"),
       kind=BROADCAST, level=1, precision=FOLLOW, reshapes=True,
       doc="New axes of size 1 before `axis`.")  # fmt: skip
define("squeeze", "data", _squeeze_type, _squeeze, "numpy", Attr("axis", None, "sizes?"),
       kind=INJECTIVE, level=3, precision=FOLLOW, reshapes=True,
       doc="Without these axes of size 1; by default without any such axis.")  # fmt: skip
SHAPE = (
    Attr("shape", None, "sizes?", always=True, asked=REQUIRED),
    Attr("dtype", None, "dtype", asked=REQUIRED),
)
define("broadcast_to", "data", _broadcast_to_type, _broadcast_to, "numpy", *SHAPE,
       kind=BROADCAST, level=4,
       signature="data, shape",
       doc="`data` repeated to a shape, as NumPy's.")  # fmt: skip
define("broadcast_to_like", "data broadcast_type", _broadcast_to_like_type, _broadcast_to_like,
       "numpy",
       kind=BROADCAST, level=10, precision=FOLLOW,
       doc="`data` repeated to another tensor's shape.")  # fmt: skip
define("collapse_sum_like", "data collapse_type", _collapse_like_type, _collapse, "relay",
       kind=COMM_REDUCE, level=10,
       doc="The sums that undo a broadcast from the shape of `collapse_type`.")  # fmt: skip
define("collapse_sum_to", "data shape", _collapse_to_type, _collapse, "relay", *SHAPE,
       meta="relay.attrs.InitOpAttrs",
       kind=COMM_REDUCE, level=4)  # fmt: skip
define("tile", "data", _tile_type, _tile, "relay", Attr("reps", REQUIRED, "sizes"),
       kind=BROADCAST, level=3, precision=FOLLOW,
       doc="`data` repeated as a whole along each axis.")  # fmt: skip
define("repeat", "data", _repeat_type, _repeat, "numpy",
       Attr("repeats", REQUIRED, "int"), Attr("axis", None, "int?", asked=REQUIRED),
       kind=BROADCAST, level=3,
       doc="Each element repeated along an axis.")  # fmt: skip
define("layout_transform", "data", _layout_transform_type, _layout_transform, "relay",
       Attr("src_layout", REQUIRED, "str"), Attr("dst_layout", REQUIRED, "str"),
       kind=INJECTIVE, level=5,
       doc="From one layout to another, as NCHW to NHWC or NCHW4c.")  # fmt: skip
