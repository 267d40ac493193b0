"""Operators that count, sort and sum along an axis, and those that tell a tensor's size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from ...dtypes import wide_of
from ..types import ANY, Dim, TensorType, TupleType, Type
from .facts import ELEMWISE, FOLLOW, INJECTIVE, NEVER, OPAQUE
from .relations import agree, mapped, product
from .runtime_sizes import sizes
from .select import fields_of
from .table import REQUIRED, Attr, Call, Site, define, show
from .te import choice, long_enough, program, rank

R = relax.op


def _arange_type(call: Call) -> Type:
    a = call.attrs
    for index in range(3):
        rank(call, index, 0)
    values = [a[name] for name in ("start", "stop", "step")]
    if any(value is None for value in values):
        return TensorType((ANY,), a["dtype"] or call.same_dtype(0, 1, 2))
    start, stop, step = values
    if not all(map(math.isfinite, values)) or step == 0:
        call.fail(f"start, stop and step must be numbers, step not 0, got {values}")
    count = math.ceil((stop - start) / step)
    if not 0 <= count < 2**31:
        call.fail(f"Invalid range for arange: start={start}, stop={stop}, step={step}")
    return TensorType((count,), a["dtype"] or call.same_dtype(0, 1, 2))


def _arange(s: Site) -> Any:
    """Of its arguments, as Relay's: the attributes say how many there are, where that is known."""
    dtype = s.result_type.dtype
    count = _count_of_run(s) if s.result_type.shape == (ANY,) else s.sizes(s.out)[0]

    def line(s: Site, start: Any, step: Any) -> Any:
        def at(i: Any) -> Any:
            return start[()].astype(dtype) + i.astype(dtype) * step[()].astype(dtype)

        return te.compute((count,), at)

    return program(s, line, s.args[0], s.args[2])


def _count_of_run(s: Site) -> Any:
    """Start, stop and step are tensors of the run; no element where the step leads away."""

    def taken(i: int, *given: Any) -> Any:
        start, stop, step = (x[()].astype("float64") for x in given)
        step = tirx.Select(step == 0, tirx.const(1.0, "float64"), step)
        return te.ceil(tirx.Max((stop - start) / step, tirx.const(0.0, "float64"))).astype("int64")

    (count,) = sizes(s, 1, taken, *s.args)
    return count


def _meshgrid_type(call: Call) -> Type:
    tensors = call.fields()
    choice(call, "indexing", ("ij", "xy"))
    for ty in tensors:
        if len(ty.shape) > 1 or ty.dtype != tensors[0].dtype:
            call.fail(
                "meshgrid requires scalars and vectors of one dtype, got"
                f" {show(tensors[0])} and {show(ty)}"
            )
    shape = [ty.shape[0] if ty.shape else 1 for ty in tensors]
    if call.attrs["indexing"] == "xy" and len(shape) > 1:
        shape[:2] = shape[1::-1]
    return TupleType(tuple(TensorType(tuple(shape), ty.dtype) for ty in tensors))


def _meshgrid(s: Site) -> Any:
    assert isinstance(s.out, TupleType)
    sizes, count = s.sizes(s.out.fields[0]), len(s.out.fields)
    made = []
    for i, x in enumerate(fields_of(s)):
        axis = 1 - i if s.attrs["indexing"] == "xy" and count > 1 and i < 2 else i
        line = s.emit(R.reshape(x, [-1 if k == axis else 1 for k in range(count)]))
        made.append(s.emit(R.broadcast_to(line, sizes)))
    return relax.Tuple(made)


def _scan_type(call: Call) -> Type:
    data, axis = call.tensor(), call.attrs["axis"]
    shape: tuple[Dim, ...] = data.shape if axis is not None else (product(data.shape),)
    if axis is not None:
        call.axis(axis, len(data.shape))
    return TensorType(shape, call.attrs["dtype"] or data.dtype)


_SCANS = {"cumsum": topi.cumsum, "cumprod": topi.cumprod}


def _scan(s: Site) -> Any:
    a = s.attrs
    axis = None if a["axis"] is None else s.axis(a["axis"], len(s.tensor().shape))
    result = s.result_type.dtype
    wide = wide_of(result)  # sums of halves are float32's, rounded once
    x = s.args[0] if s.tensor().dtype == wide else s.emit(R.astype(s.args[0], wide))

    def scan(s: Site, data: Any) -> Any:
        return _SCANS[s.op](data, axis, wide, a["exclusive"])

    made = program(s, scan, x)
    return made if wide == result else R.astype(s.emit(made), result)


