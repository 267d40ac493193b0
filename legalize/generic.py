"""fprop, dgrad and wgrad as one tensor expression each: right for every setting, on any target.

Each is a single reduction over the implicit GEMM's K, written on canonical indices and permuted
at the border by the layouts.  Nothing is copied first: padding is a predicate on the term, a
stride's holes in dgrad are a divisibility predicate, groups are index arithmetic.  Sizes may be
symbolic.  This is what runs where no better kernel applies, and what the others are checked
against, so plainness comes before speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from tvm import s_tir, te, tirx

from relay_wgrad.keys import SCHEDULED
from relay_wgrad.layouts import to_layout
from relay_wgrad.problem import ConvKind, ConvProblem

from .quotient import quotient

Expr = Any  # TVM's expressions carry no types that a checker can follow

# Accumulators that one CPU thread keeps side by side where the channels' number allows it: two
# 256-bit or one 512-bit register of float32.
VECTOR = 16

PLAIN = (tirx.IntImm, tirx.Var)  # extents of loops that may be fused

# The block annotation that tells `cpu_schedule` which axes of the result count channels.
CHANNEL_AXES = "relay_wgrad.channel_axes"


def te_conv(
    problem: ConvProblem, a: Expr, b: Expr, data_size: Sequence[Expr] | None = None
) -> Expr:
    """The result of `problem` from its operands `a` and `b`, in the order of `problem.roles`.

    Whatever size the operands' shapes give is taken from there, so that a caller which renames
    symbolic variables (`call_te` does) needs to rename them in the tensors only.  Dgrad's result
    has a size that its operands leave open: `data_size` is its (H, W) or (D, H, W), by default the
    problem's.
    """
    if problem.kind is ConvKind.FPROP:
        shape, reduction, term = _fprop(problem, a, b)
    elif problem.kind is ConvKind.DGRAD:
        shape, reduction, term = _dgrad(problem, a, b, data_size)
    else:
        shape, reduction, term = _wgrad(problem, a, b)
    result = problem.roles[2]
    letters, layout = problem.canonical(result), problem.layout(result)
    accum = problem.accum_dtype

    def body(*index: Expr) -> Expr:
        guard, x, y = term(*to_layout(index, layout, letters))
        product = x.astype(accum) * y.astype(accum)
        if guard:
            # Not a Select: the tensors must not be read where the predicate is false.
            product = tirx.if_then_else(tirx.all(*guard), product, tirx.const(0, accum))
        return te.sum(product, axis=reduction)

    name = f"conv{problem.rank}d_{problem.kind.value}"
    channels = [layout.index(x) for x in ("OI" if result == "weight" else "C")]
    out = te.compute(
        to_layout(shape, letters, layout), body, name=name, attrs={CHANNEL_AXES: channels}
    )
    if problem.dtype(result) == accum:
        return out
    return te.compute(
        out.shape, lambda *i: out(*i).astype(problem.dtype(result)), name=f"{name}_cast"
    )


# (canonical shape of the result, reduction axes, index -> (predicates, first, second factor))
_Parts = tuple[tuple[Expr, ...], list[Expr], Callable[..., tuple[list[Expr], Expr, Expr]]]


def _sizes(problem: ConvProblem, role: str, tensor: Expr) -> tuple[Expr, ...]:
    sizes = tuple(_static(x) for x in tensor.shape)
    return to_layout(sizes, problem.layout(role), problem.canonical(role))


def _static(size: Expr) -> Expr:
    return size.value if isinstance(size, tirx.IntImm) else size


def _read(problem: ConvProblem, role: str, tensor: Expr, *index: Expr) -> Expr:
    return tensor(*to_layout(index, problem.canonical(role), problem.layout(role)))


def _axes(names: str, sizes: Sequence[Expr]) -> list[Expr]:
    """Axes of a reduction; the last letters name them where there are fewer sizes."""
    named = names[0] + names[len(names) - len(sizes) + 1 :]
    return [te.reduce_axis((0, x), name) for x, name in zip(sizes, named, strict=True)]


def _fprop(problem: ConvProblem, data: Expr, weight: Expr) -> _Parts:
    n, c, *size = _sizes(problem, "data", data)
    k, cg, *taps = _sizes(problem, "weight", weight)
    sized = ConvProblem.from_shapes(
        problem.kind, (n, c, *size), (k, cg, *taps),
        strides=problem.strides, padding=problem.padding, dilation=problem.dilation,
    )  # fmt: skip
    c0, *tap = reduction = _axes("ctrs", (cg, *taps))

    def term(n0: Expr, k0: Expr, *pixel: Expr) -> tuple[list[Expr], Expr, Expr]:
        channel = c0 if problem.groups == 1 else k0 // (k // problem.groups) * cg + c0
        where, guard = _gather(problem, size, pixel, tap)
        return (
            guard,
            _read(problem, "data", data, n0, channel, *where),
            _read(problem, "weight", weight, k0, c0, *tap),
        )

    return (n, k, *sized.pixels), reduction, term


def _wgrad(problem: ConvProblem, grad: Expr, data: Expr) -> _Parts:
    n, k, *out = _sizes(problem, "grad", grad)
    _, c, *size = _sizes(problem, "data", data)
    cg = c // problem.groups
    n0, *pixel = reduction = _axes("nzpq", (n, *out))

    def term(k0: Expr, c0: Expr, *tap: Expr) -> tuple[list[Expr], Expr, Expr]:
        channel = c0 if problem.groups == 1 else k0 // (k // problem.groups) * cg + c0
        where, guard = _gather(problem, size, pixel, tap)
        return (
            guard,
            _read(problem, "grad", grad, n0, k0, *pixel),
            _read(problem, "data", data, n0, channel, *where),
        )

    return (k, cg, *problem.taps), reduction, term


def _dgrad(
    problem: ConvProblem, grad: Expr, weight: Expr, data_size: Sequence[Expr] | None
) -> _Parts:
    n, k, *out = _sizes(problem, "grad", grad)
    _, cg, *taps = _sizes(problem, "weight", weight)
    size = problem.spatial if data_size is None else tuple(_static(x) for x in data_size)
    kg = k // problem.groups
    k0, *back = reduction = _axes("ktrs", (kg, *taps))
    # Taps in reverse, so that a pixel's quotient by the stride has no variable of negative sign:
    # TVM simplifies remainders of those wrongly (`quotient`).
    tap0 = [x - 1 - b for x, b in zip(taps, back, strict=True)]

    def term(n0: Expr, c0: Expr, *pixel: Expr) -> tuple[list[Expr], Expr, Expr]:
        filter_, tap = k0, c0
        if problem.groups > 1:
            filter_, tap = c0 // cg * kg + k0, c0 % cg
        where, guard = _scatter(problem, out, pixel, taps, back)
        return (
            guard,
            _read(problem, "grad", grad, n0, filter_, *where),
            _read(problem, "weight", weight, filter_, tap, *tap0),
        )

    return (n, cg * problem.groups, *size), reduction, term


def _gather(
    problem: ConvProblem, size: Sequence[Expr], pixel: Sequence[Expr], tap: Sequence[Expr]
) -> tuple[list[Expr], list[Expr]]:
    """The data pixel under a tap of an output pixel, and when it is not on the padding."""
    where, guard = [], []
    for axis in range(problem.rank):
        before, after = problem.padding[axis], problem.padding[axis + problem.rank]
        x = pixel[axis] * problem.strides[axis] + tap[axis] * problem.dilation[axis] - before
        if before > 0:
            guard.append(x >= 0)
        # Without padding no output pixel reaches beyond the end, if the sizes fit: symbolic ones
        # are trusted by type inference, and must not become reads out of bounds where they don't.
        if after > 0 or not isinstance(size[axis], int):
            guard.append(x < size[axis])
        where.append(x)
    return where, guard


def _scatter(
    problem: ConvProblem, out: Sequence[Expr], pixel: Sequence[Expr],
    taps: Sequence[Expr], back: Sequence[Expr],
) -> tuple[list[Expr], list[Expr]]:  # fmt: skip
    """The output pixel that reads a data pixel through a tap, `back` from the last one, and when
    there is one."""
    where, guard = [], []
    for axis in range(problem.rank):
        stride, dilation = problem.strides[axis], problem.dilation[axis]
        x = pixel[axis] + back[axis] * dilation
        x = x + (problem.padding[axis] - (taps[axis] - 1) * dilation)
        guard.append(x >= 0)
        if stride > 1:
            guard.append(x % stride == 0)
            x = quotient(x, stride)  # where x < 0 it is not read
        guard.append(x < out[axis])
        where.append(x)
    return where, guard


def cpu_schedule(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Schedules `te_conv`'s PrimFunc for CPU: parallel over the result, reductions in registers.

    Works for symbolic sizes.  Each task computes a vector of channels where their number is known
    (see `_lanes`), else one element.  The function is marked as scheduled, so TVM's default
    schedules leave it alone.
    """
    sch = s_tir.Schedule(func)
    name = sch.mod.get_global_vars()[0].name_hint
    blocks = sch.get_child_blocks(sch.get_sblock("root", func_name=name))
    conv = blocks[0]
    # A small array of scope "global" is on the stack, where one of scope "local" would come from
    # TVM's workspace for each vector.
    if len(blocks) == 1:
        sch.cache_write(conv, 0, "global")
        writer = sch.get_consumers(conv)[0]
    else:
        writer = blocks[1]
    loops = sch.get_loops(writer)
    lane_axis, lanes = _lanes(sch, conv, loops)
    outer, lane = loops, None
    if lanes > 1:
        tail, lane = sch.split(loops[lane_axis], [None, lanes])
        outer = [*loops[:lane_axis], *loops[lane_axis + 1 :], tail]
        sch.reorder(*outer, lane)
    sch.compute_at(conv, outer[-1], preserve_unit_loops=True)
    # Fusing a loop whose extent is an expression defeats TVM's index analysis.
    plain = list(takewhile(lambda x: isinstance(sch.get(x).extent, PLAIN), outer)) or outer[:1]
    task = sch.fuse(*plain) if len(plain) > 1 else plain[0]
    sch.parallel(task)
    depth = len(outer) - len(plain) + 1
    if lane is not None:
        sch.vectorize(lane)
        # Below the task: one loop per axis of the result, then the reduction.
        inner = sch.get_loops(conv)[depth:]
        lane, reduction = inner[lane_axis], inner[len(loops) :]
        sch.reorder(*reduction, lane)
        sch.vectorize(lane)
        sch.decompose_reduction(conv, reduction[0])
    return sch.mod[name].with_attr(SCHEDULED, True)


def _lanes(sch: Expr, conv: Expr, loops: list[Expr]) -> tuple[int, int]:
    """The result's axis that one thread computes several elements of, and how many.

    Predicates do not depend on channels, so a run of channels is vectorised whole: that of the
    innermost channel axis whose length is known and has a divisor of a register's size.
    """
    axes = [int(x) for x in sch.get(conv).annotations[CHANNEL_AXES]]
    for axis in sorted(axes, reverse=True):
        extent = sch.get(loops[axis]).extent
        if isinstance(extent, tirx.IntImm):
            lanes = next(x for x in range(VECTOR, 0, -1) if extent.value % x == 0)
            if lanes > 1:
                return axis, lanes
    return 0, 1
