"""A convolution of StableHLO as the operator of the family that it is, in its own layouts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
from tvm import relax

from ...attrs import ConvAttrs
from ...dtypes import numpy_dtype
from ...ops.algebra import dgrad_call, fprop_call, wgrad_call
from ...problem import DTYPE_BYTES, ConvKind, ConvProblem
from ...transform.raising.index import Barrier
from ...transform.raising.report import RaiseEntry
from ..context import Context
from .data_movement import pad, sliced
from .operation import Step
from .roles import Convolution, Reading, readings
from .tensors import Tensor, View, of_expr, reshape, view_of

op = relax.op
_SPREAD = (
    "lhs is dilated and the window has strides: neither operand nor the result is data of a"
    " convolution, so zeros are put between lhs' elements"
)
_NOTHING = "no element of lhs meets a tap: the result is zero"


@dataclass
class Convolutions:
    """What has become of a program's convolutions so far."""

    seen: list[tuple[ConvProblem, tuple[Any, Any]]] = field(default_factory=list)
    entries: list[RaiseEntry] = field(default_factory=list)

    def build(self, ctx: Context, step: Step) -> Tensor:
        """Raises ValueError for other dtypes than floating-point ones, and more than three axes of
        pixels."""
        conv = read_convolution(step)
        wrong = [d for d in conv.dtypes if d not in DTYPE_BYTES]
        if wrong:
            raise ValueError(f"of {wrong[0]} is not supported")
        if conv.rank > 3:
            raise ValueError(f"of {conv.rank} axes of pixels is not supported")
        lifted = conv.lifted()
        operands = [
            reshape(ctx, x, s) for x, s in zip(step.operands, lifted.shapes, strict=False)
        ]  # fmt: skip
        best = self._chosen(ctx, lifted, operands)
        if best is None:
            self.entries.append(RaiseEntry("main", step.node, "fprop", reason=_NOTHING))
            return _zeros(step.shape, step.dtype)
        reading, (lhs, rhs) = best
        made = self._emitted(ctx, lifted, reading, lhs, rhs)
        reason = _SPREAD if reading.spread else ""
        kind, problem = reading.kind.value, reading.problem.repro()
        self.entries.append(RaiseEntry("main", step.node, kind, problem, reason))
        return reshape(ctx, made, step.shape)

    def _chosen(
        self, ctx: Context, conv: Convolution, operands: Sequence[Tensor]
    ) -> tuple[Reading, list[Tensor]] | None:
        """The reading, and the operands as it takes them: that of which there is a sibling before,
        else what is likely and copies little."""
        best: tuple[float, Reading, list[tuple[Tensor, View | None]]] | None = None
        given = [x.argument or x.known for x in operands]
        for reading in readings(conv):
            ready = [_as_read(conv, reading, i, x) for i, x in enumerate(operands)]
            cost = reading.cost() - sum(
                _saved(reading, i, view) for i, (_, view) in enumerate(ready)
            )
            score = reading.likely(given) - 2.0 * cost
            score += 100.0 * self._has_sibling(
                reading, [_source(v or view_of(t)) for t, v in ready]
            )
            if best is None or score > best[0]:
                best = (score, reading, ready)
        if best is None:
            return None
        _, reading, ready = best
        return reading, [t if v is None else v.tensor(ctx) for t, v in ready]

    def _has_sibling(self, reading: Reading, operands: Sequence[Any]) -> bool:
        """Whether another member of the same trilinear form came before, with a tensor in common
        that has the same role in both."""
        problem = reading.problem
        mine = dict(zip(reading.roles, operands, strict=False))
        for other, theirs in self.seen:
            if other.kind is problem.kind or other.with_kind(problem.kind) != problem:
                continue
            roles = dict(zip(other.roles[:2], theirs, strict=True))
            if any(mine.get(r) is not None and _same(mine[r], t) for r, t in roles.items()):
                return True
        return False

    def _emitted(
        self, ctx: Context, conv: Convolution, reading: Reading, lhs: Tensor, rhs: Tensor
    ) -> Tensor:
        if reading.spread:
            inner = [0] * lhs.rank
            for axis, dilation in enumerate(conv.lhs_dilation):
                inner[conv.numbers[0].index(str(axis))] = dilation - 1
            zero = _zeros((), lhs.dtype)
            lhs = pad(ctx, lhs, zero, [0] * lhs.rank, [0] * lhs.rank, inner)
        p, roles = reading.problem, reading.roles
        tensors = dict(zip(roles, (lhs, rhs), strict=False))
        first, second, _ = (tensors.get(role) for role in p.roles)
        assert first is not None
        assert second is not None
        self.seen.append((p, (_source(view_of(first)), _source(view_of(second)))))
        exprs = {role: x.full(ctx) for role, x in tensors.items()}
        if "data" in exprs and any(map(any, reading.crop)):
            exprs["data"] = _cropped(ctx, exprs["data"], conv, reading)
        made = of_expr(ctx.emit(_call(p, exprs, conv.dtypes)))
        if roles[2] == "data" and any(map(any, reading.crop)):
            low, high = reading.crops(conv.numbers[2])
            made = pad(ctx, made, _zeros((), made.dtype), low, high, [0] * made.rank)
        view = view_of(made)
        move = reading.moves[2]
        if move is not None:
            view = _regrouped(view, conv.numbers[2], (move[1], move[0]), p.groups)
        view = view.turned(conv.numbers[2].index(str(a)) for a in reading.flips[2])
        return view.tensor(ctx)


def _zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
    return Tensor(shape, dtype, np.zeros((1,) * len(shape), numpy_dtype(dtype)))