def _window_type(call: Call) -> Type:
    data, a = call.tensor(), call.attrs
    axis = call.axis(a["axis"], len(data.shape))
    window, strides, rest = a["window_shape"], a["strides"], data.shape[axis:]
    if not len(window) == len(strides) == len(rest):
        call.fail(
            f"window_shape and strides must be of the {len(rest)} axes from axis {axis} on,"
            f" got {list(window)} and {list(strides)}"
        )
    if min(*window, *strides) < 1:
        call.fail(f"window_shape and strides must be positive, got {window}, {strides}")
    out: list[Dim] = []
    for size, w, step in zip(rest, window, strides, strict=True):
        if isinstance(size, int) and size < w:
            call.fail(f"a window of {list(window)} does not fit into {show(data)}")
        out.append(mapped(size, lambda n, w=w, step=step: (n - w) // step + 1))  # type: ignore[misc]
    return TensorType((*data.shape[:axis], *out, *window), data.dtype)


def _window(s: Site) -> Any:
    a, ndim = s.attrs, len(s.tensor().shape)
    args = (s.axis(a["axis"], ndim), list(a["window_shape"]), list(a["strides"]))
    for i, width in enumerate(args[1]):
        long_enough(s, args[0] + i, width, f"a window of {args[1]} must fit")
    return program(s, lambda s, x: topi.sliding_window(x, *args), s.args[0])


def _along(call: Call) -> TensorType:
    data = call.tensor()
    call.axis(call.attrs["axis"], len(data.shape))
    return data


def _argsort_type(call: Call) -> Type:
    return TensorType(_along(call).shape, call.attrs["dtype"] or "int32")


def _topk_type(call: Call) -> Type:
    data, k = _along(call), call.attrs["k"]
    axis = call.axis(call.attrs["axis"], len(data.shape))
    which = choice(call, "ret_type", ("both", "values", "indices"))
    size = data.shape[axis]
    if isinstance(size, int) and k > size:
        call.fail(f"k must be no more than the {size} of axis {axis}, got {k}")
    shape = (*data.shape[:axis], size if k < 1 else k, *data.shape[axis + 1 :])
    made = {
        "values": TensorType(shape, data.dtype),
        "indices": TensorType(shape, call.attrs["dtype"] or "int32"),
    }
    return TupleType(tuple(made.values())) if which == "both" else made[which]


def _topk(s: Site) -> Any:
    a = s.attrs
    dtype = a["dtype"] or "int32"
    count, largest = a["k"] if a["k"] > 0 else -1, not a["is_ascend"]
    axis = s.axis(a["axis"], len(s.tensor().shape))
    long_enough(s, axis, count, f"k={count} must be no more than there are")
    return R.topk(s.args[0], count, a["axis"], a["ret_type"], largest, dtype)


def _searchsorted_type(call: Call) -> Type:
    line, values = call.tensor(0), call.tensor(1)
    call.same_dtype(0, 1)
    dtype = choice(call, "dtype", ("int32", "int64"))
    if not line.shape or (len(line.shape) > 1 and len(line.shape) != len(values.shape)):
        call.fail(f"the sequences must have values' axes, got {show(line)} and {show(values)}")
    if len(line.shape) > 1 and not all(map(agree, line.shape[:-1], values.shape[:-1])):
        call.fail(f"the sequences must be as many as values', got {show(line)} and {show(values)}")
    return TensorType(values.shape, dtype)


def _shape_type(call: Call) -> Type:
    dtype = call.attrs["dtype"] or "int32"
    return TensorType((len(call.tensor().shape),), dtype)


def _size_type(call: Call) -> Type:
    call.tensor()
    return TensorType((), call.attrs["dtype"] or "int32")


def _shape(s: Site) -> Any:
    """A constant, but for what only the run knows."""
    shape, dtype = s.tensor().shape, s.result_type.dtype
    if all(isinstance(size, int) for size in shape):
        return relax.const(tvm.runtime.tensor(np.array(shape, dtype)))
    return R.astype(s.emit(R.shape_to_tensor(s.emit(R.shape_of(s.args[0])))), dtype)


def _size(s: Site) -> Any:
    shape, dtype = s.tensor().shape, s.result_type.dtype
    total = product(shape)
    if isinstance(total, int):
        return relax.const(tvm.runtime.tensor(np.array(total, dtype)))
    sizes = s.emit(R.shape_to_tensor(s.emit(R.shape_of(s.args[0]))))
    return R.astype(s.emit(R.prod(sizes)), dtype)


def _sparse_reshape_type(call: Call) -> Type:
    indices, before, after = rank(call, 0, 2), rank(call, 1, 1), rank(call, 2, 1)
    if not all(ty.dtype.startswith("int") for ty in (indices, before, after)):
        call.fail(f"takes integers, got {', '.join(map(show, call.types))}")
    if not agree(indices.shape[1], before.shape[0]):
        call.fail(f"sparse_indices must have prev_shape's axes: {show(indices)}, {show(before)}")
    out = TensorType((indices.shape[0], after.shape[0]), indices.dtype)
    return TupleType((out, TensorType(after.shape, after.dtype)))


def _steps(s: Site, sizes: Any) -> Any:
    """How far apart elements are along each axis: the product of the sizes behind it."""
    turned = s.emit(R.flip(sizes, 0))
    return s.emit(R.flip(s.emit(R.cumprod(turned, 0, "int64", True)), 0))


def _sparse_reshape(s: Site) -> Any:
    """Places in the flat tensor, taken apart by the new shape; -1 there is what is left."""
    one = relax.const(1, "int64")
    indices, before, after = (s.emit(R.astype(x, "int64")) for x in s.args)
    flat = s.emit(R.sum(s.emit(R.multiply(indices, _steps(s, before))), [1], True))
    rest = s.emit(R.equal(after, relax.const(-1, "int64")))
    known = s.emit(R.prod(s.emit(R.where(rest, one, after))))
    total = s.emit(R.prod(before))
    left = s.emit(R.floor_divide(total, s.emit(R.maximum(known, one))))
    shape = s.emit(R.where(rest, left, after))
    steps = s.emit(R.maximum(_steps(s, shape), one))
    places = s.emit(R.floor_divide(flat, steps))
    made = s.emit(R.floor_mod(places, s.emit(R.maximum(shape, one))))
    return relax.Tuple([
        s.emit(R.astype(made, s.tensor(0).dtype)), s.emit(R.astype(shape, s.tensor(2).dtype)),
    ])  # fmt: skip


def _bits(dtype: str) -> int:
    return 8 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit())[-2:] or 0)


