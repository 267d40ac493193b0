"""Squeeze and excitation of a normalization in float64, for the kernels around a gate."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from byoc_cudnn.norm import NormCall
from tests.support import norm_cases
from tests.support.norm_groups import EPSILON, alpha_of

RESULTS = ("mean", "rstd", "squeezed", "new_running_mean", "new_running_var", "y", "dgate",
           "dresidual", "dx", "dgamma", "dbeta")  # fmt: skip
SUMMED = "summed"
"""After what ends with ReLU: its mask goes backward as bits, and two gradients come."""
CASES = [  # dtype, shape, activation, whether a residual is added, what ends
    ("float32", (3, 9, 5, 24), "silu", False, ""),
    ("float16", (3, 9, 5, 24), "", True, f"relu {SUMMED}"),
    ("bfloat16", (2, 20, 13), "silu", True, f"relu {SUMMED}"),  # not whole packs
    ("float32", (2, 7, 7, 1100), "", True, f"relu {SUMMED}"),
    ("float64", (3, 6, 5, 10), "", False, "relu bits"),
    ("float16", (2, 7, 7, 40), "relu", False, ""),
    ("bfloat16", (5, 6, 4, 16), "", True, "relu"),
    ("float64", (2, 5, 3, 6), "hardswish", False, ""),
    ("float32", (2, 30, 13), "gelu", True, ""),  # not whole packs
    ("bfloat16", (1, 40, 9, 264), "", False, ""),  # one image, of several blocks
    ("float32", (4, 1, 8), "silu", False, ""),  # of one pixel
    ("float32", (70, 3, 8), "silu", False, ""),  # more images than threads of a channel
    ("float64", (600, 2, 8), "", False, "relu bits"),  # and than those take at once
]


def calls(dtype: str, activation: str, residual: bool, last: str) -> list[NormCall]:
    """The four, in the order in which a step has them.

    last : "", "relu", or one of "relu bits" and "relu summed".
    """
    alpha = alpha_of(activation)
    end, _, how = last.partition(" ")
    word = "_".join([dtype, activation or "none", *["add"] * residual, *last.split()])
    told = {"bits": how != "", "alpha": alpha}
    return [
        NormCall(f"squeeze_{word}", "squeeze", dtype, activation, alpha=alpha, running=True),
        NormCall(
            f"excite_{word}", "excite", dtype, activation, residual=residual, last=end, **told
        ),
        NormCall(f"sums_{word}", "gate_sums", dtype, activation, summed=how == SUMMED, **told),
        NormCall(f"back_{word}", "gate_backward", dtype, activation, alpha=alpha),
    ]  # fmt: skip


def size_of(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """(the shape of a tensor by name, whether it is in the dtype of rows).  A mask is left out."""
    if name in ("x", "dy", "dy2", "dx", "y", "residual", "dresidual"):
        return shape, True
    if name in ("gate", "lift", "squeezed", "dgate"):
        return (shape[0], *[1] * (len(shape) - 2), shape[-1]), False
    return ((4, shape[0], shape[-1]) if name == "sums" else shape[-1:]), False


def taken(call: NormCall, t: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a call: the gradient of the product is what ReLU has let through of y's."""
    by_relu = call.direction == "gate_backward" and "dresidual" in t
    return {**t, "dy": t["dresidual"]} if by_relu else t


def mask_shape(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """A byte for each 16 bytes of a row."""
    each = 16 // torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    return (*shape[:-1], -(-shape[-1] // each))


def through(given: dict[str, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    """What ReLU, whose result is y, lets through of the gradient, or of the sum of two."""
    dy = given["dy"] + given["dy2"] if "dy2" in given else given["dy"]
    return torch.where(y <= 0, torch.zeros_like(dy), dy)


def expected(given: dict[str, torch.Tensor], activation: str, last: str) -> dict[str, torch.Tensor]:
    """All results, of the operands by name, channels last; gradients by autograd.

    The gradient of what is normalized comes by the product and, as `lift`, by the mean.  Where
    `dresidual` is given, which a call wrote, it is the product's.
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
    dy = v.get("dresidual", v["dy"])
    whole = (dy * v["gate"] + v["lift"]).expand_as(made)
    dx, dgamma, dbeta = torch.autograd.grad(made, (x, gamma, beta), whole)
    made = made.detach()
    return {
        "mean": mean, "rstd": (var + EPSILON) ** -0.5,
        "squeezed": made.mean(pixels, keepdim=True),
        "new_running_mean": 0.9 * v["running_mean"] + 0.1 * mean,
        "new_running_var": 0.9 * v["running_var"] + 0.1 * var * m / (m - 1),
        "y": y.detach().clamp_min(0) if last else y.detach(),
        "dgate": (dy * made).sum(pixels, keepdim=True), "dresidual": dy,
        "dx": dx, "dgamma": dgamma, "dbeta": dbeta,
    }  # fmt: skip
