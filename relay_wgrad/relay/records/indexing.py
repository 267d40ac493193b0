"""Operators that read and write elements by index.

An index below zero counts from the end.  One that is outside a tensor reads the nearest element,
and writes none: Relay's own kernels reach other memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from ..types import Dim, TensorType, Type
from . import dynamic_indexing
from .facts import ELEMWISE, FOLLOW, INJECTIVE, OPAQUE
from .relations import agree, broadcast
from .runtime_sizes import vector_of
from .select import fields_of
from .table import REQUIRED, Attr, Call, Site, define, show
from .te import (
    choice,
    clipped,
    counted,
    integer_indices,
    known_size,
    known_within,
    program,
    rank,
    refuse_empty,
    same,
    wrapped_and_clipped,
)

R = relax.op


def _gather_type(call: Call) -> Type:
    data, indices = call.tensor(0), call.tensor(1)
    integer_indices(call, 1)
    axis = call.axis(_axis(call), len(data.shape))
    if len(indices.shape) != len(data.shape):
        call.fail(f"indices must have data's rank, got {show(data)} and {show(indices)}")
    for i, (size, other) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if i != axis and isinstance(size, int) and isinstance(other, int) and other > size:
            call.fail(
                f"indices may be no larger than data but along axis {axis},"
                f" got {show(data)} and {show(indices)}"
            )
    return TensorType(indices.shape, data.dtype)


def _axis(call: Call) -> int:
    if call.attrs["axis"] is None:
        call.fail("attribute axis is missing")
    return int(call.attrs["axis"])


def _gather(s: Site) -> Any:
    shape, axis = s.tensor().shape, s.axis(s.attrs["axis"], len(s.tensor().shape))
    if not _are_known(shape, s.tensor(1).shape):
        return program(s, lambda s, x, i: dynamic_indexing.gather(x, i, axis), *s.args)
    refuse_empty(s)
    indices = wrapped_and_clipped(s, s.args[1], s.tensor(1).dtype, known_size(s, shape[axis]))
    return program(s, lambda s, x, i: topi.gather(x, axis, i), s.args[0], indices)


def _gather_nd_type(call: Call) -> Type:
    data, indices = call.tensor(0), call.tensor(1)
    integer_indices(call, 1)
    batch = call.attrs["batch_dims"]
    count = indices.shape[0] if indices.shape else None
    if not isinstance(count, int):
        call.fail(f"indices must have a first axis of known size, got {show(indices)}")
    if batch < 0 or count + batch > len(data.shape) or batch >= len(indices.shape):
        call.fail(
            f"{count} indices and batch_dims={batch} do not fit {show(data)} and {show(indices)}"
        )
    same(call, data.shape[:batch], indices.shape[1 : batch + 1], "batches must be the same")
    return TensorType(indices.shape[1:] + data.shape[count + batch :], data.dtype)


def _gather_nd(s: Site) -> Any:
    data, indices, batch = s.tensor(0), s.tensor(1), s.attrs["batch_dims"]
    if not _are_known(data.shape):
        return program(s, lambda s, x, i: dynamic_indexing.gather_nd(x, i, batch), *s.args)
    refuse_empty(s)
    sizes = [known_size(s, d) for d in data.shape[batch : batch + int(indices.shape[0])]]  # type: ignore[arg-type]
    chosen = _in_rows(s, s.args[1], indices, sizes)
    return program(s, lambda s, x, i: topi.gather_nd(x, i, batch), s.args[0], chosen)


def _are_known(*shapes: Sequence[Dim]) -> bool:
    return all(isinstance(size, int) for shape in shapes for size in shape)


def _in_rows(s: Site, x: Any, ty: TensorType, sizes: list[int]) -> Any:
    """Indices where each row has a size of its own, as `wrapped_and_clipped`."""
    column = np.array(sizes, "int64").reshape((-1,) + (1,) * (len(ty.shape) - 1))
    if not ty.dtype.startswith("int64"):
        x = s.emit(R.astype(x, "int64"))
    size, zero = relax.const(tvm.runtime.tensor(column)), relax.const(0, "int64")
    x = s.emit(R.where(s.emit(R.less(x, zero)), s.emit(R.add(x, size)), x))
    last = relax.const(tvm.runtime.tensor(column - 1))
    return s.emit(R.minimum(s.emit(R.maximum(x, zero)), last))


def _scatter_elements_type(call: Call) -> Type:
    data, indices, updates = (call.tensor(i) for i in range(3))
    integer_indices(call, 1)
    call.same_dtype(0, 2)
    choice(call, "reduction", tuple(dynamic_indexing.REDUCE))
    axis = call.axis(call.attrs["axis"], len(data.shape))
    same(call, indices.shape, updates.shape, "indices and updates must have one shape")
    fits = len(indices.shape) == len(data.shape) and all(
        i == axis or not isinstance(n, int) or not isinstance(m, int) or m <= n
        for i, (n, m) in enumerate(zip(data.shape, indices.shape, strict=True))
    )
    if not fits:
        call.fail(
            f"indices may be no larger than data but along axis {axis},"
            f" got {show(data)} and {show(indices)}"
        )
    return data


def _scatter_elements(s: Site) -> Any:
    data, indices, updates = s.args
    if 0 in s.tensor(1).shape:
        return data
    axis, mode = s.axis(s.attrs["axis"], len(s.tensor().shape)), s.attrs["reduction"]
    dims, dtype = s.tensor().shape, s.tensor(1).dtype
    size = dims[axis]

    def write(s: Site, *given: Any) -> Any:
        return topi.scatter_elements(*given, axis, mode)

    if len(dims) > 1 and not all(isinstance(d, int) for d in (*dims, *s.tensor(1).shape)):
        # Nothing else would keep the other axes' places within data.
        return program(s, lambda s, x, i, u: _along(x, i, u, axis, mode), *s.args)
    if isinstance(size, int):
        if known_within(indices, -size, size):
            return program(s, write, data, indices, updates)
        indices = counted(s, indices, dtype, size)
        slot = relax.const(size, dtype)
        outside = s.emit(R.greater_equal(indices, slot))
        if dtype.startswith("int"):
            below = s.emit(R.less(indices, relax.const(0, dtype)))
            outside = s.emit(R.logical_or(outside, below))
        indices = s.emit(R.where(outside, slot, indices))
    else:
        indices = s.emit(program(s, _held_by_vector, indices, vector_of(s, s.sizes(s.tensor()))))
    wide = s.emit(program(s, write, _with_slot(s, data, axis), indices, updates))
    return R.strided_slice(wide, [axis], [0], [s.sizes(s.tensor())[axis]])


def _along(data: Any, indices: Any, updates: Any, axis: int, mode: str) -> Any:
    """Each update at its own place but along one axis, where it is at its index."""

    def target(step: tuple[Any, ...], where: Any) -> list[Any]:
        return [*step[:axis], where[step], *step[axis + 1 :]]

    return dynamic_indexing.scattered(data, indices, updates, mode, target)


def _held_by_vector(s: Site, indices: Any, size: Any) -> Any:
    """int64 indices as `counted`, and what is outside after the last, by a size of the run.

    In one step: TVM does not fuse several of such sizes.
    """

    def at(*i: Any) -> Any:
        given = indices[i].astype("int64")
        given = tirx.Select(given < 0, given + size[0], given)
        return tirx.Select(tirx.any(given < 0, given >= size[0]), size[0], given)

    return te.compute(indices.shape, at)


def _with_slot(s: Site, data: Any, axis: int) -> Any:
    """Data with one more element along an axis: where what is outside goes."""
    sizes = s.sizes(s.tensor())
    more = [1 if i == axis else n for i, n in enumerate(sizes)]
    return s.emit(R.concat([data, s.emit(R.zeros(more, s.tensor().dtype))], axis))


def _scatter_nd_type(call: Call) -> Type:
    data, indices, updates = (call.tensor(i) for i in range(3))
    integer_indices(call, 1)
    call.same_dtype(0, 2)
    choice(call, "mode", ("update", "add", "mul", "min", "max"))
    count = indices.shape[0] if indices.shape else None
    if not isinstance(count, int) or not 1 <= count <= len(data.shape):
        call.fail(f"indices' first axis must be at most data's rank, got {show(indices)}")
    wanted = indices.shape[1:] + data.shape[count:]
    same(call, updates.shape, wanted, "updates must be of indices' and data's other axes")
    return data


def _scatter_nd(s: Site) -> Any:
    data, indices, updates = s.args
    ty, mode = s.tensor(1), s.attrs["mode"]
    if 0 in ty.shape[1:] or 0 in s.tensor(2).shape:
        return data
    sizes = s.sizes(s.tensor())
    count = known_size(s, ty.shape[0], 1)
    column = np.array(sizes[:count], "int64").reshape((-1,) + (1,) * (len(ty.shape) - 1))
    wide = s.emit(R.astype(indices, "int64"))
    size, zero = relax.const(tvm.runtime.tensor(column)), relax.const(0, "int64")
    wide = s.emit(R.where(s.emit(R.less(wide, zero)), s.emit(R.add(wide, size)), wide))
    outside = s.emit(R.logical_or(s.emit(R.less(wide, zero)), s.emit(R.greater_equal(wide, size))))
    # One index outside takes all of them to the slot.
    any_out = s.emit(R.max(s.emit(R.astype(outside, "int8")), [0], True))
    away = s.emit(R.not_equal(any_out, relax.const(0, "int8")))
    slot = np.zeros_like(column)
    slot[0] = sizes[0]
    wide = s.emit(R.where(away, relax.const(tvm.runtime.tensor(slot)), wide))

    def write(s: Site, *given: Any) -> Any:
        return topi.scatter_nd(*given, mode)

    made = s.emit(program(s, write, _with_slot(s, data, 0), wide, updates))
    return R.strided_slice(made, [0], [0], [sizes[0]])


def _adv_index_type(call: Call) -> Type:
    data, *indices = call.fields()
    if not 1 <= len(indices) <= len(data.shape):
        call.fail(f"{len(indices)} indices for {show(data)}")
    out = indices[0]
    for ty in indices:
        if not ty.dtype.startswith("int"):
            call.fail(f"indices must be of integers, got {show(ty)}")
        out = broadcast(call, out, ty, data.dtype)
    return TensorType(out.shape + data.shape[len(indices) :], data.dtype)


def _adv_index(s: Site) -> Any:
    (data, *indices), (ty, *types) = fields_of(s), s.fields()
    if not _are_known(*(each.shape for each in (ty, *types))):
        return _adv_index_of_run(s, data, indices, types)
    refuse_empty(s)
    held = [
        wrapped_and_clipped(s, x, t.dtype, known_size(s, size))
        for x, t, size in zip(indices, types, ty.shape, strict=False)
    ]
    return program(s, lambda s, x, *i: topi.adv_index(x, list(i)), data, *held)


def _adv_index_of_run(s: Site, data: Any, indices: list[Any], types: list[TensorType]) -> Any:
    ndim = max(len(ty.shape) for ty in types)
    shape: list[Any] = [1] * ndim
    for ty in types:
        ahead = ndim - len(ty.shape)
        for axis, size in enumerate(s.sizes(ty), ahead):
            shape[axis] = shape[axis] if isinstance(size, int) and size == 1 else size
    return program(s, lambda s, x, *i: dynamic_indexing.adv_index(x, i, shape), data, *indices)


def _unravel_type(call: Call) -> Type:
    indices, shape = call.tensor(0), rank(call, 1, 1)
    integer_indices(call, 0, 1)
    if len(indices.shape) > 1:
        call.fail(f"indices must have 0 or 1 axes, got {show(indices)}")
    return TensorType((shape.shape[0], *indices.shape), indices.dtype)


def _unravel(s: Site) -> Any:
    # A size of 0 would divide by zero.
    sizes = s.emit(R.maximum(s.args[1], s.const(1, 1)))
    return program(s, lambda s, *given: topi.unravel_index(*given), s.args[0], sizes)


def _sequence_mask_type(call: Call) -> Type:
    data, lengths = call.tensor(0), rank(call, 1, 1)
    axis = call.attrs["axis"]
    if axis not in (0, 1) or len(data.shape) < 2:
        call.fail(f"axis must be 0 or 1 of two or more, got axis={axis} and {show(data)}")
    if not agree(lengths.shape[0], data.shape[1 - axis]):
        call.fail(f"valid_length must be as long as the batch, got {show(data)}, {show(lengths)}")
    return data


def _sequence_mask(s: Site) -> Any:
    """A comparison of positions with lengths."""
    data, axis = s.tensor(), s.attrs["axis"]
    size, dtype = known_size(s, data.shape[axis]), s.tensor(1).dtype
    tail = [1] * (len(data.shape) - 2)
    places = s.emit(R.astype(s.emit(R.arange(0, size, 1, "int32")), dtype))
    places = s.emit(R.reshape(places, [size, 1, *tail] if axis == 0 else [1, size, *tail]))
    lengths = s.emit(R.reshape(s.args[1], [1, -1, *tail] if axis == 0 else [-1, 1, *tail]))
    inside = s.emit(R.less(places, lengths))
    value = s.attrs["mask_value"]
    fill = s.const(value if data.is_float else int(value))
    return R.where(inside, s.args[0], fill)


def _reverse_sequence_type(call: Call) -> Type:
    data, lengths = call.tensor(0), rank(call, 1, 1)
    integer_indices(call, 1)
    axes = [call.axis(call.attrs[name], len(data.shape), name) for name in _SEQUENCE]
    if axes[0] == axes[1]:
        call.fail(f"seq_axis and batch_axis must differ, got {axes[0]} for both")
    if not agree(lengths.shape[0], data.shape[axes[1]]):
        call.fail(
            "For reverse_sequnece seq_lengths size should match with dimension of batch axis, but"
            f" got dimension of batch_axis = {data.shape[axes[1]]},"
            f" and seq_length size = {lengths.shape[0]}"
        )
    return data


_SEQUENCE = ("seq_axis", "batch_axis")


def _reverse_sequence(s: Site) -> Any:
    refuse_empty(s)
    shape = s.tensor().shape
    seq, batch = (s.axis(s.attrs[name], len(shape)) for name in _SEQUENCE)
    lengths = clipped(s, s.args[1], s.tensor(1).dtype, known_size(s, shape[seq]) + 1)
    return program(s, lambda s, x, n: topi.reverse_sequence(x, n, seq, batch), s.args[0], lengths)


def _trilu_type(call: Call) -> Type:
    data, k = call.tensor(0), rank(call, 1, 0)
    if len(data.shape) < 2:
        call.fail(f"data must have 2 axes at least, got {show(data)}")
    if not k.dtype.startswith("int"):
        call.fail(f"k must be an integer, got {show(k)}")
    return data


def _matrix_set_diag_type(call: Call) -> Type:
    data, diagonal = call.tensor(0), call.tensor(1)
    call.same_dtype(0, 1)
    low, high = call.attrs["k1"], call.attrs["k2"]
    if len(data.shape) < 2 or low > high:
        call.fail(f"k1={low} to k2={high} are no diagonals of {show(data)}")
    rows, columns = data.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        call.fail(f"needs known sizes, got {show(data)}")
    if low <= -rows or high >= columns:
        call.fail(f"k1={low} to k2={high} are no diagonals of {show(data)}")
    longest = min(rows + min(high, 0), columns - max(low, 0))
    wanted: tuple[Dim, ...] = (*data.shape[:-2], *([high - low + 1] if low < high else []), longest)
    same(call, diagonal.shape, wanted, f"diagonal must be {wanted}")
    return data


def _matrix_set_diag(s: Site) -> Any:
    a = s.attrs
    sides = (a["super_diag_right_align"], a["sub_diag_right_align"])
    align = "_".join("RIGHT" if right else "LEFT" for right in sides)
    return program(
        s, lambda s, x, d: topi.matrix_set_diag(x, d, (a["k1"], a["k2"]), align), *s.args
    )


define("gather", "data indices", _gather_type, _gather, "numpy",
       Attr("axis", None, "int?", asked=REQUIRED),
       kind=INJECTIVE, level=3,
       signature="data, axis, indices",
       doc="For each index the element there along `axis`, and at the index's own place "
           "along others.")  # fmt: skip
define("gather_nd", "data indices", _gather_nd_type, _gather_nd, "numpy",
       Attr("batch_dims", 0, "int"), Attr("index_rank", None, "int?"),
       kind=INJECTIVE, level=3,
       doc="Parts of `data`; the first axis of `indices` (M, …) holds one index for each "
           "of M axes.")  # fmt: skip
define("scatter_elements", "data indices updates", _scatter_elements_type, _scatter_elements,
       "numpy", Attr("axis", 0, "int"), Attr("reduction", "update", "str"),
       kind=OPAQUE, level=3, precision=FOLLOW,
       doc="`data` with `updates` put where `indices` say along `axis`.\n\n"
           "`reduction` is update, add, mul, mean, min or max.")  # fmt: skip
define("scatter_nd", "data indices updates", _scatter_nd_type, _scatter_nd, "numpy",
       Attr("mode", "update", "str"),
       kind=OPAQUE, level=3, precision=FOLLOW,
       doc="`data` with parts put where `indices` (M, …) say, as `gather_nd` reads "
           "them.")  # fmt: skip
define("adv_index", "inputs", _adv_index_type, _adv_index, "numpy", kind=INJECTIVE, level=3,
       gathers=True, doc="The first tensor indexed by the others, as NumPy does.")  # fmt: skip
define("unravel_index", "data shape", _unravel_type, _unravel, "numpy", kind=INJECTIVE, level=3,
       signature="indices: data, shape",
       doc="Places in a flat tensor as places along the axes of `shape`.")  # fmt: skip
define("sequence_mask", "data valid_length", _sequence_mask_type, _sequence_mask, "numpy",
       Attr("mask_value", 0.0, "float"), Attr("axis", 0, "int"),
       kind=INJECTIVE, level=10,
       doc="`data` with `mask_value` from each sequence's length on; `axis` is the "
           "time's, 0 or 1.")  # fmt: skip
define("reverse_sequence", "data seq_lengths", _reverse_sequence_type, _reverse_sequence, "numpy",
       Attr("seq_axis", 1, "int"), Attr("batch_axis", 0, "int"),
       kind=INJECTIVE, level=3,
       doc="`data` with the first so many elements of each sequence turned round.")  # fmt: skip
define("trilu", "data k", _trilu_type,
       lambda s: program(s, lambda s, x, k: topi.trilu(x, k(), s.attrs["upper"]), *s.args), "numpy",
       Attr("upper", True, "bool"),
       kind=ELEMWISE, level=3, numbers={"k": "int32"},
       doc="The upper or lower triangle of matrices, from the k-th diagonal on.")  # fmt: skip
define("matrix_set_diag", "input diagonal", _matrix_set_diag_type, _matrix_set_diag, "numpy",
       Attr("k1", 0, "int"), Attr("k2", 0, "int"), Attr("super_diag_right_align", True, "bool"),
       Attr("sub_diag_right_align", False, "bool"),
       kind=INJECTIVE, level=10)  # fmt: skip
