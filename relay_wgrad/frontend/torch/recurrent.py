"""ATen's recurrent layers: their words, read into `frontend.recurrent`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from .. import layers, recurrent
from ..context import Context
from .call import Builder, Call

op = relax.op


def _recurrent(cell: Callable[[Any], recurrent.Cell]) -> Builder:
    """(x, first states, parameters, whether there are biases, layers, dropout between them,
    training, whether both ways, whether the batch is first): all steps, then the last states."""

    def build(ctx: Context, call: Call) -> list[Any]:
        x, hidden, params, biased, count, rate, training, both, batch_first = call.args[:9]
        first = hidden if isinstance(hidden, list) else [hidden]
        ways = 1 + bool(both)
        each = len(params) // (count * ways)
        x = ctx.emit(op.permute_dims(x, [1, 0, 2])) if batch_first else x
        ends = []
        for i in range(count):
            if i and training:
                x = layers.masked(ctx, x, float(rate))
            made = []
            for d in range(i * ways, (i + 1) * ways):
                own = params[each * d : each * (d + 1)]
                states = [recurrent.element(ctx, state, d) for state in first]
                biases = own[2:4] if biased else (None, None)
                projection = own[-1] if each % 2 else None
                out, end = recurrent.scanned(
                    ctx, x, cell(projection), own[:2], biases, states, back=d % ways == 1
                )
                made.append(out)
                ends.append(end)
            x = ctx.emit(op.concat(made, 2)) if both else made[0]
        x = ctx.emit(op.permute_dims(x, [1, 0, 2])) if batch_first else x
        return [x, *(recurrent.stacked(ctx, states, 0) for states in zip(*ends, strict=True))]

    return build


RECURRENT: dict[str, Builder] = {
    "gru.input": _recurrent(lambda _: recurrent.gru("rzh", reset_after=True)),
    "lstm.input": _recurrent(lambda projection: recurrent.lstm("ifco", projection)),
    "rnn_relu.input": _recurrent(lambda _: recurrent.rnn(op.nn.relu)),
    "rnn_tanh.input": _recurrent(lambda _: recurrent.rnn(op.tanh)),
}
"""ATen overload -> builder."""
