"""Gradients of lines, by that of the image with a height of 1 which they are."""

from __future__ import annotations

from dataclasses import replace

from ..ast import Call, Expr, Op
from ..records import attributes_of
from ..records.one_dimension import heights, in_image
from .common import Rule, call, type_of, typed


def of_rank(rank: int, rule: Rule) -> Rule:
    """The rule of an operator of images as it is, or of lines."""

    def of_lines(orig: Call, grad: Expr) -> list[Expr]:
        assert isinstance(orig.op, Op)
        a, line = attributes_of(orig), orig.op.name
        *places, out = heights(a)
        args = [_wide(x, axis) for x, axis in zip(orig.args, places, strict=True)]
        image = line.replace("1d", "2d")
        try:
            parts = rule(typed(image, *args, **in_image(a)), _wide(grad, out))
        except ValueError as error:
            raise ValueError(str(error).replace(image, line)) from error
        return [call("squeeze", g, axis=[axis]) for g, axis in zip(parts, places, strict=True)]

    return of_lines if rank == 1 else rule


def _wide(x: Expr, axis: int) -> Call:
    ty = type_of(x)
    ty = replace(ty, shape=(*ty.shape[:axis], 1, *ty.shape[axis:]))
    return replace(call("expand_dims", x, axis=axis), checked_type=ty)
