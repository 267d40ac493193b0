"""ATen's random ops: each is an input of `main`, drawn anew for every batch; or its mean."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..context import Context
from ..layers import drawn_truths
from .call import Builder, Call, Unset, as_dtype
from .names import op_of

op = relax.op


def _bernoulli(ctx: Context, call: Call) -> Any:
    """Ones with probability p; PyTorch's own dropouts, which decompose to it, follow `dropout`."""
    x, p = call.args[0], float(call.arg(1, 0.5))
    shape, dtype = call.shape, call.dtype
    keeps = {(op_of(user), *user.args[1:]) for user in call.node.users}
    if isinstance(x, Unset) and keeps == {("div.Scalar", p)}:
        return ctx.draw(call.name, shape, dtype, ("bernoulli", p), "dropout")
    return ctx.draw(call.name, shape, dtype, ("bernoulli", p))


def _bernoulli_each(ctx: Context, call: Call) -> Any:
    """Ones with the probability that a tensor has: where a uniform number is below it."""
    place = 1 if len(call.args) > 1 else 0
    chance = call.args[place]
    call.args[0]
    return as_dtype(ctx, drawn_truths(ctx, call.name, chance, call.shape), call.dtype)


def _distribution(kind: str, first: float, second: float, at: int | None = None) -> Builder:
    """A distribution of two numbers: arguments from `at` on, or these."""

    def build(ctx: Context, call: Call) -> Any:
        call.args[:]  # the shape, or a tensor that has it
        numbers = first, second
        if at is not None:
            numbers = float(call.arg(at, first)), float(call.arg(at + 1, second))
        return ctx.draw(call.name, call.shape, call.dtype, (kind, *numbers))

    return build


def _uniform(at: int | None = None) -> Builder:
    return _distribution("uniform", 0.0, 1.0, at)


def _normal(at: int | None = None) -> Builder:
    return _distribution("normal", 0.0, 1.0, at)


def _normal_about(ctx: Context, call: Call) -> Any:
    """Normal about a tensor, by which PyTorch has no gradient."""
    noise = ctx.draw(call.name, call.shape, call.dtype, ("normal", 0.0, float(call.arg(1, 1.0))))
    return ctx.emit(op.add(ctx.emit(op.grad.no_grad(call.args[0])), noise))


def _integers(low_at: int | None, high_at: int) -> Builder:
    def build(ctx: Context, call: Call) -> Any:
        call.args[:]
        low, high = int(call.args[low_at]) if low_at is not None else 0, int(call.args[high_at])
        if ctx.options.random == "off":
            raise ValueError("random='off' has no mean for integers")
        return ctx.draw(call.name, call.shape, call.dtype, ("integers", low, high))

    return build


RANDOM: dict[str, Builder] = {
    "bernoulli.Tensor": _bernoulli_each,
    "bernoulli.default": _bernoulli_each,
    "bernoulli.p": _bernoulli,
    "normal.Tensor_float": _normal_about,
    "normal.float_float": _normal(0),
    "normal_functional.default": _normal(1),
    "rand.default": _uniform(),
    "rand_like.default": _uniform(),
    "randint.default": _integers(None, 0),
    "randint.low": _integers(0, 1),
    "randint_like.default": _integers(None, 1),
    "randint_like.low_dtype": _integers(1, 2),
    "randn.default": _normal(),
    "randn_like.default": _normal(),
    "uniform.default": _uniform(1),
}
"""ATen overload -> builder."""
