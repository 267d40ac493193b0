"""Recurrent layers with plain arguments, written out step by step.

A cell makes the new states of (what a step's data give its gates, the last states, the matrix of
states (H, gates H), its bias or None).  `order` has a letter for each gate, as the matrices have
them: of an LSTM i (in), o (out), f (forget), c (cell); of a GRU z (kept), r (reset), h (new), which
is last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from .context import Context, shape_of
from .data_movement import cut, split

op = relax.op
Cell = Callable[[Context, Any, list[Any], Any, Any], list[Any]]


def _linear(x: Any, matrix: Any, bias: Any) -> Any:
    made = op.matmul(x, matrix)
    return made if bias is None else op.add(made, bias)


def _gates(ctx: Context, x: Any, order: str) -> dict[str, Any]:
    size = shape_of(x)[-1] // len(order)
    parts = split(ctx, x, len(shape_of(x)) - 1, [size] * len(order))
    return dict(zip(order, parts, strict=True))


def lstm(order: str, projection: Any = None) -> Cell:
    """c' = f c + i tanh(c), h' = o tanh(c'); or that times a projection (P, H), transposed."""

    def cell(ctx: Context, given: Any, states: list[Any], matrix: Any, bias: Any) -> list[Any]:
        gates = _gates(ctx, ctx.emit(op.add(given, _linear(states[0], matrix, bias))), order)
        kept = op.multiply(op.sigmoid(gates["f"]), states[1])
        new = ctx.emit(op.add(kept, op.multiply(op.sigmoid(gates["i"]), op.tanh(gates["c"]))))
        out = ctx.emit(op.multiply(op.sigmoid(gates["o"]), op.tanh(new)))
        if projection is not None:
            out = ctx.emit(op.matmul(out, ctx.emit(op.permute_dims(projection))))
        return [out, new]

    return cell


def gru(order: str, reset_after: bool) -> Cell:
    """h' = (1 - z) tanh(h) + z h, of r times the last state or times its product."""

    def cell(ctx: Context, given: Any, states: list[Any], matrix: Any, bias: Any) -> list[Any]:
        (last,), size = states, shape_of(states[0])[-1]
        gates = _gates(ctx, given, order)
        if reset_after:
            own = _gates(ctx, ctx.emit(_linear(last, matrix, bias)), order)
        else:
            two, one = split(ctx, matrix, 1, [2 * size, size])
            b_two, b_one = (None, None) if bias is None else split(ctx, bias, 0, [2 * size, size])
            own = _gates(ctx, ctx.emit(_linear(last, two, b_two)), order[:2])
        r = ctx.emit(op.sigmoid(op.add(gates["r"], own["r"])))
        if reset_after:
            of_state = op.multiply(r, own["h"])
        else:
            of_state = _linear(op.multiply(r, last), one, b_one)
        h = ctx.emit(op.tanh(op.add(gates["h"], of_state)))
        z = ctx.emit(op.sigmoid(op.add(gates["z"], own["z"])))
        return [ctx.emit(op.add(h, op.multiply(z, op.subtract(last, h))))]

    return cell


def rnn(function: Callable[[Any], Any]) -> Cell:
    """h' = f(x W + h R)."""

    def cell(ctx: Context, given: Any, states: list[Any], matrix: Any, bias: Any) -> list[Any]:
        return [ctx.emit(function(op.add(given, _linear(states[0], matrix, bias))))]

    return cell


def scanned(
    ctx: Context, x: Any, cell: Cell, matrices: Sequence[Any], biases: Sequence[Any],
    states: list[Any], *, back: bool = False,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """(the first state after each step, the last states) of one direction of one layer.

    x : (steps, N, in); matrices : of data (gates H, in) and of the state (gates H, H); biases :
        (gates H) each, or None; states : the first ones, (N, H) each; back : from the last step on.

    Raises ValueError for a number of steps that is not known.
    """
    steps, n = shape_of(x)[:2]
    if not isinstance(steps, int):
        raise ValueError(f"{steps} steps: an open number is not supported")
    of_data, of_state = (ctx.emit(op.permute_dims(matrix)) for matrix in matrices)
    given = ctx.emit(_linear(x, of_data, biases[0]))
    made = []
    for t in range(steps)[:: -1 if back else 1]:
        step = ctx.emit(op.reshape(cut(ctx, given, 0, t, t + 1), (n, shape_of(given)[-1])))
        states = cell(ctx, step, states, of_state, biases[1])
        made.append(states[0])
    return stacked(ctx, made[:: -1 if back else 1], 0), states


def element(ctx: Context, x: Any, index: int) -> Any:
    """x[index], of an axis that has it."""
    return ctx.emit(op.reshape(cut(ctx, x, 0, index, index + 1), shape_of(x)[1:]))


def stacked(ctx: Context, parts: Sequence[Any], axis: int) -> Any:
    """Tensors of one shape along a new axis."""
    apart = [ctx.emit(op.expand_dims(part, axis)) for part in parts]
    return ctx.emit(op.concat(apart, axis)) if len(apart) > 1 else apart[0]
