"""Gradients and layout rules that upstream lacks, of what stands around convolutions in training.

`collapse_sum_to` is what a broadcast bias leaves behind in a first gradient, so without its own
gradient a convolution with bias has no second order; likewise for pooling, slicing and padding.
Each gradient is a linear map's transpose, said in ops that have gradients themselves.  The layout
rules are those of `layout_rules.table`, for the stock pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from .. import opdef
from ..attrs import as_ints
from ..dtypes import numpy_dtype
from ..layout_rules import stock, table
from ..problem import DTYPE_BYTES
from ..relation import as_expr, as_size
from . import derivatives, half_reductions, sampling, size_rules, ties

Partials = list[Any]
no_grad = relax.op.grad.no_grad

LOWEST = {dtype: float(ml_dtypes.finfo(numpy_dtype(dtype)).min) for dtype in DTYPE_BYTES}
"""What pads a maximum: the most negative number of each dtype."""


def _sizes(op: str, ty: relax.TensorType) -> list[Any]:
    """The sizes of a tensor type, numbers or expressions."""
    if not isinstance(ty.shape, relax.ShapeExpr):
        raise ValueError(f"{op}: no gradient with unknown sizes, got {ty}")
    return [as_size(v) for v in ty.shape.values]


def _shape(op: str, x: relax.Expr, axes: Sequence[int] | None = None) -> list[Any]:
    """The sizes of a tensor, which must be numbers on these axes, by default on all."""
    sizes = _sizes(op, x.ty)
    needed = range(len(sizes)) if axes is None else axes
    if not all(isinstance(sizes[a], int) for a in needed):
        raise ValueError(f"{op}: no gradient with symbolic sizes, got {x.ty}")
    return sizes


def stop(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """y = no_grad(x): x gets nothing."""
    return [no_grad(call.args[0])]


def collapse_sum_to(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """y = collapse_sum_to(x, shape) sums broadcast axes; the transpose broadcasts back."""
    x, shape = call.args
    return [relax.op.broadcast_to(ct, x.ty.shape), no_grad(shape)]


def collapse_sum_like(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """As `collapse_sum_to`, with the shape of a tensor."""
    x, like = call.args
    return [relax.op.broadcast_to(ct, x.ty.shape), no_grad(like)]


def squeeze(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Size-1 axes come back by a reshape."""
    return [relax.op.reshape(ct, call.args[0].ty.shape)]


