"""Builders of ONNX's recurrent layers, written out step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ..context import Context, Node, shape_of
from ..moving import cut

op = relax.op
_LONGEST = 512  # steps: each is a dozen operators
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# (gates of a step from the data, the last states, the matrix of states, its bias) -> new states
Cell = Callable[[Context, Any, list[Any], Any, Any], list[Any]]


def _parts(ctx: Context, x: Any, count: int) -> list[Any]:
    parts = ctx.emit(op.split(x, count, -1))
    return [ctx.emit(relax.TupleGetItem(parts, i)) for i in range(count)]


def _lstm(ctx: Context, given: Any, states: list[Any], matrix: Any, bias: Any) -> list[Any]:
    """Gates i, o, f, c: c' = f c + i tanh(c), h' = o tanh(c')."""
    total = ctx.emit(op.add(given, op.add(op.matmul(states[0], matrix), bias)))
    i, o, f, c = _parts(ctx, total, 4)
    kept = op.multiply(op.sigmoid(f), states[1])
    cell = ctx.emit(op.add(kept, op.multiply(op.sigmoid(i), op.tanh(c))))
    return [ctx.emit(op.multiply(op.sigmoid(o), op.tanh(cell))), cell]


def _gru(reset_after: bool) -> Cell:
    def cell(ctx: Context, given: Any, states: list[Any], matrix: Any, bias: Any) -> list[Any]:
        """Gates z, r, h: h' = (1 - z) tanh(h) + z h, of r times the last state or its product."""
        (last,) = states
        size = shape_of(last)[-1]
        z, r, h = _parts(ctx, given, 3)
        if reset_after:
            own = ctx.emit(op.add(op.matmul(last, matrix), bias))
            of_z, of_r, of_h = _parts(ctx, own, 3)
            r = ctx.emit(op.sigmoid(op.add(r, of_r)))
            h = ctx.emit(op.tanh(op.add(h, op.multiply(r, of_h))))
        else:
            two, one = (
                cut(ctx, matrix, 1, *span) for span in ((0, 2 * size), (2 * size, 3 * size))
            )
            b_two, b_one = (cut(ctx, bias, 0, *s) for s in ((0, 2 * size), (2 * size, 3 * size)))
            of_z, of_r = _parts(ctx, ctx.emit(op.add(op.matmul(last, two), b_two)), 2)
            r = ctx.emit(op.sigmoid(op.add(r, of_r)))
            own = op.add(op.matmul(op.multiply(r, last), one), b_one)
            h = ctx.emit(op.tanh(op.add(h, own)))
        z = ctx.emit(op.sigmoid(op.add(z, of_z)))
        return [ctx.emit(op.add(h, op.multiply(z, op.subtract(last, h))))]

    return cell


def _rnn(function: Callable[[Any], Any]) -> Cell:
    def cell(ctx: Context, given: Any, states: list[Any], matrix: Any, bias: Any) -> list[Any]:
        """h' = f(x W + h R)."""
        total = op.add(given, op.add(op.matmul(states[0], matrix), bias))
        return [ctx.emit(function(total))]

    return cell


_OTHERS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}
_SIMPLE = {"Tanh": op.tanh, "Relu": op.nn.relu}


def _cells(node: Node, kind: str, count: int) -> list[Cell]:
    """One for each direction.  Raises ValueError for activations that are not the usual ones."""
    said = [str(a.decode() if isinstance(a, bytes) else a) for a in node.attr("activations", [])]
    if kind == "RNN":
        names = said or ["Tanh"] * count
        if len(names) != count or not set(names) <= set(_SIMPLE):
            raise ValueError(f"activations {names}: expected {count} of Tanh or Relu")
        return [_rnn(_SIMPLE[name]) for name in names]
    if said and said != [*_OTHERS[kind]] * count:
        raise ValueError(f"activations {said} are not supported, only {[*_OTHERS[kind]]}")
    if kind == "LSTM":
        return [_lstm] * count
    return [_gru(bool(node.attr("linear_before_reset", 0)))] * count


