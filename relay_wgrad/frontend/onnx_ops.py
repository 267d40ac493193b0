"""Builders of what is not a layer: elementwise ops, and ops that move or reshape; and the table.

`OPS` maps an ONNX op to its builder.  To add an op, write one function and one row, with ops that
have a gradient (`tvm.relax.op._op_gradient`), and a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from . import activations
from .context import FLOATS, Context, Node, shape_of
from .onnx_nn import LAYERS
from .onnx_random import RANDOM

Builder = Callable[[Context, Node], Any]


# ---- elementwise -----------------------------------------------------------------------------


def _unary(op: Callable[[Any], Any]) -> Builder:
    return lambda ctx, node: ctx.emit(op(ctx.tensor(node.operand(0))))


def _binary(op: Callable[[Any, Any], Any], role: str = "") -> Builder:
    """`role`: what a parameter is when it is an operand (a scale, a shift)."""

    def build(ctx: Context, node: Node) -> Any:
        operands = []
        for index in range(2):
            operands.append(ctx.tensor(node.operand(index)))
            if role:
                ctx.parameter(node.operand(index), role)
        return ctx.emit(op(*operands))

    return build


def sum_(ctx: Context, node: Node) -> Any:
    """Sum of any number of tensors, as adds."""
    total = ctx.tensor(node.operand(0))
    for index in range(1, len(node.operands)):
        total = ctx.emit(relax.op.add(total, ctx.tensor(node.operand(index))))
    return total


def clip(ctx: Context, node: Node) -> Any:
    """Clip between two constants, either of which may be missing.

    As `torch.clamp`, whose gradient passes at the bounds; but from 0 to 6 it is how ReLU6 is
    exported, whose gradient is 0 there.
    """
    x = ctx.tensor(node.operand(0))
    low, high = (
        None if bound is None else float(np.asarray(bound).item())
        for bound in (node.setting("min", 1), node.setting("max", 2))
    )
    if low == 0.0 and high == 6.0:
        return activations.hardtanh(ctx, x, low, high)
    return activations.clamp(ctx, x, low, high)


def leaky_relu(ctx: Context, node: Node) -> Any:
    """LeakyRelu: x, or alpha·x where x is not positive."""
    x = ctx.tensor(node.operand(0))
    return activations.leaky_relu(ctx, x, float(node.attr("alpha", 0.01)))


def hard_sigmoid(ctx: Context, node: Node) -> Any:
    """HardSigmoid: alpha·x + beta, clipped to 0…1."""
    x = ctx.tensor(node.operand(0))
    alpha, beta = float(node.attr("alpha", 0.2)), float(node.attr("beta", 0.5))
    return activations.hard_sigmoid(ctx, x, alpha, beta)


def hard_swish(ctx: Context, node: Node) -> Any:
    """HardSwish: x times HardSigmoid with alpha 1/6, beta 1/2."""
    return activations.hard_swish(ctx, ctx.tensor(node.operand(0)))


def softmax(ctx: Context, node: Node) -> Any:
    """Softmax and LogSoftmax; before opset 13 all axes from `axis` on are one."""
    x = ctx.tensor(node.operand(0))
    shape = shape_of(x)
    op = relax.op.nn.softmax if node.proto.op_type == "Softmax" else relax.op.nn.log_softmax
    axis = int(node.attr("axis", -1 if ctx.options.opset >= 13 else 1))
    if ctx.options.opset >= 13:
        return ctx.emit(op(x, axis))
    axis %= len(shape)
    flat = ctx.emit(relax.op.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:]))))
    return ctx.emit(relax.op.reshape(op(flat, 1), shape))


def cast(ctx: Context, node: Node) -> Any:
    """Cast between float dtypes: the identity, for the whole graph has one dtype."""
    x = ctx.tensor(node.operand(0))
    dtype = str(x.ty.dtype)
    if dtype not in FLOATS or int(node.attr("to")) not in (1, 10, 11, 16):
        raise ValueError(f"only casts between float dtypes are supported, not from {dtype}")
    return x


# ---- shapes ----------------------------------------------------------------------------------


def _reshape(ctx: Context, node: Node, target: Sequence[int]) -> Any:
    x = ctx.tensor(node.operand(0))
    return ctx.emit(relax.op.reshape(x, tuple(target)))


def identity(ctx: Context, node: Node) -> Any:
    """Identity."""
    return ctx.tensor(node.operand(0))


def reshape(ctx: Context, node: Node) -> Any:
    """Reshape, with the file's baked sizes rewritten to the new batch and image size.

    Of a target that is a constant, the first size is the batch if it was the operand's, and sizes
    that equal the operand's, counted from the right, follow the operand.
    """
    x = node.operand(0)
    expr = ctx.tensor(x)
    shape = shape_of(expr)
    value = node.operand(1)
    target = [int(t) for t in node.static(1, "the target shape").ravel()]
    before = ctx.original.get(x.name)
    if not node.attr("allowzero", 0):
        if 0 in target[len(shape) :]:
            raise ValueError(f"target {target} copies an axis that {list(shape)} lacks")
        target = [shape[i] if t == 0 else t for i, t in enumerate(target)]
    baked = list(target)
    if x.batched and not value.measured and before is not None:
        if target[0] == before[0]:
            target[0] = shape[0]
        for back in range(1, min(len(target), len(before))):
            if target[-back] != before[-back]:
                break
            target[-back] = shape[-back]
    if target.count(-1) == 1:
        known = -math.prod(target)
        if known and math.prod(shape) % known == 0:
            target[target.index(-1)] = math.prod(shape) // known
    if math.prod(target) != math.prod(shape) or min(target, default=1) < 0:
        made = f", made for {list(before)}," if before is not None else ""
        reason = f": it fixes the image size{ctx.options.size}" if ctx.options.resized else ""
        raise ValueError(f"its target {baked}{made} does not take {list(shape)}{reason}")
    return _reshape(ctx, node, target)


def flatten(ctx: Context, node: Node) -> Any:
    """Flatten to a matrix at `axis`."""
    shape = shape_of(ctx.tensor(node.operand(0)))
    axis = int(node.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return _reshape(ctx, node, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def squeeze(ctx: Context, node: Node) -> Any:
    """Squeeze, as a reshape: relax.squeeze has no gradient."""
    shape = shape_of(ctx.tensor(node.operand(0)))
    axes = node.setting("axes", 1)
    if axes is None:
        axes = [i for i, d in enumerate(shape) if d == 1]
    drop = {int(a) % len(shape) for a in axes}
    if any(shape[a] != 1 for a in drop):
        raise ValueError(f"axes {sorted(drop)} of {list(shape)} are not all of size 1")
    return _reshape(ctx, node, [d for i, d in enumerate(shape) if i not in drop])


def unsqueeze(ctx: Context, node: Node) -> Any:
    """Unsqueeze, as a reshape."""
    shape = list(shape_of(ctx.tensor(node.operand(0))))
    axes = [int(a) for a in node.setting("axes", 1, [])]
    rank = len(shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        shape.insert(axis, 1)
    return _reshape(ctx, node, shape)


def transpose(ctx: Context, node: Node) -> Any:
    """Transpose; without `perm` the axes are reversed."""
    perm = node.attr("perm")
    axes = None if perm is None else [int(p) for p in perm]
    return ctx.emit(relax.op.permute_dims(ctx.tensor(node.operand(0)), axes))


def concat(ctx: Context, node: Node) -> Any:
    """Concat along `axis`."""
    parts = [ctx.tensor(node.operand(i)) for i in range(len(node.operands))]
    return ctx.emit(relax.op.concat(parts, int(node.attr("axis")))) if len(parts) > 1 else parts[0]


def split(ctx: Context, node: Node) -> list[Any]:
    """Split along `axis` into the given sizes, or into equal parts."""
    x = ctx.tensor(node.operand(0))
    axis = int(node.attr("axis", 0)) % len(shape_of(x))
    total, count = shape_of(x)[axis], len(node.proto.output)
    sizes = node.setting("split", 1)
    if sizes is None:
        chunk = math.ceil(total / count)
        sizes = [min(chunk, total - i * chunk) for i in range(count)]
    if sum(sizes) != total or min(sizes) < 1:
        raise ValueError(f"sizes {sizes} do not split an axis of {total}")
    cuts = [int(c) for c in np.cumsum(sizes)[:-1]]
    parts = ctx.emit(relax.op.split(x, cuts, axis))
    return [ctx.emit(relax.TupleGetItem(parts, i)) for i in range(count)]


def pad(ctx: Context, node: Node) -> Any:
    """Pad with a constant, as concatenations: relax.nn.pad has no gradient."""
    x = ctx.tensor(node.operand(0))
    rank = len(shape_of(x))
    if node.attr("mode", "constant") != "constant":
        raise ValueError(f"mode {node.attr('mode')!r}: only 'constant' is supported")
    pads = [int(p) for p in node.setting("pads", 1)]
    fill = node.setting("value", 2, 0.0)
    fill = fill[0] if isinstance(fill, list) else fill
    axes = node.setting("axes", 3, list(range(rank)))
    if min(pads, default=0) < 0:
        raise ValueError(f"pads {pads}: cropping is not supported")
    for i, axis in enumerate(int(a) % rank for a in axes):
        parts = []
        for side in (0, 1):
            if size := pads[i + side * len(axes)]:
                shape = [*shape_of(x)]
                shape[axis] = size
                parts.append((side, ctx.const(np.full(shape, fill))))
        if parts:
            before = [e for side, e in parts if side == 0]
            after = [e for side, e in parts if side == 1]
            x = ctx.emit(relax.op.concat([*before, x, *after], axis))
    return x


def reduce_mean(ctx: Context, node: Node) -> Any:
    """ReduceMean over constant axes (all of them by default)."""
    axes = node.setting("axes", 1)
    if axes is None and node.attr("noop_with_empty_axes", 0):
        return ctx.tensor(node.operand(0))
    x = ctx.tensor(node.operand(0))
    return ctx.emit(relax.op.mean(x, axes, keepdims=bool(node.attr("keepdims", 1))))


OPS: dict[str, Builder] = {
    **LAYERS,
    **RANDOM,
    "Abs": _unary(relax.op.abs),
    "Add": _binary(relax.op.add, "shift"),
    "Cast": cast,
    "Clip": clip,
    "Concat": concat,
    "Div": _binary(relax.op.divide, "scale"),
    "Exp": _unary(relax.op.exp),
    "Flatten": flatten,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Identity": identity,
    "LeakyRelu": leaky_relu,
    "Log": _unary(relax.op.log),
    "LogSoftmax": softmax,
    "Mul": _binary(relax.op.multiply, "scale"),
    "Neg": _unary(relax.op.negative),
    "Pad": pad,
    "ReduceMean": reduce_mean,
    "Relu": _unary(relax.op.nn.relu),
    "Reshape": reshape,
    "Sigmoid": _unary(relax.op.sigmoid),
    "Softmax": softmax,
    "Split": split,
    "Sqrt": _unary(relax.op.sqrt),
    "Squeeze": squeeze,
    "Sub": _binary(relax.op.subtract, "shift"),
    "Sum": sum_,
    "Tanh": _unary(relax.op.tanh),
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
"""ONNX op -> builder.  A split returns a list of results, every other builder one."""

# Their result is a plain reshaping of their first operand: a weight stays a weight.
RESHAPING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
