"""Random programs with factors of channels around convolutions: the same for the same seed.

Factors are parameters or constants, of any sign, zeros among them; values are shared, results are
several, and what stands between is what factors may pass and what they may not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from relay_wgrad import relay
from relay_wgrad.relay import transform as T

C = 4
# The data's layout -> the kernel's, the data's shape, and the axes of its channels.
LAYOUTS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "NCHW": ("OIHW", (2, C, 3, 5), (1,)),
    "NHWC": ("HWIO", (2, 3, 5, C), (3,)),
    "NCHW2c": ("OIHW2i2o", (2, C // 2, 3, 5, 2), (1, 4)),
    "NC": ("", (3, C), (1,)),
}


class _Program:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.layout = self.one(*LAYOUTS)
        self.kernel, self.shape, self.axes = LAYOUTS[self.layout]
        self.params: list[Any] = []
        self.pool = [self.param(self.shape)]

    def one(self, *values: Any) -> Any:
        return self.random.choice(values)

    def param(self, shape: tuple[int, ...]) -> Any:
        var = relay.var(f"p{len(self.params)}", shape=shape, dtype="float64")
        self.params.append(var)
        return var

    def some(self) -> Any:
        return self.one(*[self.pool[-1]] * 5, self.one(*self.pool))

    def channels(self) -> tuple[int, ...]:
        """A shape with the channels alone, of fewest axes or of all."""
        shape = tuple(n if i in self.axes else 1 for i, n in enumerate(self.shape))
        return shape[self.axes[0] :] if self.one(0, 1) else shape

    def factor(self) -> Any:
        shape = self.one(self.channels(), self.channels(), (), (1,), self.shape)
        if self.one(0, 0, 1):
            return self.param(shape)
        numbers = self.numbers.choice([0.5, 2.0, 4.0], shape)
        kind = self.one("positive", "positive", "any", "zeros")
        if kind != "positive":
            numbers = numbers * self.numbers.choice([-1.0, 1.0], shape)
        if kind == "zeros":
            numbers = numbers * self.numbers.integers(0, 2, shape)
        return relay.const(numbers, "float64")


def _scaled(p: _Program) -> Any:
    args = [p.some(), p.factor()]
    p.random.shuffle(args)
    return relay.multiply(*args)


def _sum(p: _Program) -> Any:
    op = p.one(relay.add, relay.subtract)
    if p.one(0, 0, 1):
        return op(p.some(), p.some())
    args = [p.some(), p.param(p.one(p.channels(), p.channels(), (1,), p.shape))]
    p.random.shuffle(args)
    return op(*args)


def _bias(p: _Program) -> Any:
    if len(p.axes) > 1:
        return _relu(p)
    axis = p.one(p.axes[0], p.axes[0] - len(p.shape))
    return relay.nn.bias_add(p.some(), p.param((C,)), axis=axis)


def _relu(p: _Program) -> Any:
    x = p.some()
    return p.one(relay.nn.relu(x), relay.nn.leaky_relu(x, 0.5), relay.tanh(x))


def _convolution(p: _Program) -> Any:
    if p.layout == "NC":
        return relay.nn.dense(p.some(), p.param((C, C)))
    groups = p.one(1, 1, 2, C) if len(p.axes) == 1 else 1
    sizes = {"O": C, "I": C // groups, "H": 3, "W": 3}
    if len(p.axes) > 1:
        sizes = {"O": C // 2, "I": C // 2, "H": 3, "W": 3, "i": 2, "o": 2}
    weight = p.param(tuple(sizes[letter] for letter in p.kernel if letter.isalpha()))
    return relay.nn.conv2d(
        p.some(), weight, channels=C, kernel_size=(3, 3), padding=(1, 1), groups=groups,
        data_layout=p.layout, kernel_layout=p.kernel,
    )  # fmt: skip


_STEPS: tuple[Callable[[_Program], Any], ...] = (
    _scaled, _scaled, _sum, _bias, _relu, _convolution, _convolution,
)  # fmt: skip


def program(seed: int) -> relay.IRModule:
    """Three to twelve steps; what nothing else uses is a result."""
    p = _Program(seed)
    for _ in range(p.random.randint(3, 12)):
        p.pool.append(p.one(*_STEPS)(p))
    used = {arg for node in p.pool if isinstance(node, relay.Call) for arg in node.args}
    outs = [node for node in p.pool if node not in used]
    body = relay.Tuple(outs) if len(outs) > 1 else outs[0]
    mod = T.InferType()(relay.IRModule.from_expr(relay.Function(p.params, body)))
    return T.ToBasicBlockNormalForm()(mod) if p.one(0, 0, 0, 1) else mod
