"""Operators of which several that share an operand are one wide one, and how.

Along an axis operands and results are concatenated and sliced, along a new one stacked and split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..ast import Call, Expr, Tuple, TupleGetItem
from ..make import call
from ..records import attributes_of, lookup
from ..types import TensorType

Branch = list[Call]
Group = list[Branch]


@dataclass(frozen=True)
class Family:
    """How branches of one operator are combined.

    `alike`: whether two calls may be; `combined` makes the wide call, and says which axis of its
    result the branches are along; `operand` joins the operands of what follows, given the axis, or
    None if it can't; `parts` gives each branch's result.
    """

    op: str
    alike: Callable[[Call, Call], bool]
    combined: Callable[[Group], tuple[Call, int]]
    operand: Callable[[Sequence[Call], int, int, int], Expr | None]
    parts: Callable[[Expr, Group, int, int], list[Expr]]
    widens: bool = False  # whether what follows may have more axes


# ---- types ---------------------------------------------------------------------------------------


def _type(node: Expr) -> TensorType:
    ty = node.checked_type
    assert isinstance(ty, TensorType)
    return ty


def shape_of(node: Expr) -> tuple[Any, ...]:
    return tuple(_type(node).shape)


def ndim_of(node: Expr) -> int:
    return len(_type(node).shape)


def _same(a: Call, b: Call, *names: str) -> bool:
    left, right = attributes_of(a), attributes_of(b)
    return all(left[name] == right[name] for name in names)


def _same_dtypes(a: Call, b: Call) -> bool:
    pairs = zip((a, *a.args), (b, *b.args), strict=True)
    return all(_type(x).dtype == _type(y).dtype for x, y in pairs)


# ---- along an axis -------------------------------------------------------------------------------


def _slices(wide: Expr, group: Group, depth: int, axis: int, upto: bool) -> list[Expr]:
    """`upto`: the axes after the one that is sliced are not named, as Relay does it."""
    parts: list[Expr] = []
    start = 0
    for branch in group:
        count = axis + 1 if upto else ndim_of(branch[depth])
        begin, end = [0] * count, [-1] * count
        begin[axis], end[axis] = start, shape_of(branch[depth])[axis]
        start += end[axis]
        parts.append(
            call(
                "strided_slice", wide, begin=begin, end=end, strides=[1] * count, slice_mode="size"
            )
        )
    return parts


def _joined(level: Sequence[Call], index: int, place: int, axis: int, count_back: bool) -> Any:
    """Operands that have the axis, whole; `count_back` names it from the end."""
    args = [node.args[index] for node in level]
    first = args[0]
    at = axis - ndim_of(level[0]) + ndim_of(first)
    for node, arg in zip(level, args, strict=True):
        if _type(arg).dtype != _type(first).dtype or ndim_of(arg) != ndim_of(first) or at < 0:
            return None
        if shape_of(arg)[at] != shape_of(node)[axis]:
            return None
        if any(x != y for i, (x, y) in enumerate(zip(shape_of(arg), shape_of(first))) if i != at):  # noqa: B905
            return None
    return call("concatenate", Tuple(tuple(args)), axis=at - ndim_of(first) if count_back else at)


# ---- convolutions --------------------------------------------------------------------------------


_CONV_ATTRS = (
    "strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout",
    "out_dtype",
)  # fmt: skip


def _alike_conv(a: Call, b: Call) -> bool:
    if not _same(a, b, *_CONV_ATTRS) or not _same_dtypes(a, b) or attributes_of(a)["groups"] != 1:
        return False
    layout = attributes_of(a)["kernel_layout"]
    return all(shape_of(a.args[1])[layout.index(x)] == shape_of(b.args[1])[layout.index(x)]
               for x in "HW")  # fmt: skip


def _conv(group: Group) -> tuple[Call, int]:
    head = group[0][0]
    attrs = attributes_of(head)
    layout, kernel = attrs["out_layout"] or attrs["data_layout"], attrs["kernel_layout"]
    weights = [branch[0].args[1] for branch in group]
    attrs["channels"] = sum(shape_of(w)[kernel.index("O")] for w in weights)
    weight = call("concatenate", Tuple(tuple(weights)), axis=kernel.index("O"))
    return call("nn.conv2d", head.args[0], weight, **attrs), layout.index("C")


# ---- products ------------------------------------------------------------------------------------


def _alike_dense(a: Call, b: Call) -> bool:
    same = _same(a, b, "out_dtype") and _same_dtypes(a, b)
    return same and ndim_of(a) == 2 and shape_of(a.args[1])[1] == shape_of(b.args[1])[1]


def _dense(group: Group) -> tuple[Call, int]:
    head = group[0][0]
    weights = [branch[0].args[1] for branch in group]
    units = sum(shape_of(w)[0] for w in weights)
    weight = call("concatenate", Tuple(tuple(weights)), axis=0)
    out = call(
        "nn.dense", head.args[0], weight, units=units, out_dtype=attributes_of(head)["out_dtype"]
    )
    return out, 1


def _dense_operand(level: Sequence[Call], index: int, place: int, axis: int) -> Expr | None:
    """Operands along the last axis; one that is repeated there is written out before."""
    first = level[0].args[index]
    if axis != ndim_of(level[0]) - 1:
        return None
    args: list[Expr] = []
    for node in level:
        arg, units = node.args[index], shape_of(node)[axis]
        same = _type(arg).dtype == _type(first).dtype and ndim_of(arg) == ndim_of(first)
        if not same or shape_of(arg)[:-1] != shape_of(first)[:-1]:
            return None
        last = max(ndim_of(arg), 1) - 1
        repeated = not shape_of(arg) or (shape_of(arg)[-1] == 1 and units > 1)
        if not shape_of(arg):
            arg = call("expand_dims", arg, axis=-1)
        args.append(call("repeat", arg, repeats=units, axis=last) if repeated else arg)
    return call("concatenate", Tuple(tuple(args)), axis=max(ndim_of(first), 1) - 1)


def _alike_matmul(a: Call, b: Call) -> bool:
    plain = all(
        not attributes_of(c)["transpose_a"] and attributes_of(c)["transpose_b"] for c in (a, b)
    )
    same = _same(a, b, "out_dtype") and _same_dtypes(a, b)
    return plain and same and shape_of(a.args[1])[0] == shape_of(b.args[1])[0]


def _matmul(group: Group) -> tuple[Call, int]:
    head = group[0][0]
    weight = call("concatenate", Tuple(tuple(b[0].args[1] for b in group)), axis=1)
    return call("nn.batch_matmul", head.args[0], weight, **attributes_of(head)), 2


# ---- stacked -------------------------------------------------------------------------------------


def _alike_shapes(a: Call, b: Call) -> bool:
    same = len(a.args) == len(b.args) and attributes_of(a) == attributes_of(b)
    return same and all(_type(x) == _type(y) for x, y in zip((a, *a.args), (b, *b.args)))  # noqa: B905


def _alike_weights(a: Call, b: Call) -> bool:
    return _alike_dense(a, b) and shape_of(a.args[1]) == shape_of(b.args[1])


def _stacked(args: Sequence[Expr], ndim: int) -> Expr:
    wide = [
        call("expand_dims", a, axis=0, num_newaxis=ndim - ndim_of(a)) if ndim_of(a) < ndim else a
        for a in args
    ]
    return call("stack", Tuple(tuple(wide)), axis=0)


def _stack_all(group: Group) -> list[Expr]:
    heads = [branch[0] for branch in group]
    columns = zip(*(head.args for head in heads), strict=True)
    return [_stacked(column, ndim_of(column[0])) for column in columns]


def _batch_dense(group: Group) -> tuple[Call, int]:
    dtype = attributes_of(group[0][0])["out_dtype"]
    out = call("nn.batch_matmul", *_stack_all(group), out_dtype=dtype, transpose_b=True)
    return out, 0


def _stack_operand(level: Sequence[Call], index: int, place: int, axis: int) -> Expr | None:
    args = [node.args[index] for node in level]
    if any(_type(arg) != _type(args[0]) for arg in args):
        return None
    return _stacked(args, ndim_of(level[0]))


def _unstacked(wide: Expr, group: Group, depth: int, axis: int) -> list[Expr]:
    parts = call("split", wide, indices_or_sections=len(group), axis=0)
    return [call("squeeze", TupleGetItem(parts, i), axis=[0]) for i in range(len(group))]


def op_batch(op: str, batch_op: str) -> Family:
    """Calls of `op` as one of `batch_op`, whose operands and results are theirs stacked.

    `batch_op` gets no attributes, but where `_BATCHES` says which mean the same; calls for which
    its result so has another type are left.
    """
    if (op, batch_op) in _BATCHES:
        return _BATCHES[op, batch_op]

    def alike(a: Call, b: Call) -> bool:
        ranks = {ndim_of(node) for node in (a, *a.args)}
        return _alike_shapes(a, b) and len(ranks) == 1 and fits(a)

    def fits(a: Call) -> bool:
        types = [TensorType((2, *shape_of(arg)), _type(arg).dtype) for arg in a.args]
        try:
            made = lookup(batch_op).infer(types, {})
        except (TypeError, ValueError):
            return False
        return made == TensorType((2, *shape_of(a)), _type(a).dtype)

    def combined(group: Group) -> tuple[Call, int]:
        return call(batch_op, *_stack_all(group)), 0

    lookup(op), lookup(batch_op)
    return Family(op, alike, combined, _stack_operand, _unstacked)


CONV2D = Family(
    "nn.conv2d", _alike_conv, _conv,
    lambda level, i, place, axis: _joined(level, i, place, axis, False),
    lambda wide, group, depth, axis: _slices(wide, group, depth, axis, upto=True),
)  # fmt: skip
DENSE = Family(
    "nn.dense", _alike_dense, _dense, _dense_operand,
    lambda wide, group, depth, axis: _slices(wide, group, depth, axis, upto=False), widens=True,
)  # fmt: skip
DENSE_TO_BATCH = Family("nn.dense", _alike_weights, _batch_dense, _stack_operand, _unstacked)
BATCH_MATMUL = Family(
    "nn.batch_matmul", _alike_matmul, _matmul,
    lambda level, i, place, axis: _joined(level, i, place, axis, True),
    lambda wide, group, depth, axis: _slices(wide, group, depth, axis, upto=False),
)  # fmt: skip
_BATCHES = {("nn.dense", "nn.batch_matmul"): DENSE_TO_BATCH}
