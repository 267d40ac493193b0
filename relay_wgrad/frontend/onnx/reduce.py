"""Builders of ONNX' reductions over axes, and of the normalizations that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from .. import activations as act
from ..context import Context, Node, shape_of

op = relax.op
Reduction = Callable[[Context, Any, list[int], bool], Any]


def _reduced(function: Reduction) -> Callable[[Context, Node], Any]:
    """Over constant axes, an attribute in older opsets and an operand in newer; all by default."""

    def build(ctx: Context, node: Node) -> Any:
        x = ctx.tensor(node.operand(0))
        axes, rank = list(node.setting("axes", 1) or []), len(shape_of(x))
        if not axes and node.attr("noop_with_empty_axes", 0):
            return x
        if any(not -rank <= a < rank for a in axes) or len({a % rank for a in axes}) != len(axes):
            raise ValueError(f"axes {axes} of a tensor with {rank} axes")
        found = sorted(int(a) % rank for a in axes) or list(range(rank))
        return function(ctx, x, found, bool(node.attr("keepdims", 1)))

    return build


def _plain(function: Callable[..., Any]) -> Reduction:
    return lambda ctx, x, axes, keep: ctx.emit(function(x, axes, keepdims=keep))


def _squares(ctx: Context, x: Any, axes: list[int], keep: bool) -> Any:
    return ctx.emit(op.sum(op.multiply(x, x), axes, keepdims=keep))


def _extremum(largest: bool) -> Reduction:
    return lambda ctx, x, axes, keep: act.extremum(ctx, x, axes, keep, largest)


def standardized(ctx: Context, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """x less its mean over its deviation, both over these axes."""
    centred = ctx.emit(op.subtract(x, ctx.emit(op.mean(x, list(axes), keepdims=True))))
    spread = ctx.emit(op.mean(op.multiply(centred, centred), list(axes), keepdims=True))
    shifted = op.add(spread, relax.const(epsilon, str(x.ty.dtype)))
    return ctx.emit(op.divide(centred, ctx.emit(op.sqrt(shifted))))


def _affine(ctx: Context, node: Node, x: Any, shape: tuple[int, ...] | None) -> Any:
    """Times the second operand, plus the third, each reshaped."""
    for index, (role, function) in enumerate((("scale", op.multiply), ("bias", op.add)), start=1):
        if node.has(index):
            vector = ctx.parameter(node.operand(index), role)
            if shape is not None:
                if math.prod(shape_of(vector)) != math.prod(shape):
                    raise ValueError(f"{role} {list(shape_of(vector))} does not fit {list(shape)}")
                vector = ctx.emit(op.reshape(vector, shape))
            x = ctx.emit(function(x, vector))
    return x


def layer_norm(ctx: Context, node: Node) -> Any:
    """LayerNormalization over the axes from `axis` on; its first result alone."""
    if any(node.proto.output[1:]):
        raise ValueError("the outputs Mean and InvStdDev are not supported")
    x = ctx.tensor(node.operand(0))
    rank, first = len(shape_of(x)), int(node.attr("axis", -1))
    if not -rank <= first < rank:
        raise ValueError(f"axis {first} of a tensor with {rank} axes")
    axes = range(first % rank, rank)
    out = standardized(ctx, x, axes, float(node.attr("epsilon", 1e-5)))
    return _affine(ctx, node, out, None)


def _in_groups(ctx: Context, node: Node, groups: int) -> Any:
    x = ctx.tensor(node.operand(0))
    shape = shape_of(x)
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise ValueError(f"{groups} groups do not divide the channels of {list(shape)}")
    rows = ctx.emit(op.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups)))
    even = standardized(ctx, rows, [2], float(node.attr("epsilon", 1e-5)))
    out = ctx.emit(op.reshape(even, shape))
    return _affine(ctx, node, out, (1, shape[1], *(1,) * (len(shape) - 2)))


def instance_norm(ctx: Context, node: Node) -> Any:
    """InstanceNormalization: each channel of each image by itself."""
    return _in_groups(ctx, node, shape_of(ctx.tensor(node.operand(0)))[1])


def group_norm(ctx: Context, node: Node) -> Any:
    """GroupNormalization, with a scale for each channel, as opset 21 has it."""
    if ctx.options.opset < 21:
        raise ValueError("before opset 21 scales are of groups: convert it to opset 21")
    return _in_groups(ctx, node, int(node.attr("num_groups", 0)))


REDUCTIONS: dict[str, Callable[[Context, Node], Any]] = {
    "GroupNormalization": group_norm,
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "ReduceL2": _reduced(act.norm),
    "ReduceMax": _reduced(_extremum(largest=True)),
    "ReduceMean": _reduced(_plain(op.mean)),
    "ReduceMin": _reduced(_extremum(largest=False)),
    "ReduceSum": _reduced(_plain(op.sum)),
    "ReduceSumSquare": _reduced(_squares),
}
"""ONNX op -> builder."""
