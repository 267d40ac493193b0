"""Random programs of operators that share an operand, for passes that combine them."""

from __future__ import annotations

import random
from typing import Any

from relay_wgrad import relay
from relay_wgrad.relay import transform as T


class _Program:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.params: list[Any] = []

    def param(self, *shape: int) -> Any:
        var = relay.var(f"p{len(self.params)}", shape=shape, dtype="float64")
        self.params.append(var)
        return var

    def one(self, *values: Any) -> Any:
        return self.random.choice(values)


def _conv(p: _Program, x: Any, layout: str) -> tuple[Any, int]:
    filters, r = p.one(2, 3, 4), p.one(1, 3, 3, 3)
    kernel = {"NCHW": "OIHW", "NHWC": "HWIO"}[layout]
    sizes = {"O": filters, "I": 4, "H": r, "W": r}
    w = p.param(*(sizes[letter] for letter in kernel))
    if filters == 4 and p.one(0, 1):  # a weight that needs another branch
        return relay.nn.conv2d(x, w, padding=r // 2, data_layout=layout, kernel_layout=kernel), 4
    y = relay.nn.conv2d(
        x, w, padding=r // 2, channels=filters, kernel_size=(r, r), data_layout=layout,
        kernel_layout=kernel, strides=p.one(1, 1, 2),
    )  # fmt: skip
    return y, filters


def _dense(p: _Program, x: Any, layout: str) -> tuple[Any, int]:
    units = p.one(2, 3, 4)
    return relay.nn.dense(x, p.param(units, 4)), units


def _matmul(p: _Program, x: Any, layout: str) -> tuple[Any, int]:
    units = p.one(2, 3, 4)
    return relay.nn.batch_matmul(x, p.param(2, units, 4)), units


# name -> (the shared operand's shape, a branch's first call, shapes of what may follow it)
KINDS: dict[str, Any] = {
    "NCHW": ((2, 4, 4, 4), _conv, lambda k: [(), (k, 1, 1), (1, k, 1, 1), (1,), (k, 4, 4)]),
    "NHWC": ((2, 4, 4, 4), _conv, lambda k: [(), (k,), (1, 1, 1, k), (1,), (4, 4, 1)]),
    "dense": ((3, 4), _dense, lambda k: [(), (k,), (1, k), (3, k), (1,), (3, 1), (2, 3, k)]),
    "matmul": ((2, 3, 4), _matmul, lambda k: [(), (k,), (1,), (3, k), (2, 3, k), (1, 3, 1)]),
}


def program(seed: int, kind: str) -> relay.IRModule:
    """Two to five branches of one value, some of which depend on others, in a tuple."""
    p = _Program(seed)
    shape, first, shapes = KINDS[kind]
    x = p.param(*shape)
    outs: list[Any] = []
    for _ in range(p.random.randint(2, 5)):
        y, units = first(p, x, kind)
        for _ in range(p.random.randint(0, 3)):
            y = _next(p, y, shapes(units))
        outs.append(y)
    if kind == "dense" and p.one(0, 1):
        # The next weight is another branch's result.
        outs.append(relay.nn.dense(x, relay.nn.dense(p.param(2, 4), p.param(4, 4))))
        outs.append(relay.nn.dense(x, relay.nn.dense(relay.nn.relu(outs[-1]), p.param(4, 2))))
    mod = relay.IRModule.from_expr(relay.Function(p.params, relay.Tuple(outs)))
    mod = T.InferType()(mod)
    return T.ToANormalForm()(mod) if p.one(0, 0, 1) else mod


def _is_less(a: Any, b: Any) -> Any:
    return relay.cast(relay.less(a, b), "float64")


def _next(p: _Program, y: Any, shapes: list[tuple[int, ...]]) -> Any:
    if p.one(0, 1):
        return p.one(relay.nn.relu, relay.tanh, relay.negative)(y)
    other = p.param(*p.one(*shapes))
    typed = relay.transform.InferTypeLocal
    try:
        typed(relay.add(y, other))
    except ValueError:  # strides made the rows fewer
        return relay.nn.relu(y)
    op = p.one(relay.add, relay.multiply, relay.maximum, relay.subtract, _is_less)
    return op(y, other) if p.one(0, 1) else op(other, y)