def _recurrent(kind: str, gates: int) -> Callable[[Context, Node], list[Any]]:
    """X (steps, N, in), W (directions, gates H, in), R, biases of both, lengths, first states."""

    def build(ctx: Context, node: Node) -> list[Any]:
        x = ctx.tensor(node.operand(0))
        steps, n, features = shape_of(x)
        turns = _DIRECTIONS[str(node.attr("direction", "forward"))]
        cells = _cells(node, kind, len(turns))
        w = ctx.parameter(node.operand(1), "weight", features)
        size = shape_of(w)[1] // gates
        r = ctx.parameter(node.operand(2), "weight", size)
        _refuse(node, steps, size)
        bias = ctx.parameter(node.operand(3), "bias") if node.has(3) else None
        lasts: list[list[Any]] = []
        all_steps = []
        for d, (back, cell) in enumerate(zip(turns, cells, strict=True)):
            of_data, of_state = (_turned(ctx, m, d) for m in (w, r))
            both = [ctx.const([0.0] * (gates * size))] * 2
            if bias is not None:
                row = ctx.emit(op.reshape(cut(ctx, bias, 0, d, d + 1), (2 * gates * size,)))
                both = _parts(ctx, row, 2)
            given = ctx.emit(op.add(op.matmul(x, of_data), both[0]))
            states = [_first(ctx, node, 5 + i, d, (n, size)) for i in range(1 + (kind == "LSTM"))]
            made = []
            for t in range(steps)[:: -1 if back else 1]:
                step = ctx.emit(op.reshape(cut(ctx, given, 0, t, t + 1), (n, gates * size)))
                states = cell(ctx, step, states, of_state, both[1])
                made.append(states[0])
            all_steps.append(_stacked(ctx, made[:: -1 if back else 1], 0))
            lasts.append(states)
        whole = _stacked(ctx, all_steps, 1)
        return [whole, *(_stacked(ctx, list(s), 0) for s in zip(*lasts, strict=True))]

    return build


def _refuse(node: Node, steps: Any, size: int) -> None:
    """Raises ValueError for what is not written out."""
    if not isinstance(steps, int) or steps > _LONGEST:
        raise ValueError(f"{steps} steps: {_LONGEST} at most are supported, and no open number")
    if node.attr("layout", 0):
        raise ValueError("layout=1 is not supported")
    if node.attr("clip") is not None:
        raise ValueError(f"clip={node.attr('clip')} is not supported")
    if node.has(7) or node.attr("input_forget", 0):
        raise ValueError("peepholes and input_forget=1 are not supported")
    if node.has(4) and set(node.static(4, "the lengths").tolist()) != {steps}:
        raise ValueError(f"sequences of other lengths than {steps} are not supported")
    if int(node.attr("hidden_size", size)) != size:
        raise ValueError(f"hidden_size={node.attr('hidden_size')} contradicts the weight's {size}")


def _turned(ctx: Context, matrices: Any, direction: int) -> Any:
    """One direction's matrix, (in, gates H)."""
    one = cut(ctx, matrices, 0, direction, direction + 1)
    return ctx.emit(op.permute_dims(op.reshape(one, shape_of(matrices)[1:])))


def _first(ctx: Context, node: Node, index: int, direction: int, shape: tuple[Any, ...]) -> Any:
    if not node.has(index):
        return ctx.full(shape, 0, ctx.options.dtype)
    given = ctx.tensor(node.operand(index))
    return ctx.emit(op.reshape(cut(ctx, given, 0, direction, direction + 1), shape))


def _stacked(ctx: Context, parts: Sequence[Any], axis: int) -> Any:
    apart = [ctx.emit(op.expand_dims(part, axis)) for part in parts]
    return ctx.emit(op.concat(apart, axis)) if len(apart) > 1 else apart[0]


RECURRENT: dict[str, Callable[[Context, Node], Any]] = {
    "GRU": _recurrent("GRU", 3),
    "LSTM": _recurrent("LSTM", 4),
    "RNN": _recurrent("RNN", 1),
}
"""ONNX op -> builder."""