def _source(view: View) -> Any:
    """What a tensor is, in whatever shape, for comparisons; None where its elements move."""
    own, source = ([atom for dim in dims for atom in dim] for dims in (view.dims, view.axes))
    return view.source.part if own == source and not view.flipped else None


def _same(a: Any, b: Any) -> bool:
    return bool(a is b or (hasattr(a, "same_as") and hasattr(b, "same_as") and a.same_as(b)))


def _as_read(
    conv: Convolution, reading: Reading, index: int, x: Tensor
) -> tuple[Tensor, View | None]:
    """An operand, and the view of it that a reading takes: None for itself."""
    move, flips = reading.moves[index], reading.flips[index]
    if move is None and not flips:
        return x, None
    numbers = conv.numbers[index]
    source = x
    if x.known or x.narrow != x.shape:
        source = Tensor(x.shape, x.dtype, x.array() if x.known else x.part, argument=x.argument)
        if not x.known:
            source = Tensor(x.shape, x.dtype, x.part, argument=x.argument)
    view = view_of(source)
    if move is not None:
        view = _regrouped(view, numbers, move, reading.problem.groups)
    return source, view.turned(numbers.index(str(axis)) for axis in flips)


def _saved(reading: Reading, index: int, view: View | None) -> float:
    """What of a reading's cost is none, as the operand was made by the same steps backwards."""
    if view is None or not view.is_source:
        return 0.0
    each = 0.5 if reading.roles[index] == "weight" else 3.0
    return each * (bool(reading.flips[index]) + (reading.moves[index] is not None))


def _regrouped(view: View, numbers: str, move: tuple[str, str], groups: int) -> View:
    """The groups, which lead in one axis, as what leads in another.  Raises ValueError where an
    axis is not cut at its groups."""
    here, there = numbers.index(move[0]), numbers.index(move[1])
    shape = [view_size(view, axis) for axis in range(len(numbers))]
    apart, order = [], []
    for axis, size in enumerate(shape):
        apart += [groups, size // groups] if axis == here else [size]
    moved = here  # where the groups are now
    for axis in range(len(shape)):
        own = axis + (axis >= here)
        order += [moved, own] if axis == there else [own]
    shape[here] //= groups
    shape[there] *= groups
    try:
        return view.reshaped(apart).transposed(order).reshaped(shape)
    except Barrier as why:
        raise ValueError(f"groups: {why}") from None


def view_size(view: View, axis: int) -> int:
    size = 1
    for atom in view.dims[axis]:
        size *= atom.size[0]
    return size


def _cropped(ctx: Context, x: Any, conv: Convolution, reading: Reading) -> Any:
    low, high = reading.crops(conv.numbers[reading.roles.index("data")])
    shape = of_expr(x).shape
    return sliced(ctx, x, [(a, n - b) for a, b, n in zip(low, high, shape, strict=True)])


def _call(p: ConvProblem, x: dict[str, Any], dtypes: Sequence[str]) -> Any:
    """The operator's call; `out_dtype` where the operands alone would not give it."""
    a = ConvAttrs(
        strides=p.strides, padding=p.padding, dilation=p.dilation, groups=p.groups,
        data_layout=p.data_layout, kernel_layout=p.kernel_layout, grad_layout=p.grad_layout,
        out_dtype=None if len(set(dtypes)) == 1 else dtypes[2],
    )  # fmt: skip
    if p.kind is ConvKind.FPROP:
        return fprop_call(x["data"], x["weight"], a)
    if p.kind is ConvKind.DGRAD:
        shape = relax.ShapeExpr([int(n) for n in p.shape("data")])
        return dgrad_call(x["grad"], x["weight"], shape, a)
    taps = tuple(int(n) for n in p.taps)
    return wgrad_call(x["grad"], x["data"], replace(a, kernel_size=taps))


def read_convolution(step: Step) -> Convolution:
    """What an operation says, in the letters of `roles`."""
    stablehlo = import_module("jaxlib.mlir.dialects.stablehlo")
    d = stablehlo.ConvDimensionNumbers(step.attribute("dimension_numbers"))

    def numbers(spatial: Any, **named: Any) -> str:
        letters = {int(axis): letter for letter, axis in named.items()}
        letters |= {int(axis): str(i) for i, axis in enumerate(spatial)}
        return "".join(letters[axis] for axis in range(len(letters)))

    rank = len(list(d.input_spatial_dimensions))
    ones = [1] * rank
    turned = (
        str(step.operation.attributes["window_reversal"]) if step.has("window_reversal") else ""
    )
    reverse = re.findall(r"true|false", turned) or ["false"] * rank
    reverse = reverse * (rank if len(reverse) == 1 else 1)
    return Convolution(
        (step.operands[0].shape, step.operands[1].shape, step.shape),
        (
            numbers(
                d.input_spatial_dimensions, b=d.input_batch_dimension, f=d.input_feature_dimension
            ),
            numbers(
                d.kernel_spatial_dimensions, f=d.kernel_input_feature_dimension,
                o=d.kernel_output_feature_dimension,
            ),
            numbers(
                d.output_spatial_dimensions, b=d.output_batch_dimension,
                o=d.output_feature_dimension,
            ),
        ),
        tuple(step.integers("window_strides", ones)),
        tuple(step.integers("padding", [0] * (2 * rank))[0::2]),
        tuple(step.integers("lhs_dilation", ones)), tuple(step.integers("rhs_dilation", ones)),
        tuple(v == "true" for v in reverse),
        int(step.attribute("feature_group_count")), int(step.attribute("batch_group_count")),
        (step.operands[0].dtype, step.operands[1].dtype, step.dtype),
    )  # fmt: skip