def _reinterpret_type(call: Call) -> Type:
    data, dtype = call.tensor(), call.attrs["dtype"]
    if dtype is None:
        call.fail("attribute dtype is missing")
    if _bits(dtype) != _bits(data.dtype):
        call.fail(f"dtype must be of as many bits as data's, got {dtype} for {show(data)}")
    return TensorType(data.shape, dtype)


def _fixed_point_type(call: Call) -> Type:
    data, a = call.tensor(), call.attrs
    if data.dtype != "int32":
        call.fail(f"data must be of int32, got {show(data)}")
    if not -31 <= a["shift"] <= 31 or not -(2**31) <= a["multiplier"] < 2**31:
        call.fail(f"multiplier and shift must be int32's, got {a['multiplier']}, {a['shift']}")
    return data


def _fixed_point(s: Site) -> Any:
    """data * multiplier * 2^(shift - 31), halves rounded up, all in 64 bits."""
    shift = s.attrs["shift"]
    wide = s.emit(R.astype(s.args[0], "int64"))
    if shift > 0:
        wide = s.emit(R.left_shift(wide, relax.const(shift, "int64")))
    wide = s.emit(R.multiply(wide, relax.const(s.attrs["multiplier"], "int64")))
    right = 31 - min(shift, 0)
    wide = s.emit(R.add(wide, relax.const(1 << (right - 1), "int64")))
    return R.astype(s.emit(R.right_shift(wide, relax.const(right, "int64"))), "int32")


_AXIS, _ASCEND = Attr("axis", -1, "int"), Attr("is_ascend", True, "bool")
_BOUND = tuple(Attr(name, REQUIRED, "number?") for name in ("start", "stop", "step"))
define("arange", "start stop step", _arange_type, _arange, "numpy", *_BOUND,
       Attr("dtype", REQUIRED, "dtype"),
       kind=OPAQUE, level=3, precision=NEVER)  # fmt: skip
