"""Backward of pooling.  Of maxima upstream's kernel counts pixels twice and reads past its borders.

TOPI's `pool_grad` does not compare a window's index with the number of windows: where
outputs * stride < kernel a pixel is counted in windows that do not exist, and at every border their
argmax is read out of bounds.  It has no dilation either.  Of means it divides by the whole window
also where the last one runs over the edge (`ceil_mode`) and the mean is over what is inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, s_tir, te, tirx, topi
from tvm.relax.utils import gen_call_tir_inputs
from tvm.target import Target

from relay_wgrad.attrs import padding4, pair
from relay_wgrad.dtypes import wide_of
from relay_wgrad.ir import OPAQUE
from relay_wgrad.keys import OP_PATTERN, SCHEDULED, SYMBOL
from relay_wgrad.opdef import OpDef

from .cpu import max_pool
from .cpu.emitters.loops import cast
from .half_reductions import wide_rule
from .quotient import quotient

Expr = Any


def te_max_pool2d_backward(
    grad: Expr,
    data: Expr,
    axes: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    before: tuple[int, int],
) -> Expr:
    """dx of y = max_pool2d(x): each y's gradient goes to the first maximum of its window.

    `axes` are the height's and the width's; `before` the padding above and left.
    """

    def at(index: list[Expr], rows: Expr, columns: Expr) -> list[Expr]:
        out = list(index)
        out[axes[0]], out[axes[1]] = rows, columns
        return out

    def first_maximum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
        keep = tirx.any(a[1] > b[1], tirx.all(a[1] == b[1], a[0] < b[0]))
        return tirx.Select(keep, a[0], b[0]), tirx.Select(keep, a[1], b[1])

    def nothing(index_type: Expr, value_type: Expr) -> tuple[Expr, Expr]:
        return tirx.const(2**31 - 1, "int32"), least

    # TVM does not legalize a pair with a bfloat16 in it.
    wide = wide_of(data.dtype)
    least = tirx.min_value(wide)
    reducer = te.comm_reducer(first_maximum, nothing, name="first_maximum")
    i, j = te.reduce_axis((0, kernel[0]), "i"), te.reduce_axis((0, kernel[1]), "j")

    def window(*index: Expr) -> tuple[Expr, Expr]:
        row = index[axes[0]] * strides[0] + i * dilation[0] - before[0]
        column = index[axes[1]] * strides[1] + j * dilation[1] - before[1]
        inside = tirx.all(row >= 0, row < data.shape[axes[0]], column >= 0,
                          column < data.shape[axes[1]])  # fmt: skip
        value = tirx.if_then_else(inside, cast(data(*at(list(index), row, column)), wide, 1), least)
        return reducer(((i * kernel[1] + j).astype("int32"), value), axis=[i, j])

    chosen = te.compute(grad.shape, window, name="first_maximum")[0]
    # Taps in reverse: see `generic._dgrad`.
    r, s = te.reduce_axis((0, kernel[0]), "r"), te.reduce_axis((0, kernel[1]), "s")

    def scatter(*index: Expr) -> Expr:
        row = index[axes[0]] + r * dilation[0] + (before[0] - (kernel[0] - 1) * dilation[0])
        column = index[axes[1]] + s * dilation[1] + (before[1] - (kernel[1] - 1) * dilation[1])
        p, q = quotient(row, strides[0]), quotient(column, strides[1])  # not read below 0
        exists = tirx.all(
            tirx.floormod(row, strides[0]) == 0, tirx.floormod(column, strides[1]) == 0,
            row >= 0, column >= 0, p < grad.shape[axes[0]], q < grad.shape[axes[1]],
        )  # fmt: skip
        source = at(list(index), p, q)
        here = ((kernel[0] - 1 - r) * kernel[1] + kernel[1] - 1 - s).astype("int32")
        value = cast(grad(*source), wide, 1)
        taken = tirx.if_then_else(
            exists,
            tirx.if_then_else(chosen(*source) == here, value, tirx.const(0, wide)),
            tirx.const(0, wide),
        )
        return te.sum(taken, axis=[r, s])

    total = te.compute(data.shape, scatter, name="max_pool2d_backward")
    return total if wide == grad.dtype else topi.cast(total, grad.dtype)


def max_pool2d_backward_rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """FLegalize of `relax.grad.max_pool2d_backward`; blocked layouts are upstream's."""

    def rule(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        a, name = call.attrs, definition.short
        if str(a.layout) not in ("NCHW", "NHWC"):
            return upstream(bb, call)
        axes = (str(a.layout).index("H"), str(a.layout).index("W"))
        top, left, _, _ = padding4(name, a.padding)
        window = (
            pair(name, "pool_size", a.pool_size), pair(name, "strides", a.strides),
            pair(name, "dilation", a.dilation), (top, left),
        )  # fmt: skip
        target = Target.current(allow_none=True)
        kind = str(target.kind.name) if target is not None else ""
        if kind == "llvm" and (made := _by_taps(bb, call, name, axes, window)) is not None:
            return made
        func, args, out_ty = gen_call_tir_inputs(
            lambda grad, data: te_max_pool2d_backward(grad, data, axes, *window), *call.args[:2]
        )
        if kind in _SCHEDULES:
            func = _scheduled(func, _SCHEDULES[kind])
        return relax.call_tir(bb.add_func(func, name), args, out_ty)

    return rule


def avg_pool2d_backward_rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """FLegalize of `relax.grad.avg_pool2d_backward`: upstream's, of a gradient that is larger where
    its mean was over less than a window."""
    whole = wide_rule(definition, upstream)

    def rule(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        a, name = call.attrs, definition.short
        if not (a.ceil_mode and a.count_include_pad):
            return whole(bb, call)
        letters = [letter for letter in str(a.layout) if letter.isalpha()]
        axes, pads = [letters.index(x) for x in "HW"], padding4(name, a.padding)
        window, strides = pair(name, "pool_size", a.pool_size), pair(name, "strides", a.strides)
        size = [
            call.args[1].ty.shape.values[axis] + pads[i] + pads[2 + i]
            for i, axis in enumerate(axes)
        ]

        def larger(grad: Any, height: Any, width: Any) -> Any:
            wide = wide_of(grad.dtype)

            def element(*index: Any) -> Any:
                value = grad(*index).astype(wide)
                for i, (axis, most) in enumerate(zip(axes, (height, width), strict=True)):
                    inside = tirx.max(tirx.min(most - index[axis] * strides[i], window[i]), 1)
                    value = value * (tirx.const(window[i], wide) / inside.astype(wide))
                return value.astype(grad.dtype)

            return te.compute(grad.shape, element, name="larger")

        grad = bb.emit(bb.call_te(larger, call.args[0], *size))
        return whole(bb, bb.normalize(relax.Call(call.op, [grad, call.args[1]], a, call.ty_args)))

    return rule


def _by_taps(
    bb: relax.BlockBuilder,
    call: relax.Call,
    name: str,
    axes: tuple[int, int],
    window: tuple[tuple[int, int], ...],
) -> relax.Expr | None:
    """Two kernels, of the data and of the gradient; None where sizes must be known and are not."""
    grad, data = call.args[:2]
    (n, *rest), (_, *out) = (list(x.ty.shape.values) for x in (data, grad))
    if not all(isinstance(size, tirx.IntImm) for size in (*rest, *out)):
        return None
    planes = axes[0] == 2
    found = max_pool.Window(
        int(n) if isinstance(n, tirx.IntImm) else tirx.Var("n", "int64"),
        int(rest[0 if planes else 2]), planes, str(call.ty.dtype),
        *((int(sizes[axes[0] - 1]), int(sizes[axes[1] - 1])) for sizes in (rest, out)),
        *window,
    )  # fmt: skip

    def called(func: tirx.PrimFunc, args: list[Any], ty: Any) -> relax.Call:
        return relax.call_tir(bb.add_func(_finished(func), name), args, ty)

    kept = relax.TensorType(grad.ty.shape, found.taps_dtype)
    taps = bb.emit(called(max_pool.first_maxima(found), [data], kept))
    return called(max_pool.sums(found), [grad, taps], call.ty)


def _parallel(sch: s_tir.Schedule, stage: Any) -> None:
    """Rows in parallel; the innermost axis inside the window's, where it becomes vectors."""
    loops = list(sch.get_loops(stage))
    sch.parallel(sch.fuse(*loops[:2]))
    sch.reorder(*loops[4:], loops[3])
    sch.decompose_reduction(stage, loops[4])


def _threads(sch: s_tir.Schedule, stage: Any) -> None:
    """A thread for each result, which is in registers until it is done.

    Of `taken ? maximum : x`, with the maximum in memory, nvcc makes one load of either address, by
    the cache for what is never written: it then gave the maximum of an earlier run.
    """
    results = range(len(sch.get(stage).writes))
    copies = [sch.cache_write(stage, i, "local") for i in results]
    loops = list(sch.get_loops(stage))
    block, thread = sch.split(sch.fuse(*loops[:4]), [None, 256])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    for copy in copies:
        sch.reverse_compute_at(copy, thread)


# Target kind -> what it does with a stage, whose first four loops are the result's.  The stock CUDA
# pipeline would fuse the two stages into one that it then cannot schedule.
_SCHEDULES: dict[str, Callable[[s_tir.Schedule, Any], None]] = {
    "llvm": _parallel,
    "cuda": _threads,
}


def _scheduled(func: tirx.PrimFunc, schedule: Callable[..., None]) -> tirx.PrimFunc:
    sch = s_tir.Schedule(func)
    blocks = [
        sch.get_sblock(name, func_name="main") for name in ("first_maximum", "max_pool2d_backward")
    ]
    later = sch.get_consumers(blocks[-1])
    for block in blocks:
        schedule(sch, block)
    for block in later:  # which rounds a sum
        sch.reverse_compute_at(block, sch.get_loops(blocks[-1])[schedule is _threads])
    return _finished(sch.mod["main"])


def _finished(func: tirx.PrimFunc) -> tirx.PrimFunc:
    # A global symbol would make the kernel public, and clash with a function of that name.
    return func.without_attr(SYMBOL).with_attr({SCHEDULED: True, OP_PATTERN: OPAQUE})
