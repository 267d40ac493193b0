"""What a normalization's kernels give in float64: of a batch or of groups, with any activation."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.support import norm_cases

EPSILON = 1e-5
CALLS = [  # groups (0: of a batch, -1: a channel a group), activation, what else the calls are
    (-1, "leaky_relu", {}),
    (-1, "leaky_relu", {"residual": True, "bits": True}),
    (-1, "leaky_relu", {"residual": True, "bits": True, "summed": True}),
    (4, "leaky_relu", {"residual": True}),
    (2, "gelu_tanh", {}),
    (1, "gelu", {}),
    (4, "elu", {}),
    (4, "hardswish", {}),
    (-1, "silu", {}),
    (-1, "relu6", {}),
    (0, "leaky_relu", {"residual": True, "bits": True}),
    (0, "gelu", {}),
    (0, "elu", {}),
]


def alpha_of(activation: str) -> float:
    return norm_cases.ALPHA if activation in ("leaky_relu", "elu") else 0.0


def expected(
    given: dict[str, torch.Tensor], dy: torch.Tensor, y: torch.Tensor, groups: int, activation: str
) -> dict[str, torch.Tensor]:
    """All results, of x, gamma, beta and residual if any, channels last; by autograd.

    y : what was stored, which tells the side of LeakyReLU's and ReLU6's corners.
    """
    v = {n: t.detach().double().requires_grad_() for n, t in given.items()}
    x = v["x"].movedim(-1, 1)
    if groups:
        z = functional.group_norm(x, groups, v["gamma"], v["beta"], EPSILON)
        parts = x.detach().reshape(x.shape[0], groups, -1)
    else:
        z = functional.batch_norm(x, None, None, v["gamma"], v["beta"], True, 0.0, EPSILON)
        parts = x.detach().movedim(1, 0).flatten(1)
    z = z.movedim(1, -1)
    z = z + v["residual"] if "residual" in v else z
    if activation == "leaky_relu":
        made = torch.where(y > 0, z, norm_cases.ALPHA * z)
    elif activation == "relu6":
        made = torch.where((y > 0) & (y < 6), z, z.detach().clamp(0, 6))
    else:
        made = norm_cases.ACTIVATIONS[activation](z)
    gradients = torch.autograd.grad(made, [*v.values(), z], dy.double(), allow_unused=True)
    found = {f"d{n}": g for n, g in zip((*v, "residual"), gradients, strict=True)}
    rstd = (parts.var(-1, unbiased=False) + EPSILON) ** -0.5
    return found | {"y": made.detach(), "mean": parts.mean(-1), "rstd": rstd}
