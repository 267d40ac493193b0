"""PyTorch that `from_torch`'s list does not have, or that torch.export loses: right, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as fn

Tensor = torch.Tensor


class Straight(torch.autograd.Function):
    """Rounds, and passes the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The rounded tensor."""
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The gradient as it is."""
        return grads[0]


def _hooked(y: Tensor) -> Tensor:
    z = y * 2
    if z.requires_grad:
        z.register_hook(lambda g: g * 0.5)
    return z


def _behind(y: Tensor) -> Tensor:
    z = y * 1
    with torch.no_grad():
        z.mul_(2)
    return z


def _by_detach(y: Tensor) -> Tensor:
    z = y * 1
    z.detach().mul_(2)
    return z


def _autocast(y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y @ y


STRANGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "adaptive max pool": lambda y: fn.adaptive_max_pool2d(y, 1),
    "argmax": lambda y: y * y.argmax(1, keepdim=True),
    "autocast": _autocast,
    "backward of one's own": Straight.apply,
    "behind autograd's back": _behind,
    "by detach": _by_detach,
    "adaptive max pool 3-D": lambda y: fn.adaptive_max_pool3d(y[:, None], 1),
    "copysign": lambda y: torch.copysign(y, y.roll(1)),
    "cosine similarity": lambda y: fn.cosine_similarity(y, 2 * y + 1),
    "cumsum": lambda y: y.cumsum(1),
    "dilated pool": lambda y: fn.max_pool2d(y, 2, 1, dilation=2),
    "expm1": torch.expm1,
    "exponential": lambda y: y * torch.empty_like(y).exponential_(),
    "floor divide": lambda y: y + y // 0.3,
    "gather": lambda y: y.gather(1, y.argsort(1)),
    "gumbel": lambda y: fn.gumbel_softmax(y, dim=1),
    "half": lambda y: y.half().to(y.dtype),
    "hook": _hooked,
    "linalg": lambda y: torch.linalg.inv(y @ y.transpose(2, 3) + 9 * torch.eye(6, dtype=y.dtype)),
    "log1p": lambda y: torch.log1p(y * y),
    "logsumexp": lambda y: y.logsumexp(1),
    "lp pool": lambda y: fn.lp_pool2d(y, 2.0, 2),
    "median": lambda y: y.median(1)[0],
    "multinomial": lambda y: y * torch.multinomial(torch.ones(6, dtype=y.dtype), 6),
    "nan to num": torch.nan_to_num,
    "norm of order 1": lambda y: y.norm(p=1),
    "prod": lambda y: y.prod(1),
    "randperm": lambda y: y[:, torch.randperm(4)],
    "read": lambda y: y * y.mean().item(),
    "remainder": lambda y: y % 0.7,
    "round to decimals": lambda y: y + torch.round(y, decimals=1),
    "rrelu": lambda y: fn.rrelu(y, training=True),
    "scatter": lambda y: torch.zeros_like(y).scatter(1, y.argsort(1), y),
    "soft margin": lambda y: fn.soft_margin_loss(y, torch.sign(y.detach())),
    "sort": lambda y: y.sort(1)[0],
    "tan": lambda y: torch.tan(y / 4),
    "top k": lambda y: y.topk(2, 1)[0],
    "triangle": torch.tril,
    "view as complex": lambda y: torch.view_as_complex(y.reshape(2, 4, 18, 2)).abs(),
}
"""Name -> a function of images (2, 4, 6, 6)."""