define("meshgrid", "data", _meshgrid_type, _meshgrid, "numpy", Attr("indexing", "ij", "str"),
       kind=INJECTIVE, level=3, gathers=True, results=("data", lambda data: len(data.fields)),
       doc="Vectors as tensors of all their combinations; \"xy\" has the first two axes "
           "swapped.")  # fmt: skip
_WHAT = {"cumsum": "sums", "cumprod": "products"}
for _name in _SCANS:
    define(_name, "data", _scan_type, _scan, "numpy", Attr("axis", None, "int?"),
           Attr("dtype", None, "dtype"), Attr("exclusive", False, "bool", asked=None),
           kind=OPAQUE, level=3,
           doc=f"The {_WHAT[_name]} of the first elements along `axis`; `exclusive` leaves each "
               "one itself out.")  # fmt: skip
define("sliding_window", "data", _window_type, _window, "numpy", Attr("axis", REQUIRED, "int"),
       Attr("window_shape", REQUIRED, "sizes"), Attr("strides", REQUIRED, "sizes"),
       kind=OPAQUE,
       doc="All windows over the axes from `axis` on; the result's last axes are within a "
           "window.")  # fmt: skip
define("sort", "data", _along, lambda s: R.sort(s.args[0], s.attrs["axis"],
       not s.attrs["is_ascend"]), "numpy", _AXIS, _ASCEND,
       kind=OPAQUE, level=6,
       doc="The elements along `axis` in order.")  # fmt: skip
define("argsort", "data", _argsort_type, lambda s: R.argsort(s.args[0], s.attrs["axis"],
       not s.attrs["is_ascend"], s.attrs["dtype"] or "int32"), "numpy", _AXIS, _ASCEND,
       Attr("dtype", None, "dtype", asked="int32"),
       kind=OPAQUE, level=6,
       doc="The places along `axis` of the elements in order.")  # fmt: skip
define("topk", "data", _topk_type, _topk, "numpy", Attr("k", REQUIRED, "int", asked=1), _AXIS,
       Attr("ret_type", "both", "str"), Attr("is_ascend", False, "bool"),
       Attr("dtype", None, "dtype", asked="int32"),
       kind=OPAQUE, level=6, results=("ret_type", {"both": 2, "values": 0, "indices": 0}),
       doc="The k largest (or least) elements along `axis`, their places, or both.")  # fmt: skip
define("searchsorted", "sorted_sequence values", _searchsorted_type,
       lambda s: program(s, lambda s, *given: topi.searchsorted(*given, s.attrs["right"],
       s.attrs["dtype"]), *s.args), "numpy", Attr("right", False, "bool"),
       Attr("dtype", "int32", "dtype"),
       kind=OPAQUE, level=6,
       doc="Where values would stand in sorted sequences; `right`: behind equal ones.")  # fmt: skip
define("shape_of", "data", _shape_type, _shape, "numpy",
       Attr("dtype", None, "dtype", asked="int32"), kind=OPAQUE, level=10, precision=FOLLOW,
       doc="The sizes of a tensor as a vector.")  # fmt: skip
define("ndarray_size", "data", _size_type, _size, "numpy",
       Attr("dtype", None, "dtype", asked="int32"), kind=INJECTIVE, level=10,
       doc="How many elements a tensor has.")  # fmt: skip
define("reinterpret", "data", _reinterpret_type,
       lambda s: program(s, lambda s, x: topi.reinterpret(x, s.attrs["dtype"]), s.args[0]),
       "numpy", Attr("dtype", REQUIRED, "dtype"),
       kind=ELEMWISE, level=3,
       doc="The bits of each element as those of another dtype.")  # fmt: skip
define("fixed_point_multiply", "data", _fixed_point_type, _fixed_point, "numpy",
       Attr("multiplier", REQUIRED, "int"), Attr("shift", REQUIRED, "int"),
       kind=ELEMWISE, level=10,
       doc="data * multiplier * 2^(shift - 31), rounded, of int32.")  # fmt: skip
define("sparse_reshape", "sparse_indices prev_shape new_shape", _sparse_reshape_type,
       _sparse_reshape, "numpy",
       kind=INJECTIVE, results=2,
       doc="The places (n, axes) of a sparse tensor's elements in another shape, and that "
           "shape.\n\n"
           "One size of `new_shape` may be -1: what is left.")  # fmt: skip
