"""Operators of places: where elements are that are not zero, and a slice that is written."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ..types import ANY, TensorType, TupleType, Type
from .facts import FOLLOW, INJECTIVE, OPAQUE
from .loops import cell, kernel, loops, when
from .relations import agree
from .runtime_sizes import clamped_bound, length, number, scalar, sizes, slice_bounds
from .table import Attr, Call, Site, constant_value, define, show
from .te import integer_indices, program, rank

R = relax.op


def _argwhere_type(call: Call) -> Type:
    return TensorType((ANY, len(call.tensor().shape)), "int32")


def _argwhere(s: Site) -> Any:
    """The places are counted first; then each is written where the count has come to."""
    x, ndim = s.args[0], len(s.tensor().shape)
    if s.tensor().dtype == "bool":
        x = s.emit(R.astype(x, "int8"))
    dtype = str(s.bb.normalize(x).ty.dtype)
    given = s.emit(R.not_equal(x, relax.const(0, dtype)))
    marks = s.emit(R.astype(given, "int64"))
    (many,) = sizes(s, 1, lambda i, total: scalar(total), s.emit(R.sum(marks)))

    def listed(s: Site, marks: Any) -> Any:
        def body(ins: list[Any], outs: list[Any]) -> None:
            (mark,), (out,) = ins, outs
            found = cell("int64", 0)
            # The bound is for the compiler's sake: there are no more than were counted.
            with (
                loops(*marks.shape) as place,
                when(tirx.all(mark[place] != number(0), found[0] < many)),
            ):
                for k, axis in enumerate(place if ndim > 1 else [place]):
                    out[found[0], k] = axis.astype("int32")
                found[0] += number(1)

        return kernel("argwhere", [marks], [((many, ndim), "int32")], body)[0]

    if ndim == 0:
        return R.zeros([many, 0], "int32")
    return program(s, listed, marks)


def _set_type(call: Call) -> Type:
    data, values = call.tensor(0), call.tensor(1)
    call.same_dtype(0, 1)
    if len(data.shape) != len(values.shape):
        call.fail(f"v must have data's axes, got {show(data)} and {show(values)}")
    for index in (2, 3, 4):
        if length(call, index) > len(data.shape):
            call.fail(f"{call.inputs[index]} has more numbers than {show(data)} has axes")
    return data


def _written(s: Site, known: list[Any]) -> list[int]:
    """The sizes of a slice that constants say, which those of the values must be."""
    out = []
    for axis, size in enumerate(s.tensor().shape):
        given = [v[axis] if axis < len(v) else None for v in known]
        step = 1 if given[2] is None else int(given[2])
        if step == 0:
            s.fail("strides must not be 0")
        begin, end = (None if v is None else int(v) for v in given[:2])
        assert isinstance(size, int)
        out.append(len(range(*slice(begin, end, step).indices(size))))
    return out


def _set(s: Site) -> Any:
    """An element that the slice has is its value, by the place within the slice."""
    data, values = s.tensor(0), s.tensor(1)
    known = [constant_value(x) for x in s.args[2:]]
    if all(v is not None for v in known) and all(isinstance(n, int) for n in data.shape):
        wanted = _written(s, known)
        if not all(map(agree, wanted, values.shape)):
            s.fail(f"v must be of {tuple(wanted)}, got {show(values)} for {show(data)}")

    def compute(s: Site, x: Any, v: Any, *bounds: Any) -> Any:
        def of_axis(k: int, i: Any) -> tuple[Any, Any]:
            size = number(0) + x.shape[k]

            def given(n: int, default: Any) -> Any:
                inside = k < int(bounds[n].shape[0])
                return bounds[n][k].astype("int64") if inside else default

            step, low, high = slice_bounds(size, given(2, number(1)))
            first = clamped_bound(given(0, number(0)), size, low, high)
            last = clamped_bound(given(1, size), size, low, high)
            away = tirx.Select(step < 0, first - i, i - first)
            left = tirx.Select(step < 0, i - last, last - i)
            stride = tirx.Select(step < 0, -step, step)
            place = tirx.floordiv(away, stride)
            fits = tirx.all(away >= 0, left > 0, tirx.floormod(away, stride) == 0,
                            place < v.shape[k])  # fmt: skip
            return fits, place

        def at(*i: Any) -> Any:
            made = [of_axis(k, index.astype("int64")) for k, index in enumerate(i)]
            inside = tirx.all(*(fits for fits, _ in made))
            return tirx.if_then_else(inside, v[tuple(place for _, place in made)], x[i])

        return te.compute(x.shape, at)

    if 0 in values.shape or not data.shape:
        return s.args[0] if data.shape else s.args[1]
    return program(s, compute, *s.args)


def _unique_type(call: Call) -> Type:
    data = rank(call, 0, 1)
    integer_indices(call, 0)
    places = TensorType(data.shape, "int32")
    counts = (places,) if call.attrs["return_counts"] else ()
    return TupleType((data, places, places, TensorType((1,), "int32"), *counts))


def _unique(s: Site) -> Any:
    """Runs of equal values in order; in the order in which they come by their first places."""
    by_value, counts = s.attrs["sorted"], s.attrs["return_counts"]
    order = s.emit(R.argsort(s.args[0], axis=0, dtype="int32"))

    def grouped(s: Site, x: Any, order: Any) -> Any:
        (size,), none = x.shape, tirx.const(0, "int32")

        def body(ins: list[Any], outs: list[Any]) -> None:
            (value, sort), (groups, first, count, total) = ins, outs
            found = cell("int32", -1)
            with loops(size) as i:
                count[i] = none
            with loops(size) as i:
                ahead = sort[tirx.max(i - 1, 0)]
                with when(tirx.any(i == 0, value[sort[i]] != value[ahead])):
                    found[0] += 1
                    first[found[0]] = sort[i]
                first[found[0]] = tirx.min(first[found[0]], sort[i])
                groups[sort[i]] = found[0]
                count[found[0]] += 1
            total[0] = found[0] + 1
            with loops(size) as i, when(i >= total[0]):
                first[i] = size.astype("int32")

        shapes = [((size,), "int32")] * 3 + [((1,), "int32")]
        return kernel("grouped", [x, order], shapes, body)

    made = s.emit(program(s, grouped, s.args[0], order))
    groups, first, count, total = (s.emit(relax.TupleGetItem(made, i)) for i in range(4))
    # Those beyond the number have the size for their first place, and so are last either way.
    rows = first if by_value else s.emit(R.argsort(first, axis=0, dtype="int32"))

    def listed(s: Site, x: Any, groups: Any, first: Any, count: Any, total: Any, rows: Any) -> Any:
        (size,), zero = x.shape, tirx.const(0, "int32")

        def body(ins: list[Any], outs: list[Any]) -> None:
            (value, group, start, often, many, sort), (values, places, which, counted, rank_) = (
                ins, outs
            )  # fmt: skip
            with loops(size) as i:
                own = i.astype("int32") if by_value else sort[i]
                inside = i < many[0]
                place = tirx.Select(inside, start[own], zero)
                values[i] = tirx.Select(inside, value[place], tirx.const(0, x.dtype))
                places[i], counted[i] = place, tirx.Select(inside, often[own], zero)
                rank_[own] = i.astype("int32")
            with loops(size) as i:
                which[i] = rank_[group[i]]

        lines = [((size,), "int32")] * 4
        given = [x, groups, first, count, total, rows]
        return kernel("unique", given, [((size,), str(x.dtype)), *lines], body)

    made = s.emit(program(s, listed, s.args[0], groups, first, count, total, rows))
    values, places, which, counted = (s.emit(relax.TupleGetItem(made, i)) for i in range(4))
    return relax.Tuple([values, places, which, total, *([counted] if counts else [])])


define("argwhere", "condition", _argwhere_type, _argwhere, "numpy",
       kind=OPAQUE, level=10, precision=FOLLOW,
       doc="The places, a row each, of the elements that are not zero.")  # fmt: skip
define("strided_set", "data v begin end strides", _set_type, _set, "numpy", kind=INJECTIVE, level=4)
define("unique", "data", _unique_type, _unique, "numpy", Attr("sorted", True, "bool"),
       Attr("return_counts", False, "bool"),
       kind=OPAQUE, level=3, results=("return_counts", {False: 4, True: 5}),
       signature="data, is_sorted: sorted, return_counts",
       doc="(a vector's values once each, where each is first, which each element is, how many "
           "there\nare), and with `return_counts` how often each; what is beyond their number is "
           "0.\n\nThey are sorted, or in the order in which they come.")  # fmt: skip
