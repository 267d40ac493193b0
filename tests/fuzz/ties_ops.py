"""The ops of `tests.fuzz.ties`: activations and selections in PyTorch and in Relax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHAPE = (3, 17)  # a row is longer than a vector, and has a rest
VALUES = (-6.0, -3.0, -2.0, -1.0, -0.5, -0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 6.0)
SPECIAL = (float("inf"), float("-inf"), float("nan"))


@dataclass(frozen=True)
class Op:
    """One op: how many operands, what it is in PyTorch and in Relax (None: not there)."""

    count: int
    torch: Callable[..., Any]
    relax: Callable[..., Any] | None = None
    exact: bool = True
    nan: bool = True
    """Whether PyTorch's own kernels agree on the gradient for NaN (vectors and rests do not in
    all), and ours have its forward value."""


def operations() -> dict[str, Op]:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from tvm import relax

    op = relax.op

    def number(v: float, x: Any) -> Any:
        return relax.const(np.asarray(v, str(x.ty.dtype)), str(x.ty.dtype))

    def scalar(name: str, v: float) -> Callable[[Any], Any]:
        return lambda x: getattr(op, name)(x, number(v, x))

    def clip(x: Any) -> Any:
        return op.clip(x, relax.prim_value(-1.0), relax.prim_value(1.0))

    def slope(x: Any) -> Any:
        return relax.const(np.asarray([0.25], str(x.ty.dtype)), str(x.ty.dtype))

    def pooled(x: Any) -> Any:
        return F.max_pool2d(x.reshape(1, 1, *SHAPE), 3, 1, 1).reshape(SHAPE)

    def pooled_relax(x: Any) -> Any:
        return op.reshape(
            op.nn.max_pool2d(op.reshape(x, (1, 1, *SHAPE)), (3, 3), (1, 1), (1, 1)), SHAPE
        )

    linear = {
        "relu": Op(1, F.relu, op.nn.relu),
        "abs": Op(1, torch.abs, op.abs),
        "neg": Op(1, torch.neg, op.negative),
        "clip": Op(1, lambda x: torch.clamp(x, -1.0, 1.0), clip),
        "leaky": Op(1, lambda x: F.leaky_relu(x, 0.25), lambda x: op.nn.leakyrelu(x, 0.25)),
        "prelu": Op(1, lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
                    lambda x: op.nn.prelu(x, slope(x), 0)),
        "sign": Op(1, torch.sign, op.sign, nan=False),
        "floor": Op(1, torch.floor, op.floor),
        "ceil": Op(1, torch.ceil, op.ceil),
        "relu6": Op(1, F.relu6, nan=False),
        "hardtanh": Op(1, F.hardtanh, nan=False),
        "lowest": Op(1, lambda x: torch.clamp(x, min=-1.0)),
        "highest": Op(1, lambda x: torch.clamp(x, max=1.0)),
        "threshold": Op(1, lambda x: F.threshold(x, 1.0, -2.0)),
        "softshrink": Op(1, lambda x: F.softshrink(x, 1.0), nan=False),
        "hardshrink": Op(1, lambda x: F.hardshrink(x, 1.0), nan=False),
        "rrelu": Op(1, lambda x: F.rrelu(x, 0.25, 0.75, training=False)),
        "add": Op(2, torch.add, op.add),
        "sub": Op(2, torch.sub, op.subtract),
        "max2": Op(2, torch.maximum, op.maximum),
        "min2": Op(2, torch.minimum, op.minimum),
        "other": Op(2, torch.max),
        "fmax": Op(2, torch.fmax),
        "fmin": Op(2, torch.fmin),
        "above": Op(2, lambda x, y: torch.where(x > y, x, y),
                    lambda x, y: op.where(op.greater(x, y), x, y)),
        "masked": Op(2, lambda x, y: x.masked_fill(y <= 0, 1.0),
                     lambda x, y: op.where(op.less_equal(y, number(0, y)), number(1, x), x)),
        "between": Op(2, lambda x, y: torch.clamp(x, min=y), nan=False),
        "amax": Op(1, lambda x: x.amax(1, keepdim=True).expand(*SHAPE),
                   lambda x: op.broadcast_to(op.max(x, 1, keepdims=True), SHAPE)),
        "amin": Op(1, lambda x: x.amin(0, keepdim=True).expand(*SHAPE),
                   lambda x: op.broadcast_to(op.min(x, 0, keepdims=True), SHAPE)),
        "maxdim": Op(1, lambda x: x.max(1, keepdim=True).values.expand(*SHAPE)),
        "mindim": Op(1, lambda x: x.min(0).values.expand(*SHAPE)),
        "maxall": Op(1, lambda x: x.max().expand(*SHAPE)),
        "pool": Op(1, pooled, pooled_relax),
    }  # fmt: skip
    rounding = {
        "hardsigmoid": Op(1, F.hardsigmoid),
        "hardswish": Op(1, F.hardswish, nan=False),
        "elu": Op(1, lambda x: F.elu(x, 0.5), nan=False),
        "celu": Op(1, lambda x: F.celu(x, 0.5), nan=False),
        "selu": Op(1, F.selu, op.nn.selu, nan=False),
        "softplus": Op(1, lambda x: F.softplus(x, 2.0, 6.0),
                       lambda x: op.nn.softplus(x, 2.0, 6.0)),
        "logsigmoid": Op(1, F.logsigmoid),
        "softsign": Op(1, F.softsign),
        "tanhshrink": Op(1, F.tanhshrink),
        "mish": Op(1, F.mish),
        "silu": Op(1, F.silu, op.nn.silu),
        "gelu": Op(1, F.gelu, op.nn.gelu),
        "gelutanh": Op(1, lambda x: F.gelu(x, approximate="tanh"), op.nn.gelu_tanh, nan=False),
        "sigmoid": Op(1, torch.sigmoid, op.sigmoid),
        "tanh": Op(1, torch.tanh, op.tanh),
        "exp": Op(1, torch.exp, op.exp),
        "sqrt": Op(1, torch.sqrt, op.sqrt),
        "rsqrt": Op(1, torch.rsqrt, op.rsqrt),
        "square": Op(1, torch.square, op.square),
        "pow0": Op(1, lambda x: x**0, scalar("power", 0.0)),
        "pow2": Op(1, lambda x: x**2, scalar("power", 2.0)),
        "mul": Op(2, torch.mul, op.multiply),
        "norm": Op(1, lambda x: x.norm(dim=0, keepdim=True).expand(*SHAPE)),
        "smooth": Op(2, lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5)),
        "huber": Op(2, lambda x, y: F.huber_loss(x, y, reduction="none", delta=1.0)),
    }  # fmt: skip
    named = {name: Op(o.count, o.torch, o.relax, False, o.nan) for name, o in rounding.items()}
    return {**linear, **named}


_LINEAR = """
    relu abs neg clip leaky prelu sign floor ceil relu6 hardtanh lowest highest threshold
    softshrink hardshrink rrelu add sub max2 min2 other fmax fmin above masked between amax amin
    maxdim mindim maxall pool"""
_ROUNDING = """
    hardsigmoid hardswish elu celu selu softplus logsigmoid softsign tanhshrink mish silu gelu
    gelutanh sigmoid tanh exp sqrt rsqrt square pow0 pow2 mul norm smooth huber"""
_BINARY = "add sub max2 min2 other fmax fmin above masked between mul smooth huber"
_ONLY_TORCH = """
    relu6 hardtanh lowest highest threshold softshrink hardshrink rrelu other fmax fmin between
    maxdim mindim maxall hardsigmoid hardswish elu celu logsigmoid softsign tanhshrink mish
    norm smooth huber"""
LINEAR, ROUNDING = _LINEAR.split(), _ROUNDING.split()
REDUCED = frozenset({"amax", "amin", "maxdim", "mindim", "maxall"})
BINARY, ONLY_TORCH = frozenset(_BINARY.split()), frozenset(_ONLY_TORCH.split())
