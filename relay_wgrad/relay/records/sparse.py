"""Tensors as lists of elements with their places, and those of them that fill a whole one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax, te, tirx

from ..types import ANY, TensorType, TupleType, Type
from .relations import agree
from .runtime_sizes import as_dims, length, number, sizes, stated, total, unknown, vector_of
from .table import REQUIRED, Attr, Call, Site, define, lookup, show
from .te import integer_indices, program, rank

R = relax.op


def _elements(call: Call, first: int, values: int, default: int) -> str:
    """The dtype of what is checked to be elements at places, and their default."""
    places, ty = rank(call, first, 0, 1, 2), rank(call, values, 0, 1)
    integer_indices(call, first)
    rank(call, default, 0)
    if ty.shape and places.shape and not agree(places.shape[0], ty.shape[0]):
        call.fail(f"there must be as many values as places, got {show(places)} and {show(ty)}")
    if ty.shape and not places.shape:
        call.fail(f"one place has one value, got {show(ty)}")
    return call.same_dtype(values, default)


def _count(call: Call, index: int) -> int:
    """How many numbers a place has."""
    places = call.tensor(index)
    size = places.shape[1] if len(places.shape) == 2 else 1
    if not isinstance(size, int):
        call.fail(f"{call.inputs[index]} must have a known second axis, got {show(places)}")
    return size


def _to_dense_type(call: Call) -> Type:
    dtype, shape = _elements(call, 0, 1, 2), call.attrs["output_shape"]
    if min(shape, default=0) < 0 or _count(call, 0) != len(shape):
        call.fail(f"places of {_count(call, 0)} numbers in a tensor of {list(shape)}")
    return TensorType(tuple(shape), dtype)


def _dyn_to_dense_type(call: Call) -> Type:
    dtype, axes = _elements(call, 0, 2, 3), length(call, 1)
    if _count(call, 0) != axes:
        call.fail(f"places of {_count(call, 0)} numbers in a tensor of {axes} axes")
    return unknown(axes, dtype)


def _dense(s: Site, values: int, default: int, shape: list[Any]) -> Any:
    """A scatter into a line of the default; what is outside the tensor is left out."""
    count, ty, given = _count(s, 0), s.tensor(0), s.tensor(values)
    many = ty.shape[0] if ty.shape else 1
    (size,), whole = s.sizes(TensorType((many,))), total(shape)

    def lined(s: Site, places: Any, dims: Any) -> Any:
        def at(k: Any) -> Any:
            place, end, inside = number(0), number(1), tirx.const(True, "bool")
            for c in range(count):
                own = places[(k, c)[: len(ty.shape)]].astype("int64")
                inside = tirx.all(inside, own >= 0, own < dims[c])
                place, end = place * dims[c] + own, end * dims[c]
            return tirx.Select(inside, place, end)

        return te.compute((size,), at)

    lines = s.emit(program(s, lined, s.args[0], vector_of(s, shape)))
    listed = s.emit(R.broadcast_to(s.args[values], [size]))
    types = (
        TensorType(as_dims([whole]), given.dtype),
        TensorType((many,), "int64"),
        TensorType((many,), given.dtype),
    )
    record = lookup("scatter_elements")
    inner = replace(
        s, op=record.name, inputs=record.inputs, types=types, out=types[0],
        attrs={"axis": 0, "reduction": "update"},
        args=(s.emit(R.broadcast_to(s.args[default], [whole])), lines, listed),
    )  # fmt: skip
    return R.reshape(s.emit(record.builder(inner)), shape)


def _filled_type(call: Call) -> Type:
    places, values, shape = rank(call, 0, 2), rank(call, 1, 1), rank(call, 2, 1)
    default = rank(call, 3, 1)
    integer_indices(call, 0, 2)
    call.same_dtype(0, 2)
    call.same_dtype(1, 3)
    if not agree(places.shape[0], values.shape[0]) or not agree(places.shape[1], shape.shape[0]):
        call.fail(
            "there must be a value for each place, and a size for each of its numbers, got"
            f" {show(places)}, {show(values)} and {show(shape)}"
        )
    if not agree(default.shape[0], 1):
        call.fail(f"default_value must be one number, got {show(default)}")
    axes = shape.shape[0] if places.shape[1] is ANY else places.shape[1]
    return TupleType((
        TensorType((ANY, axes), places.dtype), TensorType((ANY,), values.dtype),
        TensorType((ANY,), "bool"),
    ))  # fmt: skip


def _fill_empty_rows(s: Site) -> Any:
    """The elements and a candidate for each row, sorted by keys that no two share.

    Of a row r there are the elements k, with r m + k for m elements or more, and at its end the
    candidate; last come elements that are in no row, and the candidates of rows with elements.
    """
    places, values, shape, default = s.args
    many, axes = s.sizes(s.tensor(0))
    step = many + 1
    (rows,) = sizes(s, 1, lambda i, x: x[0].astype("int64"), shape)
    counts = s.emit(R.zeros([rows], "int64"))
    if many != 0:

        def counted(s: Site, places: Any) -> Any:
            # One more than there are: a sum over nothing would not be written at all.
            k = te.reduce_axis((0, places.shape[0] + 1), "k")

            def at(r: Any) -> Any:
                given = tirx.if_then_else(
                    k < places.shape[0], places[k, 0].astype("int64"), number(-1)
                )
                return te.sum(tirx.Select(given == r, number(1), number(0)), k)

            return te.compute((rows,), at)

        counts = s.emit(program(s, counted, places))
    empty = s.emit(R.equal(counts, relax.const(0, "int64")))
    (added,) = sizes(s, 1, lambda i, x: x[()], s.emit(R.sum(s.emit(R.astype(empty, "int64")))))

    def keyed(s: Site, places: Any, counts: Any) -> Any:
        def at(p: Any) -> Any:
            p = p.astype("int64")
            row = p - many
            of_row = tirx.Select(counts[tirx.Max(row, number(0))] == 0,
                                 row * step + many, (rows + 1) * step + row)  # fmt: skip
            if many == 0:
                return of_row
            own = places[tirx.Min(p, number(0) + many - 1), 0].astype("int64")
            inside = tirx.all(own >= 0, own < rows)
            return tirx.if_then_else(
                p < many, tirx.Select(inside, own * step + p, rows * step + p), of_row
            )

        return te.compute((many + rows,), at)

    keys = s.emit(program(s, keyed, places, counts))
    order = s.emit(R.argsort(keys, 0, False, "int64"))

    def merged(s: Site, places: Any, values: Any, default: Any, order: Any) -> Any:
        def place(p: Any, c: Any) -> Any:
            k = order[p]
            new = tirx.Select(c == 0, (k - many).astype(places.dtype), tirx.const(0, places.dtype))
            return new if many == 0 else tirx.if_then_else(k < many, places[k, c], new)

        def value(p: Any) -> Any:
            k = order[p]
            return default[0] if many == 0 else tirx.if_then_else(k < many, values[k], default[0])

        size = many + added
        return [te.compute((size, axes), place), te.compute((size,), value)]

    made = s.emit(program(s, merged, places, values, default, order))
    parts = [s.emit(relax.TupleGetItem(made, i)) for i in range(2)]
    return relax.Tuple([*parts, empty])


define("sparse_to_dense", "sparse_indices sparse_values default_value", _to_dense_type,
       lambda s: _dense(s, 1, 2, list(s.attrs["output_shape"])), "numpy",
       Attr("output_shape", REQUIRED, "sizes"),
       level=3)  # fmt: skip
define("dyn.sparse_to_dense", "sparse_indices output_shape sparse_values default_value",
       _dyn_to_dense_type, lambda s: _dense(s, 2, 3, stated(s, 1)), "numpy")  # fmt: skip
define("sparse_fill_empty_rows", "sparse_indices sparse_values dense_shape default_value",
       _filled_type, _fill_empty_rows, "numpy", results=3,
       doc="Places, values, and which rows were empty: each of these has one element "
           "more.")  # fmt: skip