def flip(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Turned round again."""
    return [relax.op.flip(ct, int(call.attrs.axis))]


def stack(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """y = stack((a, b, …), axis): each input gets its own slice, the new axis removed."""
    fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else None
    count = len(fields) if fields is not None else len(call.args[0].ty.fields)
    axis = int(call.attrs.axis)
    axis += var.ty.ndim if axis < 0 else 0
    if count == 1:
        return [relax.Tuple([relax.op.squeeze(ct, [axis])])]
    parts = relax.op.split(ct, count, axis)
    return [relax.Tuple([relax.op.squeeze(ctx.emit(parts[i]), [axis]) for i in range(count)])]


def concat(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """y = concat((a, b, …), axis): each input gets its own part.

    Parts at numbers are those of a split, as upstream's rule has it; `split` takes no others.
    """
    types = call.args[0].ty.fields
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    axis += var.ty.ndim if axis < 0 else 0
    if len(types) == 1:
        return [relax.Tuple([ct])]
    sizes = [_sizes("concat", ty)[axis] for ty in types]
    ends = list(itertools.accumulate(sizes))
    if all(isinstance(end, int) for end in ends[:-1]):
        return [relax.op.split(ct, ends[:-1], axis)]
    bounds = zip(types, [0, *ends], ends, strict=False)
    return [relax.Tuple([axis_slice(ctx.emit, ct, axis, a, b, ty.shape) for ty, a, b in bounds])]


def axis_slice(emit: Any, x: relax.Expr, axis: int, begin: Any, end: Any, shape: Any) -> relax.Expr:
    """x[begin:end] along an axis, of a `shape` that says its size plainly; begin ≤ end ≤ size.

    TVM takes a symbolic bound for one that may be negative, unless it sees that it is not, and the
    size that it then infers has branches, which it cannot copy into another function.
    """
    ends = [tirx.max(v, as_expr(0)) for v in map(as_expr, (begin, end))]
    cut = emit(relax.op.strided_slice(x, [axis], ends[:1], ends[1:]))
    return emit(relax.op.reshape(cut, shape))


def pad(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """y = pad(x) with a constant: the transpose crops."""
    if str(call.attrs.pad_mode) != "constant":
        raise ValueError(f"pad: no gradient for pad_mode={str(call.attrs.pad_mode)!r}")
    widths = as_ints("pad", "pad_width", call.attrs.pad_width)
    before, after = widths[0::2], widths[1::2]
    if any(w < 0 for w in widths):
        raise ValueError(f"pad: no gradient for negative pad_width={list(widths)}")
    axes = [a for a, pair in enumerate(zip(before, after, strict=True)) if any(pair)]
    if not axes:
        return [ct]
    sizes = _shape("pad", call.args[0], axes)
    end = [before[a] + sizes[a] for a in axes]
    return [relax.op.strided_slice(ct, axes, [before[a] for a in axes], end)]


def slice_bounds(call: relax.Call, sizes: Sequence[Any]) -> list[tuple[int, Any, int]]:
    """(begin, count, stride) for each axis, negative and out-of-range indices resolved.

    Raises ValueError for symbolic bounds, TypeError for a symbolic size of an axis that is sliced.
    """
    given = _slices(call)
    if not all(isinstance(bound, int) for _, *bounds in given for bound in bounds):
        raise ValueError(f"strided_slice: its bounds must be numbers, got {call}")
    return _resolved(given, sizes)


def _slices(call: relax.Call) -> list[tuple[int, Any, Any, int]]:
    """(axis, begin, end, stride) as a strided_slice has them, numbers or expressions."""

    def values(arg: Any) -> list[Any]:
        found = getattr(arg, "fields", None) or getattr(arg, "values", None) or []
        return [v if isinstance(v, int) else as_size(getattr(v, "value", v)) for v in found]

    axes, begin, end = (values(a) for a in call.args[1:4])
    strides = values(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    rank = call.args[0].ty.ndim
    return [(a % rank, b, e, s) for a, b, e, s in zip(axes, begin, end, strides, strict=True)]


def _resolved(given: Any, sizes: Sequence[Any]) -> list[tuple[int, Any, int]]:
    bounds = [(0, n, 1) for n in sizes]
    for axis, b, e, s in given:
        start, stop, step = slice(b, e, s).indices(sizes[axis])
        bounds[axis] = (start, len(range(start, stop, step)), step)
    return bounds


def strided_slice(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """The transpose scatters into zeros: dilate each strided axis, then pad it.

    Along an axis with a symbolic size or bound the zeros before and behind are joined to it.
    """
    sizes, given = _sizes("strided_slice", call.args[0].ty), _slices(call)
    if any(not isinstance(step, int) or step < 1 for *_, step in given):
        raise ValueError(f"strided_slice: no gradient for a negative stride, got {call}")
    grad, known = ct, []
    for axis, begin, end, step in given:
        if all(isinstance(v, int) for v in (sizes[axis], begin, end)):
            known.append((axis, begin, end, step))
        elif step > 1:
            raise ValueError(f"strided_slice: no gradient with symbolic sizes and a stride: {call}")
        else:
            grad = _among_zeros(grad, axis, begin, sizes[axis], ctx)
    bounds = _resolved(known, sizes)
    shape = [count for _, count, _ in bounds]
    for axis, (_, count, step) in enumerate(bounds):
        if step > 1:  # a, b -> a, 0, b, 0: a new axis of `step`, filled with zeros, then merged
            grad = ctx.emit(relax.op.expand_dims(grad, axis + 1))
            widths = [0] * (2 * len(shape) + 2)
            widths[2 * (axis + 1) + 1] = step - 1
            grad = ctx.emit(relax.op.nn.pad(grad, widths))
            shape[axis] = count * step
            grad = ctx.emit(relax.op.reshape(grad, shape))
    over = [
        b + n - size if isinstance(size, int) else 0
        for (b, _, _), n, size in zip(bounds, shape, sizes, strict=True)
    ]
    if axes := [a for a, v in enumerate(over) if v > 0]:  # zeros after the last may stand out
        end = [shape[a] - over[a] for a in axes]
        grad = ctx.emit(relax.op.strided_slice(grad, axes, [0] * len(axes), end))
    widths = [w for (b, _, _), v in zip(bounds, over, strict=True) for w in (b, max(-v, 0))]
    if any(widths):
        grad = relax.op.nn.pad(grad, widths)
    return [grad, *(no_grad(arg) for arg in call.args[1:])]


def _among_zeros(part: relax.Expr, axis: int, begin: Any, size: Any, ctx: Any) -> relax.Expr:
    """What was cut from a symbolic place of an axis, among zeros of the axis' size."""
    shape = _sizes("strided_slice", part.ty)
    begin, whole, taken = (as_expr(v) for v in (begin, size, shape[axis]))
    analyzer, most = Analyzer(), as_expr(1 << 60)
    for name in {v for e in (begin, whole, taken) for v in tirx.analysis.undefined_vars(e)}:
        analyzer.bind(name, tvm.ir.Range(as_expr(0), most))
    if not analyzer.can_prove(begin >= 0):
        begin = tirx.max(tirx.if_then_else(begin < 0, begin + whole, begin), as_expr(0))
    if not analyzer.can_prove(begin <= whole):
        begin = tirx.min(begin, whole)
    widths = [as_size(analyzer.simplify(v)) for v in (begin, whole - begin - taken)]
    zeros = [
        ctx.emit(relax.op.zeros([*shape[:axis], width, *shape[axis + 1 :]], str(part.ty.dtype)))
        for width in widths if width != 0
    ]  # fmt: skip
    both = [*zeros[:1], part, *zeros[1:]] if widths[0] != 0 else [part, *zeros]
    made = ctx.emit(relax.op.concat(both, axis)) if zeros else part
    return ctx.emit(relax.op.reshape(made, [*shape[:axis], size, *shape[axis + 1 :]]))


def avg_pool2d_backward(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Average pooling is linear: its backward's transpose is the pooling itself."""
    a, data = call.attrs, call.args[1]
    forward = relax.op.nn.avg_pool2d(
        ct, a.pool_size, a.strides, a.padding, a.dilation, a.ceil_mode, a.count_include_pad,
        a.layout, a.out_layout,
    )  # fmt: skip
    return [forward, relax.op.zeros(data.ty.shape, str(data.ty.dtype))]


def max_pool2d_backward(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Backward of max pooling scatters to each window's maximum; its transpose gathers there.

    The gather walks the window's taps, keeping value and cotangent of the largest seen so far, so
    the first of equal maxima wins, as in the scatter.  By `data` the map is locally constant.
    """
    a, data = call.attrs, call.args[1]
    if str(a.layout) not in ("NCHW", "NHWC") or str(a.out_layout) != str(a.layout):
        raise ValueError(f"max_pool2d_backward: no gradient for layout {a.layout}->{a.out_layout}")
    axes = [str(a.layout).index("H"), str(a.layout).index("W")]
    sizes, out = (_shape("max_pool2d_backward", x, axes) for x in (data, call.args[0]))
    (kh, kw), (sh, sw), (dh, dw) = a.pool_size, a.strides, a.dilation
    top, left = as_ints("max_pool2d", "padding", a.padding)[:2]
    need = [
        (out[axes[0]] - 1) * sh + (kh - 1) * dh + 1,
        (out[axes[1]] - 1) * sw + (kw - 1) * dw + 1,
    ]
    after = [max(need[0] - sizes[axes[0]] - top, 0), max(need[1] - sizes[axes[1]] - left, 0)]
    widths = [0] * 8
    widths[2 * axes[0] : 2 * axes[0] + 2] = [top, after[0]]
    widths[2 * axes[1] : 2 * axes[1] + 2] = [left, after[1]]
    lowest = LOWEST[str(data.ty.dtype)]
    x = ctx.emit(relax.op.nn.pad(data, widths, pad_value=lowest)) if any(widths) else data
    v = ctx.emit(relax.op.nn.pad(ct, widths)) if any(widths) else ct
    best = chosen = None
    for i in range(kh):
        for j in range(kw):
            begin = [i * dh, j * dw]
            end = [
                b + (out[ax] - 1) * s + 1 for b, ax, s in zip(begin, axes, (sh, sw), strict=True)
            ]
            x_tap = ctx.emit(relax.op.strided_slice(x, axes, begin, end, [sh, sw]))
            v_tap = ctx.emit(relax.op.strided_slice(v, axes, begin, end, [sh, sw]))
            if best is None:
                best, chosen = x_tap, v_tap
                continue
            larger = ctx.emit(relax.op.greater(x_tap, best))
            best = ctx.emit(relax.op.where(larger, x_tap, best))
            chosen = ctx.emit(relax.op.where(larger, v_tap, chosen))
    return [chosen, relax.op.zeros(data.ty.shape, str(data.ty.dtype))]


def full(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """Each element is the filling, whose gradient is their sum; upstream takes it for 0."""
    return [no_grad(call.args[0]), relax.op.sum(ct)]


_GRADIENTS: dict[str, Callable[..., Partials]] = {
    "relax.full": full,
    "relax.full_like": full,
    "relax.grad.no_grad": stop,
    "relax.collapse_sum_to": collapse_sum_to,
    "relax.collapse_sum_like": collapse_sum_like,
    "relax.concat": concat,
    "relax.flip": flip,
    "relax.image.grid_sample": sampling.gradient,
    "relax.squeeze": squeeze,
    "relax.stack": stack,
    "relax.nn.pad": pad,
    "relax.strided_slice": strided_slice,
    "relax.grad.avg_pool2d_backward": avg_pool2d_backward,
    "relax.grad.max_pool2d_backward": max_pool2d_backward,
    **derivatives.GRADIENTS,
    **ties.GRADIENTS,
}

EXTREMA = ("max", "min", "argmax", "argmin")
"""Reductions that choose an element, or its place."""
_LEGALIZERS = {
    **dict.fromkeys(half_reductions.REDUCTIONS, half_reductions.LEGALIZER),
    "relax.matmul": "legalize.products:matmul_rule",
    **{f"relax.{name}": "legalize.extrema:rule" for name in EXTREMA},
    "relax.grad.max_pool2d_backward": "legalize.pooling:max_pool2d_backward_rule",
    "relax.grad.avg_pool2d_backward": "legalize.pooling:avg_pool2d_backward_rule",
}


def _define(name: str) -> opdef.OpDef:
    gradient = _GRADIENTS.get(name)
    rules: dict[str, Any] = {}
    # Upstream has nothing here, or another convention: there is nothing for ours to wrap.
    if gradient is not None:
        rules[opdef.GRADIENT] = lambda upstream: gradient
    if name in stock.ADDED:
        rules[opdef.INFER_LAYOUT] = lambda upstream: stock.follow_rule(name)
    if name in half_reductions.GRADIENTS:
        rules[opdef.GRADIENT] = lambda upstream: half_reductions.gradient_rule(name, upstream)
    documented: Any = gradient or table.FOLLOW.get(name) or half_reductions
    return opdef.OpDef(
        name=name,
        summary=(documented.__doc__ or "").strip().partition("\n")[0],
        rules=rules,
        legalizer=_LEGALIZERS.get(name),
        sizes=size_rules.rule(name),
    )


_NAMES = dict.fromkeys((*_GRADIENTS, *stock.ADDED, *_LEGALIZERS, *size_rules.RULES))
DEFS = tuple(_define(name) for name in _NAMES if name not in size_rules.LINES)
