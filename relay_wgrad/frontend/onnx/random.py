"""ONNX's random ops: each is an input of `main`, drawn anew for every batch; or its mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...dtypes import FLOATS
from ..context import Context, shape_of
from ..layers import drawn_truths
from .dtypes import FLOAT_TYPES, as_float
from .node import Node


def _float(ctx: Context, node: Node) -> str:
    """The graph's dtype, for any float that the file asks for."""
    if int(node.attr("dtype", 0)) not in (0, *FLOAT_TYPES):
        raise ValueError(f"dtype={node.attr('dtype')}: only floats are supported")
    return ctx.options.dtype


def _sizes(ctx: Context, node: Node, like: bool) -> tuple[int, ...]:
    if like:
        return shape_of(ctx.tensor(node.operand(0)))
    return tuple(int(s) for s in node.attr("shape"))


def _distribution(
    kind: str, first: tuple[str, float], second: tuple[str, float], like: bool
) -> Callable[[Context, Node], Any]:
    """A distribution with two numbers: (their attributes, what they are by default)."""

    def build(ctx: Context, node: Node) -> Any:
        numbers = float(node.attr(*first)), float(node.attr(*second))
        shape, dtype = _sizes(ctx, node, like), _float(ctx, node)
        return ctx.draw(node.proto.output[0], shape, dtype, (kind, *numbers))

    return build


def _normal(like: bool) -> Callable[[Context, Node], Any]:
    return _distribution("normal", ("mean", 0.0), ("scale", 1.0), like)


def _uniform(like: bool) -> Callable[[Context, Node], Any]:
    return _distribution("uniform", ("low", 0.0), ("high", 1.0), like)


def _bernoulli(ctx: Context, node: Node) -> Any:
    """Ones with the probability that the operand has, by which there is no gradient."""
    _float(ctx, node)
    name, chance = node.proto.output[0], ctx.tensor(node.operand(0))
    if str(chance.ty.dtype) not in FLOATS:
        raise ValueError(f"its operand must be a float, got {chance.ty.dtype}")
    return as_float(ctx, drawn_truths(ctx, name, chance, shape_of(chance)))


RANDOM: dict[str, Callable[[Context, Node], Any]] = {
    "Bernoulli": _bernoulli,
    "RandomNormal": _normal(like=False),
    "RandomNormalLike": _normal(like=True),
    "RandomUniform": _uniform(like=False),
    "RandomUniformLike": _uniform(like=True),
}
"""ONNX op -> builder."""

NEVER_FOLDED = frozenset({*RANDOM, "Dropout", "Multinomial"})
"""Ops that are not run on import, though their operands are known: they would be drawn once."""
