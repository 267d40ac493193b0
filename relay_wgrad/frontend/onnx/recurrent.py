"""Builders of ONNX's recurrent layers: their words, read into `frontend.recurrent`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from .. import recurrent
from ..context import Context, shape_of
from ..data_movement import split
from .node import Node

op = relax.op
_LONGEST = 512  # steps: each is a dozen operators
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_OTHERS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}
_SIMPLE = {"Tanh": op.tanh, "Relu": op.nn.relu}


def _cells(node: Node, kind: str, count: int) -> list[recurrent.Cell]:
    """One for each direction.  Raises ValueError for activations that are not the usual ones."""
    said = [str(a.decode() if isinstance(a, bytes) else a) for a in node.attr("activations", [])]
    if kind == "RNN":
        names = said or ["Tanh"] * count
        if len(names) != count or not set(names) <= set(_SIMPLE):
            raise ValueError(f"activations {names}: expected {count} of Tanh or Relu")
        return [recurrent.rnn(_SIMPLE[name]) for name in names]
    if said and said != [*_OTHERS[kind]] * count:
        raise ValueError(f"activations {said} are not supported, only {[*_OTHERS[kind]]}")
    if kind == "LSTM":
        return [recurrent.lstm("iofc")] * count
    return [recurrent.gru("zrh", bool(node.attr("linear_before_reset", 0)))] * count


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
        first = [
            ctx.tensor(node.operand(index)) if node.has(index)
            else ctx.full((len(turns), n, size), 0, ctx.options.dtype)
            for index in range(5, 6 + (kind == "LSTM"))
        ]  # fmt: skip
        made = []
        for d, (back, cell) in enumerate(zip(turns, cells, strict=True)):
            matrices, states = (
                [recurrent.element(ctx, t, d) for t in ts] for ts in ((w, r), first)
            )
            biases: list[Any] = [None, None]
            if bias is not None:
                biases = split(ctx, recurrent.element(ctx, bias, d), 0, [gates * size] * 2)
            made.append(recurrent.scanned(ctx, x, cell, matrices, biases, states, back=back))
        whole = recurrent.stacked(ctx, [each for each, _ in made], 1)
        lasts = zip(*(last for _, last in made), strict=True)
        return [whole, *(recurrent.stacked(ctx, states, 0) for states in lasts)]

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


RECURRENT: dict[str, Callable[[Context, Node], Any]] = {
    "GRU": _recurrent("GRU", 3),
    "LSTM": _recurrent("LSTM", 4),
    "RNN": _recurrent("RNN", 1),
}
"""ONNX op -> builder."""
