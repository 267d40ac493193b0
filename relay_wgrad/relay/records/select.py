"""Operators that choose and join."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ...ops import size_rules
from ..types import ANY, Dim, TensorType, TupleType, Type
from .facts import FOLLOW, INJECTIVE
from .relations import agree, bounds, divides, mapped, product, total
from .table import REQUIRED, Attr, Call, Site, define, lookup, show
from .te import choice

R = relax.op


def fields_of(s: Site) -> list[Any]:
    """The tensors of a tuple argument."""
    value = s.args[0]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [s.emit(relax.TupleGetItem(value, i)) for i in range(len(s.fields()))]


def _joined(call: Call) -> list[TensorType]:
    """Tensors of one rank and dtype."""
    tensors = call.fields()
    for ty in tensors[1:]:
        if len(ty.shape) != len(tensors[0].shape):
            call.fail(
                f"relay.{call.op} requires all tensors have the same ndim,"
                f" got {show(tensors[0])} and {show(ty)}"
            )
        if ty.dtype != tensors[0].dtype:
            call.fail(
                f"relay.{call.op} requires all tensors have the same dtype,"
                f" got {show(tensors[0])} and {show(ty)}"
            )
    return tensors


def _same_besides(call: Call, tensors: list[TensorType], axis: int | None) -> list[Dim]:
    """The sizes that all tensors have, but along an axis."""
    out = list(tensors[0].shape)
    for ty in tensors[1:]:
        for i, (size, other) in enumerate(zip(out, ty.shape, strict=True)):
            if i != axis and not agree(size, other):
                call.fail(
                    f"relay.{call.op} requires all tensors have the same shape on all other axes,"
                    f" got {show(tensors[0])} and {show(ty)}"
                )
            out[i] = size if isinstance(size, int) or other is ANY else other
    return out


def _concatenate_type(call: Call) -> Type:
    tensors = _joined(call)
    axis = call.axis(call.attrs["axis"], len(tensors[0].shape))
    out = _same_besides(call, tensors, axis)
    sizes = [ty.shape[axis] for ty in tensors]
    if ANY not in sizes:  # Relay takes another's size for a `?` only where the axis has one
        out = [ANY if any(ty.shape[i] is ANY for ty in tensors) else n for i, n in enumerate(out)]
    out[axis] = total(sizes)
    return TensorType(tuple(out), tensors[0].dtype)


def _stack_type(call: Call) -> Type:
    tensors = _joined(call)
    axis = call.axis(call.attrs["axis"], len(tensors[0].shape) + 1)
    out = _same_besides(call, tensors, None)
    return TensorType((*out[:axis], len(tensors), *out[axis:]), tensors[0].dtype)


def _concatenate(s: Site) -> Any:
    fields = fields_of(s)
    axis = s.axis(s.attrs["axis"], len(s.fields()[0].shape))
    return R.concat(fields, axis) if len(fields) > 1 else fields[0]


def _stack(s: Site) -> Any:
    fields = fields_of(s)
    axis = s.axis(s.attrs["axis"], len(s.fields()[0].shape) + 1)
    return R.stack(fields, axis) if len(fields) > 1 else R.expand_dims(fields[0], axis)


_PARTS = 10_000


def _split_type(call: Call) -> Type:
    data, parts = call.tensor(), call.attrs["indices_or_sections"]
    axis = call.axis(call.attrs["axis"], len(data.shape))
    size = data.shape[axis]
    sizes: list[Dim]
    if isinstance(parts, int):
        if parts > _PARTS:
            call.fail(f"at most {_PARTS} sections are supported, got {parts}")
        if parts < 1 or not divides(parts, size):
            call.fail(
                "indices_or_sections need to be able to divide input.shape[axis],"
                f" got {parts} and {show(data)}, axis={axis}"
            )
        sizes = [mapped(size, lambda n: n // parts)] * parts
    else:
        ends = [0, *parts]
        if any(a >= b for a, b in zip(ends[:-1], parts, strict=True)):
            call.fail(f"indices_or_sections need to be a sorted ascending list, got {list(parts)}")
        if isinstance(size, int) and ends[-1] >= size:
            call.fail(
                "The sum of sections must match the input.shape[axis],"
                f" got {list(parts)} and {show(data)}, axis={axis}"
            )
        sizes = [b - a for a, b in zip(ends[:-1], parts, strict=True)]
        sizes.append(mapped(size, lambda n: n - ends[-1]))
    return TupleType(
        tuple(
            TensorType((*data.shape[:axis], part, *data.shape[axis + 1 :]), data.dtype)
            for part in sizes
        )
    )


def _split(s: Site) -> Any:
    parts = s.attrs["indices_or_sections"]
    assert isinstance(s.out, TupleType)
    if len(s.out.fields) == 1:
        return relax.Tuple([s.args[0]])
    axis = s.axis(s.attrs["axis"], len(s.tensor().shape))
    return R.split(s.args[0], parts if isinstance(parts, int) else list(parts), axis)


FAR = 2**31 - 1  # an end that stands for the axis' own


def _slices(call: Call) -> dict[int, tuple[int, int, int]]:
    """axis -> (begin, end, stride) as written, missing ones filled in."""
    ndim, a = len(call.tensor().shape), call.attrs
    begin, end, strides = list(a["begin"]), list(a["end"]), list(a["strides"])
    choice(call, "slice_mode", ("end", "size"))
    axes = a["axes"]
    if axes is not None:
        if not len(axes) == len(begin) == len(end) == len(strides):
            call.fail(
                "axes, begin, end, and strides must have the same length,"
                f" got {list(axes)}, {begin}, {end}, {strides}"
            )
        axes = [call.axis(axis, ndim, "axes") for axis in axes]
    else:
        if max(len(begin), len(end), len(strides)) > ndim:
            call.fail(
                f"begin={begin}, end={end}, strides={strides} have more values than"
                f" {show(call.tensor())} has axes"
            )
        axes = list(range(ndim))
        strides += [1] * (ndim - len(strides))
        begin += [0 if step > 0 else FAR for step in strides[len(begin) :]]
        end += [FAR if step > 0 else -FAR for step in strides[len(end) :]]
    if a["slice_mode"] == "size":
        strides = [1] * len(begin)
    if 0 in strides:
        call.fail(f"strides must not be 0, got {strides}")
    return dict(zip(axes, zip(begin, end, strides, strict=True), strict=True))


def resolved_slices(call: Call) -> dict[int, tuple[int, int, int]]:
    """axis -> (start, stop, stride) within the axis; those of unknown size stay as written."""
    shape, out = call.tensor().shape, {}
    for axis, (begin, end, step) in _slices(call).items():
        size = shape[axis]
        if not isinstance(size, int):
            out[axis] = (begin, end, step)
            continue
        if call.attrs["slice_mode"] == "size":
            start = slice(begin, None).indices(size)[0]
            end = size if end < 0 else start + end
        start, stop, step = slice(begin, end, step).indices(size)
        if (stop - start) * step < 0:
            call.fail(
                f"Input [Begin={begin}, End={end}] is invalid for axis={axis}"
                f" of size {size} with stride {step}"
            )
        out[axis] = (start, stop, step)
    return out


def _strided_slice_type(call: Call) -> Type:
    data = call.tensor()
    shape = list(data.shape)
    for axis, (start, stop, step) in resolved_slices(call).items():
        if isinstance(shape[axis], int):
            shape[axis] = len(range(start, stop, step))
        elif (start, step) != (0, 1) or stop < FAR:
            shape[axis] = ANY  # as in Relay: where a slice ends depends on the size
    return TensorType(tuple(shape), data.dtype)


def _strided_slice(s: Site) -> Any:
    shape = s.tensor().shape
    is_known = all(isinstance(shape[axis], int) for axis in resolved_slices(s))
    if s.attrs["slice_mode"] == "size" and not is_known:
        return _sized_slice(s)
    bounds = {
        axis: bound
        for axis, bound in sorted(resolved_slices(s).items())
        if bound != (0, shape[axis], 1)
    }
    if not bounds:
        return s.args[0]
    axes = list(bounds)
    begin, end, strides = (list(v) for v in zip(*bounds.values(), strict=True))
    for i, axis in enumerate(axes):
        size = shape[axis]
        # A stop before the first element: -1 would mean the last one.
        if strides[i] < 0 and end[i] < 0 and isinstance(size, int):
            end[i] = -size - 1
    return R.strided_slice(s.args[0], axes, begin, end, strides)


def _sized_slice(s: Site) -> Any:
    """Of an axis of unknown size: what the run cuts out of each."""
    given, count = _slices(s), len(s.tensor().shape)
    bounds = [given.get(axis, (0, -1, 1)) for axis in range(count)]
    vectors = [relax.const(np.array(values, "int64")) for values in zip(*bounds, strict=True)]
    types = (s.tensor(), *[TensorType((count,), "int64")] * 3)
    record = lookup("dyn.strided_slice")
    attrs = record.read({"slice_mode": "size"})
    inner = replace(s, op=record.name, inputs=record.inputs, types=types, attrs=attrs,
                    args=(s.args[0], *vectors))  # fmt: skip
    return record.builder(inner)


def _slice_like_type(call: Call) -> Type:
    data, like = call.tensor(0), call.tensor(1)
    shape = list(data.shape)
    given = call.attrs["axes"]
    if not given and len(like.shape) > len(data.shape):
        call.fail(f"shape_like must have no more axes, got {show(data)} and {show(like)}")
    for axis in given or range(len(like.shape)):
        axis = call.axis(axis, len(shape), "axes")
        if axis >= len(like.shape):
            call.fail(f"axes={list(given)} has {axis}, which {show(like)} has not")
        mine, other = shape[axis], like.shape[axis]
        if isinstance(mine, int) and isinstance(other, int) and mine < other:
            call.fail(
                f"End index of axis {axis} exceeds input shape: {other} vs {mine},"
                f" got {show(data)} and {show(like)}"
            )
        shape[axis] = other
    return TensorType(tuple(shape), data.dtype)


def _slice_like(s: Site) -> Any:
    sizes = s.sizes(s.out)
    pairs = zip(s.result_type.shape, s.tensor().shape, strict=True)
    axes = [i for i, (n, m) in enumerate(pairs) if n != m]
    if not axes:
        return s.args[0]
    return R.strided_slice(s.args[0], axes, [0] * len(axes), [sizes[i] for i in axes])


def _take_type(call: Call) -> Type:
    data, indices = call.tensor(0), call.tensor(1)
    if not indices.dtype.startswith(("int", "uint")):
        call.fail(f"indices of take must be tensor of integer, got {show(indices)}")
    choice(call, "mode", ("clip", "wrap", "fast"))
    if call.attrs["batch_dims"]:
        call.fail(f"only batch_dims=0 is supported, got {call.attrs['batch_dims']}")
    if call.attrs["axis"] is None:
        return TensorType(indices.shape, data.dtype)
    axis = call.axis(call.attrs["axis"], len(data.shape))
    shape = data.shape[:axis] + indices.shape + data.shape[axis + 1 :]
    return TensorType(shape, data.dtype)


def _take(s: Site) -> Any:
    """The gradient wants a vector of indices within bounds, so both are made first.

    "fast" asks the program for indices within bounds.  A wrong one may not reach memory that is not
    the tensor's, so they are clipped all the same, where the size is known.
    """
    s.compare(size_rules.check_taken)
    data, indices = s.args
    shape, index_shape, axis = s.tensor().shape, s.tensor(1).shape, s.attrs["axis"]
    if axis is None:
        data = s.emit(s.reshape(data, (-1,))) if len(shape) != 1 else data
        shape, axis = (product(shape),), 0
    axis = s.axis(axis, len(shape))
    mode, size = s.attrs["mode"], shape[axis]
    if size is ANY and mode != "fast":
        s.fail(f"mode={mode!r} cannot be built with an unknown size, got {show(s.tensor())}")
    if size is not ANY:
        if not isinstance(size, int):
            count = s.number([size], "int64")
            indices = s.emit(R.astype(indices, "int64"))
            if mode == "wrap":
                indices = s.emit(R.floor_mod(indices, count))
            else:
                last = s.emit(R.subtract(count, relax.const(1, "int64")))
                indices = s.emit(R.maximum(indices, relax.const(0, "int64")))
                indices = s.emit(R.minimum(indices, last))
        elif mode == "wrap" and size <= bounds(s.tensor(1).dtype)[1]:
            indices = s.emit(R.floor_mod(indices, s.const(size, 1)))
        elif mode == "wrap" and not s.tensor(1).dtype.startswith("u"):
            # Of more elements than indices have numbers: they wrap around once, below 0.
            wide = s.emit(R.astype(indices, "int64"))
            indices = s.emit(R.floor_mod(wide, relax.const(size, "int64")))
        else:
            low, high = bounds(s.tensor(1).dtype)
            indices = s.emit(R.maximum(indices, s.const(max(low, 0), 1)))
            indices = s.emit(R.minimum(indices, s.const(min(high, size - 1), 1)))
    mode = "fast" if mode == "fast" else "clip"
    if len(index_shape) == 1:
        return R.take(data, indices, axis, mode)
    taken = s.emit(R.take(data, s.emit(s.reshape(indices, (-1,))), axis, mode))
    return s.reshape(taken, s.result_type.shape)


def _reverse_type(call: Call) -> Type:
    call.axis(call.attrs["axis"] or 0, len(call.tensor().shape))
    return call.tensor()


define("concatenate", "data", _concatenate_type, _concatenate, "numpy",
       Attr("axis", 0, "int", asked=REQUIRED),
       kind=INJECTIVE, level=1, precision=FOLLOW, gathers=True,
       doc="Tensors one after another along an axis.\n\n"
           "Raises ValueError for an empty list.")  # fmt: skip
define("stack", "data", _stack_type, _stack, "numpy", Attr("axis", 0, "int", asked=REQUIRED),
       kind=INJECTIVE, level=3, gathers=True,
       doc="Tensors of one shape along a new axis.\n\n"
           "Raises ValueError for an empty list.")  # fmt: skip
define("split", "data", _split_type, _split, "numpy",
       Attr("indices_or_sections", REQUIRED, "sections"), Attr("axis", 0, "int"),
       kind=INJECTIVE, level=3, precision=FOLLOW,
       results=("indices_or_sections", lambda at: at if isinstance(at, int) else len(at) + 1),
       doc="Equal parts along an axis, or parts that begin at these indices.")  # fmt: skip
define("strided_slice", "data", _strided_slice_type, _strided_slice, "relay",
       Attr("begin", REQUIRED, "sizes"), Attr("end", REQUIRED, "sizes"),
       Attr("strides", REQUIRED, "sizes"), Attr("slice_mode", "end", "str"),
       Attr("axes", None, "sizes?", always=True),
       kind=INJECTIVE, level=4, precision=FOLLOW)  # fmt: skip
define("slice_like", "data shape_like", _slice_like_type, _slice_like, "numpy",
       Attr("axes", None, "sizes?", always=True),
       kind=INJECTIVE, level=10,
       doc="The beginning of `data`, as large as `shape_like` along `axes`, by default "
           "all.")  # fmt: skip
define("take", "data indices", _take_type, _take, "numpy",
       Attr("batch_dims", 0, "int"), Attr("axis", None, "int?"),
       Attr("mode", "clip", "str"),
       kind=INJECTIVE, level=3, precision=FOLLOW,
       signature="data, indices, axis, batch_dims, mode",
       doc="The elements of these indices along an axis, or of `data` flattened.\n\n"
           "`mode` says what an index out of range is: \"clip\", \"wrap\" or \"fast\" (which "
           "must not be one).")  # fmt: skip
define("reverse", "data", _reverse_type,
       lambda s: R.flip(s.args[0], s.attrs["axis"] or 0), "numpy",
       Attr("axis", None, "int?", asked=REQUIRED),
       kind=INJECTIVE, level=3,
       doc="The elements in reverse order along an axis.")  # fmt: skip
