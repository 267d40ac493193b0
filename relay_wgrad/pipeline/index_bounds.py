"""Reads and writes at indices that data give: an index that the axis lacks gives NaN.

TVM's kernels read and write wherever an index points: garbage, or the end of the process, where
PyTorch raises an IndexError.  A kernel cannot raise; NaN reaches the loss, where a trainer stops.
Of other types than floats, which have no NaN, it is 0.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from .equal_calls import Legalizer


def bounded(upstream: Legalizer) -> dict[str, Legalizer]:
    """Legalizations of `take` and of what adds and writes at indices, on those of upstream."""

    def take(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, index, axis = call.args[0], call.args[1], call.attrs.axis
        if str(call.attrs.mode) != "fast" or axis is None or not _is_given(x, index):
            return upstream(bb, call)
        at, rank = int(axis) % len(x.ty.shape.values), len(index.ty.shape.values)

        def taken(x: Any, index: Any) -> Any:
            size, filling = x.shape[at], _filling(str(x.dtype))

            def element(*i: Any) -> Any:
                before, places, after = i[:at], i[at : at + rank], i[at + rank :]
                place = index(*places).astype("int64")
                found = x(*before, _clipped(place, 0, size), *after)
                return tirx.Select(tirx.all(place >= 0, place < size), found, filling)

            return te.compute(list(call.ty.shape.values), element, name="take")

        return bb.call_te(taken, x, index, primfunc_name_hint="take")

    def take_backward(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        gradient, x, index = call.args
        if call.attrs.axis is None or not _is_given(x, index):
            return upstream(bb, call)
        size = x.ty.shape.values[int(call.attrs.axis)]
        clipped = bb.emit_te(_clip, index, 0, size, primfunc_name_hint="clip")
        at, rank = int(call.attrs.axis) % len(x.ty.shape.values), len(index.ty.shape.values)
        kept = bb.emit_te(_kept, gradient, index, 0, size, at, rank, primfunc_name_hint="kept")
        return upstream(bb, _of(bb, call, [kept, x, clipped]))

    def scatter_elements(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, index, updates = call.args
        if not _is_given(x, index) or not _is_sized(updates):
            return upstream(bb, call)
        size = x.ty.shape.values[int(call.attrs.axis)]  # where negative ones count from the end
        clipped = bb.emit_te(_clip, index, -size, size, primfunc_name_hint="clip")
        rank = len(index.ty.shape.values)
        kept = bb.emit_te(_kept, updates, index, -size, size, 0, rank, primfunc_name_hint="kept")
        return upstream(bb, _of(bb, call, [x, clipped, kept]))

    def scatter_nd(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, index, updates = call.args
        depth = index.ty.shape.values[-1] if _is_given(x, index) else None
        if not isinstance(depth, tirx.IntImm) or not _is_sized(updates):
            return upstream(bb, call)
        sizes = list(x.ty.shape.values)[: int(depth)]

        def clip(index: Any) -> Any:
            def element(*i: Any) -> Any:
                found = _clipped(index(*i), 0, sizes[0])
                for number, size in enumerate(sizes[1:], start=1):
                    found = tirx.Select(i[-1] == number, _clipped(index(*i), 0, size), found)
                return found

            return te.compute(index.shape, element, name="clip")

        def keep(updates: Any, index: Any) -> Any:
            rows = len(index.shape) - 1

            def element(*i: Any) -> Any:
                places = [index(*i[:rows], number) for number in range(len(sizes))]
                ends = zip(places, sizes, strict=True)
                inside = [test for place, size in ends for test in (place >= 0, place < size)]
                return tirx.Select(tirx.all(*inside), updates(*i), _filling(str(updates.dtype)))

            return te.compute(updates.shape, element, name="kept")

        clipped = bb.emit_te(clip, index, primfunc_name_hint="clip")
        kept = bb.emit_te(keep, updates, index, primfunc_name_hint="kept")
        return upstream(bb, _of(bb, call, [x, clipped, kept]))

    return {
        "relax.take": take,
        "relax.grad.take_backward": take_backward,
        "relax.scatter_elements": scatter_elements,
        "relax.scatter_nd": scatter_nd,
    }


def _of(bb: relax.BlockBuilder, call: relax.Call, args: list[relax.Expr]) -> relax.Call:
    made: relax.Call = bb.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))
    return made


def _is_sized(x: relax.Expr) -> bool:
    return isinstance(x.ty, relax.TensorType) and isinstance(x.ty.shape, relax.ShapeExpr)


def _is_given(x: relax.Expr, index: relax.Expr) -> bool:
    """Whether both have shapes, and data give the indices: those of the program are its own."""
    return _is_sized(x) and _is_sized(index) and not isinstance(index, tvm.ir.Constant)


def _filling(dtype: str) -> Any:
    return tirx.const(float("nan") if "float" in dtype else 0, dtype)


def _clipped(place: Any, least: Any, size: Any) -> Any:
    return tirx.max(tirx.min(place, tirx.Cast(str(place.ty.dtype), size - 1)), least)


def _clip(index: Any, least: Any, size: Any) -> Any:
    return te.compute(index.shape, lambda *i: _clipped(index(*i), least, size), name="clip")


def _kept(updates: Any, index: Any, least: Any, size: Any, at: int, rank: int) -> Any:
    """Updates, and NaN where the index, of the axes from `at` on, is none of the axis."""
    filling = _filling(str(updates.dtype))

    def element(*i: Any) -> Any:
        place = index(*i[at : at + rank])
        return tirx.Select(tirx.all(place >= least, place < size), updates(*i), filling)

    return te.compute(updates.shape, element, name="kept")
