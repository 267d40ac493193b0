"""Kernels on a CPU that read joined tensors: which one an element is of is asked once for a vector.

A concatenation asks it of each element, so that a loop over them has no vectors: DenseNet's
gradients of normalizations took four times what their bytes need.  Where all parts end at multiples
of a width it is the same along a loop of that width, and asked of the number of such a piece.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map, structural_walk

from ..ir import CHOICE

_NARROWEST = 4  # elements that are worth a vector


def asked_of_pieces(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with number <= place, where it chooses by that, as number / width <=
    place // width: of the greatest width of which all parts of what is joined have whole numbers.
    """
    asked_by = [call.args[0] for call in _choices(func.body) if _is_by_place(call)]
    if not asked_by:
        return func
    lengths: dict[Any, Any] = {}

    def seen(block: Any) -> None:
        lengths.update((axis.var, axis.dom.extent) for axis in block.iter_vars)

    structural_walk(func.body, (s_tir.SBlock, seen))
    ends = [x for asked in asked_by for x in (asked.a, lengths.get(asked.b))]
    known = [int(x) for x in ends if isinstance(x, tirx.IntImm)]
    width = math.gcd(*known) if len(known) == len(ends) else 1
    if width < _NARROWEST:
        return func

    def asked(call: Any) -> Any:
        if not _is_by_place(call):
            return call
        number, place = call.args[0].a, call.args[0].b
        piece = tirx.floordiv(place, tirx.const(width, str(place.ty.dtype)))
        return _asking(call, tirx.LE(tirx.const(int(number) // width, str(place.ty.dtype)), piece))

    return func.with_body(structural_map(func.body, (tvm.ir.Call, asked)))


def cut_into_pieces(sch: s_tir.Schedule, block: Any) -> bool:
    """Makes two axes of a block's last one, the latter of the width that `asked_of_pieces` divides
    its place by; says whether there is one."""
    held = sch.get(block)
    axis, length = held.iter_vars[-1].var, held.iter_vars[-1].dom.extent
    pieces = map(_piece, _choices(held.body))
    widths = {int(piece.b) for piece in pieces if piece is not None and _reads(piece, axis)}
    if len(widths) != 1 or not isinstance(length, tirx.IntImm):
        return False
    (width,) = widths
    if int(length) % width or int(length) == width:
        return False
    sch.transform_block_layout(
        block,
        tirx.IndexMap.from_func(
            lambda *i: [*i[:-1], i[-1] // width, i[-1] % width], ndim=len(held.iter_vars)
        ),
    )
    return True


def asks_each(stmt: Any, axis: Any, pieces: bool) -> bool:
    """Whether some choice depends on the very place along an axis, so that no vector has one;
    `pieces`: not those that ask for a piece's number, of which the axis is the places within."""
    asked = (call for call in _choices(stmt) if not pieces or _piece(call) is None)
    return any(_reads(call.args[0], axis) for call in asked)


def asked_once(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The scheduled kernel with the number of a piece as the axis that it is."""
    known = tvm.sym.Analyzer()

    def bound(block: Any) -> None:
        for axis in block.iter_vars:
            known.bind(axis.var, axis.dom)

    def simple(call: Any) -> Any:
        return call if _piece(call) is None else _asking(call, known.simplify(call.args[0]))

    structural_walk(func.body, (s_tir.SBlock, bound))
    return func.with_body(structural_map(func.body, (tvm.ir.Call, simple)))


def _is_choice(call: Any) -> bool:
    return str(getattr(call.op, "name", "")) == CHOICE


def _choices(stmt: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(stmt, (tvm.ir.Call, found.append))
    return list(filter(_is_choice, found))


def _asking(choice: Any, condition: Any) -> Any:
    return tvm.ir.Call(choice.op, [condition, *choice.args[1:]], ret_ty=choice.ty)


def _is_by_place(call: Any) -> bool:
    """Whether it chooses by number <= place, of a number that is known, as a concatenation does."""
    if not _is_choice(call) or not isinstance(call.args[0], tirx.LE):
        return False
    number, place = call.args[0].a, call.args[0].b
    return isinstance(number, tirx.IntImm) and int(number) > 0 and isinstance(place, tvm.ir.Var)


def _piece(call: Any) -> Any:
    """The number of a piece that a choice asks for; None of another call."""
    if not _is_choice(call) or not isinstance(call.args[0], tirx.LE):
        return None
    piece = call.args[0].b
    is_known = isinstance(piece, tirx.FloorDiv) and isinstance(piece.b, tirx.IntImm)
    return piece if is_known else None


def _reads(value: Any, axis: Any) -> bool:
    return any(axis.same_as(x) for x in tirx.analysis.undefined_vars(value))
