"""Builders of ONNX' reductions over axes, and of the normalizations that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...ops.moments import moments, standardized
from .. import activations as act
from .. import norms
from ..arithmetic import product
from ..context import Context, shape_of
from .node import Node
from .shapes import axis_of

op = relax.op
Reduction = Callable[[Context, Any, list[int], bool], Any]


def _reduced(function: Reduction) -> Callable[[Context, Node], Any]:
    """Over constant axes, an attribute in older opsets and an operand in newer; all by default."""

    def build(ctx: Context, node: Node) -> Any:
        x = ctx.tensor(node.operand(0))
        axes, rank = list(node.numbers("axes", 1) or []), len(shape_of(x))
        if not axes and node.attr("noop_with_empty_axes", 0):
            return x
        if any(not -rank <= a < rank for a in axes) or len({a % rank for a in axes}) != len(axes):
            raise ValueError(f"axes {axes} of a tensor with {rank} axes")
        found = sorted(int(a) % rank for a in axes) or list(range(rank))
        return function(ctx, x, found, bool(node.attr("keepdims", 1)))

    return build


def _plain(function: Callable[..., Any]) -> Reduction:
    return lambda ctx, x, axes, keep: ctx.emit(function(x, axes, keepdims=keep))


def _sum_of(each: Callable[[Any], Any]) -> Reduction:
    return lambda ctx, x, axes, keep: ctx.emit(op.sum(each(x), axes, keepdims=keep))


def _extremum(largest: bool) -> Reduction:
    return lambda ctx, x, axes, keep: act.extremum(ctx, x, axes, keep, largest)


_absolute = _sum_of(op.abs)


def _logarithm(ctx: Context, x: Any, axes: list[int], keep: bool) -> Any:
    return ctx.emit(op.log(op.sum(x, axes, keepdims=keep)))


def _log_of_powers(ctx: Context, x: Any, axes: list[int], keep: bool) -> Any:
    """log(sum(exp(x))), of exponentials that are 1 at most."""
    most = ctx.emit(op.grad.no_grad(ctx.emit(op.max(x, axes, keepdims=True))))
    total = ctx.emit(op.sum(op.exp(op.subtract(x, most)), axes, keepdims=True))
    out = ctx.emit(op.add(op.log(total), most))
    if keep:
        return out
    return ctx.emit(op.reshape(out, [s for a, s in enumerate(shape_of(x)) if a not in axes]))


def _scale_and_bias(ctx: Context, node: Node) -> list[Any]:
    """The second and the third operand, None where there is none."""
    return [
        ctx.affine_parameter(node.operand(index), role) if node.has(index) else None
        for index, role in enumerate(("scale", "bias"), start=1)
    ]


def _last_axes(x: Any, node: Node) -> list[int]:
    """The axes from `axis` on."""
    rank, first = len(shape_of(x)), int(node.attr("axis", -1))
    return list(range(axis_of(first, rank), rank))


def layer_norm(ctx: Context, node: Node) -> Any:
    """LayerNormalization over the axes from `axis` on; its first result alone."""
    if any(node.proto.output[1:]):
        raise ValueError("the outputs Mean and InvStdDev are not supported")
    x = ctx.tensor(node.operand(0))
    out = standardized(ctx.emit, x, _last_axes(x, node), float(node.attr("epsilon", 1e-5)))
    return norms.affine(ctx, out, *_scale_and_bias(ctx, node))


def rms_norm(ctx: Context, node: Node) -> Any:
    """RMSNormalization over the axes from `axis` on."""
    x = ctx.tensor(node.operand(0))
    out = norms.rms_norm(ctx, x, _last_axes(x, node), float(node.attr("epsilon", 1e-5)))
    return norms.affine(ctx, out, *_scale_and_bias(ctx, node))


def mean_variance_norm(ctx: Context, node: Node) -> Any:
    """MeanVarianceNormalization: x less its mean over its deviation and 1e-9."""
    x = ctx.tensor(node.operand(0))
    axes = [axis_of(a, len(shape_of(x))) for a in node.attr("axes", [0, 2, 3])]
    _, centred, variance = moments(ctx.emit, x, axes)
    return ctx.emit(op.divide(centred, op.add(op.sqrt(variance), ctx.const(1e-9))))


def lp_normalization(ctx: Context, node: Node) -> Any:
    """LpNormalization: by the norm of order 1 or 2 along an axis, 0 where that is 0."""
    x = ctx.tensor(node.operand(0))
    rank, axis, order = len(shape_of(x)), int(node.attr("axis", -1)), int(node.attr("p", 2))
    if not -rank <= axis < rank or order not in (1, 2):
        raise ValueError(f"axis {axis}, p={order} of a tensor with {rank} axes: p is 1 or 2")
    size = (_absolute if order == 1 else act.norm)(ctx, x, [axis % rank], True)
    none = ctx.emit(op.equal(size, ctx.const(0.0)))
    return act.where(ctx, none, 0.0, ctx.emit(op.divide(x, act.where(ctx, none, 1.0, size))))


def _in_groups(ctx: Context, node: Node, groups: int) -> Any:
    x, epsilon = ctx.tensor(node.operand(0)), float(node.attr("epsilon", 1e-5))
    if len(shape_of(x)) < 3:
        raise ValueError(f"expected at least 3 axes, got shape {list(shape_of(x))}")
    return norms.in_groups(ctx, x, groups, epsilon, *_scale_and_bias(ctx, node))


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
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_norm,
    "RMSNormalization": rms_norm,
    "ReduceL1": _reduced(_absolute),
    "ReduceL2": _reduced(act.norm),
    "ReduceLogSum": _reduced(_logarithm),
    "ReduceLogSumExp": _reduced(_log_of_powers),
    "ReduceMax": _reduced(_extremum(largest=True)),
    "ReduceMean": _reduced(_plain(op.mean)),
    "ReduceMin": _reduced(_extremum(largest=False)),
    "ReduceProd": _reduced(product),
    "ReduceSum": _reduced(_plain(op.sum)),
    "ReduceSumSquare": _reduced(_sum_of(lambda x: op.multiply(x, x))),
}
"""ONNX op -> builder."""
