"""Squeeze and excitation of a normalization in float64, for the kernels around a gate."""

from __future__ import annotations

import torch
from torch.nn import functional

from byoc_cudnn.norm import NormCall
from tests.support import norm_cases
from tests.support.norm_groups import EPSILON, alpha_of

RESULTS = ("mean", "rstd", "squeezed", "new_running_mean", "new_running_var", "y", "dgate", "dx",
           "dgamma", "dbeta")  # fmt: skip
CASES = [  # dtype, shape, activation, whether a residual is added, what ends
    ("float32", (3, 9, 5, 24), "silu", False, ""),
    ("float16", (2, 7, 7, 40), "relu", False, ""),
    ("bfloat16", (5, 6, 4, 16), "", True, "relu"),
    ("float64", (2, 5, 3, 6), "hardswish", False, ""),
    ("float32", (2, 30, 13), "gelu", True, ""),  # not whole packs
    ("bfloat16", (1, 40, 9, 264), "", False, ""),  # one image, of several blocks
    ("float32", (4, 1, 8), "silu", False, ""),  # of one pixel
]


def calls(dtype: str, activation: str, residual: bool, last: str) -> list[NormCall]:
    """The four, in the order in which a step has them."""
    alpha = alpha_of(activation)
    word = "_".join([dtype, activation or "none", *["add"] * residual, *[last] * bool(last)])
    return [
        NormCall(f"squeeze_{word}", "squeeze", dtype, activation, alpha=alpha, running=True),
        NormCall(
            f"excite_{word}", "excite", dtype, activation, alpha=alpha, residual=residual, last=last
        ),
        NormCall(f"sums_{word}", "gate_sums", dtype, activation, alpha=alpha),
        NormCall(f"back_{word}", "gate_backward", dtype, activation, alpha=alpha),
    ]  # fmt: skip


def size_of(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """(the shape of a tensor by name, whether it is in the dtype of rows)."""
    if name in ("x", "dy", "dx", "y", "residual"):
        return shape, True
    if name in ("gate", "lift", "squeezed", "dgate"):
        return (shape[0], *[1] * (len(shape) - 2), shape[-1]), False
    return ((4, shape[0], shape[-1]) if name == "sums" else shape[-1:]), False


def expected(given: dict[str, torch.Tensor], activation: str, last: str) -> dict[str, torch.Tensor]:
    """All results, of the operands by name, channels last; gradients by autograd.

    The gradient of what is normalized comes by the product and, as `lift`, by the mean.
    """
    v = {n: t.detach().double() for n, t in given.items()}
    x, gamma, beta = (v[n].requires_grad_() for n in ("x", "gamma", "beta"))
    flat = x.detach().flatten(0, -2)
    mean, var, m = flat.mean(0), flat.var(0, unbiased=False), len(flat)
    z = functional.batch_norm(x.movedim(-1, 1), None, None, gamma, beta, True, 0.0, EPSILON)
    z = z.movedim(1, -1)
    made = norm_cases.ACTIVATIONS[activation](z) if activation else z
    pixels = tuple(range(1, x.ndim - 1))
    y = made * v["gate"]
    y = y + v["residual"] if "residual" in v else y
    through = (v["dy"] * v["gate"] + v["lift"]).expand_as(made)
    dx, dgamma, dbeta = torch.autograd.grad(made, (x, gamma, beta), through)
    made = made.detach()
    return {
        "mean": mean, "rstd": (var + EPSILON) ** -0.5,
        "squeezed": made.mean(pixels, keepdim=True),
        "new_running_mean": 0.9 * v["running_mean"] + 0.1 * mean,
        "new_running_var": 0.9 * v["running_var"] + 0.1 * var * m / (m - 1),
        "y": y.detach().clamp_min(0) if last else y.detach(),
        "dgate": (v["dy"] * made).sum(pixels, keepdim=True),
        "dx": dx, "dgamma": dgamma, "dbeta": dbeta,
    }  # fmt: skip
