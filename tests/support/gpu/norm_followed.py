"""Batch normalizations with what follows them, a sum, another one, a pooling: operands, results.

What is wanted is computed in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from byoc_cudnn.norm import NormCall
from relay_wgrad.problem import DTYPE_BYTES, DTYPES

POOLED = (3, 3, 2, 2, 1, 1, 1, 1)
EPSILON, MOMENTUM = 1e-5, 0.1
# Largest relative errors: a rounding of the result, or of float32 sums.
LIMITS = {"bf16": 4e-3, "f16": 5e-4, "f32": 1e-5, "f64": 1e-13}


@dataclass(frozen=True)
class Case:
    """`times` normalizations of `batch` images of `side`² pixels, and what follows them."""

    times: int
    batch: int
    channels: int
    side: int
    after: str
    mode: str

    @property
    def rows(self) -> int:
        return self.batch * self.side**2

    @property
    def activation(self) -> str:
        return next((name for name in ("relu", "silu") if name in self.after), "")

    @property
    def residual(self) -> bool:
        return "add" in self.after or self.two

    @property
    def two(self) -> bool:
        return "two" in self.after

    @property
    def pooled(self) -> tuple[int, ...]:
        return POOLED if "pool" in self.after else ()

    @property
    def windows(self) -> tuple[int, int, int, int]:
        """The pooled tensor's shape."""
        side = (self.side - 1) // 2 + 1
        return (self.batch, side, side, self.channels)

    @property
    def tensor_bytes(self) -> int:
        size = DTYPE_BYTES[DTYPES[self.mode]]
        return self.rows * self.channels * size

    @property
    def moved(self) -> tuple[float, float]:
        """Bytes that are read and written, forward and backward."""
        if self.pooled:  # the windows' tensor, and a byte for each of its elements
            size = self.tensor_bytes // (self.rows * self.channels)
            more = math.prod(self.windows) * (size + 1)
            return (2 * self.tensor_bytes + more, 3 * self.tensor_bytes + 2 * more)
        passes = (5 + 1 / 16, 8 + 2 / 16) if self.two else (4 + 1 / 16, 6 + 1 / 16)
        if not self.residual:
            passes = (3, 5)
        return (self.tensor_bytes * passes[0], self.tensor_bytes * passes[1])

    def call(self, direction: str) -> NormCall:
        """What computes it; the symbol tells all but sizes."""
        symbol = f"{direction}_{self.mode}_{self.after.replace(' ', '_') or 'none'}"
        return NormCall(
            symbol, direction, DTYPES[self.mode], self.activation, self.residual,
            running=direction == "forward", bits=self.residual, others=int(self.two),
            pooled=self.pooled, epsilon=EPSILON, momentum=MOMENTUM,
        )  # fmt: skip


class Tensors:
    """Operands and results of a case, both directions; x has a mean and a spread of its own."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        dtype = getattr(torch, DTYPES[case.mode])
        sums = torch.float64 if dtype is torch.float64 else torch.float32
        shape = (case.batch, case.side, case.side, case.channels)

        def rows(scale: float = 1, shift: float = 0) -> torch.Tensor:
            t = torch.randn(shape, device="cuda", dtype=dtype, generator=generator)
            return t.mul_(scale).add_(shift)

        def vector(shift: float = 0) -> torch.Tensor:
            t = torch.rand(case.channels, device="cuda", dtype=sums, generator=generator)
            return t + shift

        self.case = case
        self.x, self.dy = rows(1.5, 0.5), rows()
        self.residual = rows() if case.residual and not case.two else None
        self.gamma, self.beta = vector(0.5), vector(-0.5)
        self.running_mean, self.running_var = vector(), vector(0.5)
        new: Any = torch.empty_like
        self.y, self.dx = new(self.x), new(self.x)
        self.dresidual = new(self.x) if self.residual is not None else None
        if case.two:
            self.x2, self.dx2 = rows(0.7, -0.2), new(self.x)
            self.gamma2, self.beta2 = vector(0.5), vector(-0.5)
            self.running_mean2, self.running_var2 = vector(), vector(0.5)
        if case.pooled:
            self.dy = rows()[:, ::2, ::2].contiguous()
            self.y = new(self.dy)
            self.index = torch.zeros(self.y.shape, device="cuda", dtype=torch.uint8)
        packs = -(-case.channels * self.x.element_size() // 16)
        self.mask = torch.zeros((case.rows, packs), device="cuda", dtype=torch.uint8)
        for name in {*case.call("forward").results, *case.call("backward").results}:
            if not hasattr(self, name):
                setattr(self, name, new(self.gamma))

    def args(self, call: NormCall) -> list[torch.Tensor]:
        return [getattr(self, name) for name in (*call.operands, *call.results)]

    def poison(self) -> None:
        for direction in ("forward", "backward"):
            for name in self.case.call(direction).results:
                getattr(self, name).fill_(0x5A if name in ("mask", "index") else float("nan"))


def wanted(t: Tensors) -> dict[str, torch.Tensor]:
    """All results in float64; masks and maxima are of what is stored, whose rounding decides."""
    call = t.case.call("forward")
    normals, found = [], {}
    z: Any = 0
    for which in ("", "2") if t.case.two else ("",):
        x = getattr(t, "x" + which).double().flatten(0, -2)
        mean, var = x.mean(0), x.var(0, unbiased=False)
        rstd = (var + call.epsilon).rsqrt()
        normals.append((x - mean) * rstd)
        z = z + normals[-1] * getattr(t, "gamma" + which).double()
        z = z + getattr(t, "beta" + which).double()
        m = x.shape[0]
        means, variances = (getattr(t, f"running_{n}{which}").double() for n in ("mean", "var"))
        found |= {
            f"mean{which}": mean, f"rstd{which}": rstd,
            f"new_running_mean{which}": 0.9 * means + 0.1 * mean,
            f"new_running_var{which}": 0.9 * variances + 0.1 * var * (m / max(m - 1, 1)),
        }  # fmt: skip
    if t.residual is not None:
        z = z + t.residual.double().flatten(0, -2)
    dy = t.dy.double()
    if t.case.activation == "silu":
        s = z.sigmoid()
        dy = dy * (s * (1 + z * (1 - s))).view(dy.shape)
        z = z * s
    elif t.case.activation:
        z = z.relu()
        dy = torch.where(t.y <= 0, 0, dy)
    if t.case.pooled:
        image = z.view(t.x.shape).permute(0, 3, 1, 2)
        z = F.max_pool2d(image, 3, 2, 1).permute(0, 2, 3, 1).flatten(0, -2)
        dy = scattered(t, dy)
    found["y"], dy = z, dy.flatten(0, -2)
    m = dy.shape[0]
    for which, normal in zip(("", "2"), normals, strict=False):
        dbeta, dgamma = dy.sum(0), (dy * normal).sum(0)
        scale = getattr(t, "gamma" + which).double() * found["rstd" + which]
        found["dbeta" + which], found["dgamma" + which] = dbeta, dgamma
        found["dx" + which] = scale * (dy - dbeta / m - normal * dgamma / m)
    if t.dresidual is not None:
        found["dresidual"] = dy
    return found


def scattered(t: Tensors, dy: torch.Tensor) -> torch.Tensor:
    """The image's gradient: each window's, where the index says."""
    n, h, w, c = t.x.shape
    p, q = (torch.arange(size, device="cuda") for size in t.y.shape[1:3])
    tap = t.index.long()
    row = 2 * p.view(1, -1, 1, 1) - 1 + tap // 3
    column = 2 * q.view(1, 1, -1, 1) - 1 + tap % 3
    images = torch.arange(n, device="cuda").view(-1, 1, 1, 1)
    place = ((images * h + row) * w + column) * c + torch.arange(c, device="cuda")
    out = torch.zeros(t.x.numel(), device="cuda", dtype=torch.float64)
    return out.scatter_add_(0, place.flatten(), dy.flatten()).view(t.x.shape)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    wide = got.double().flatten(0, -2) if got.ndim > 1 else got.double()
    return float((wide - want).norm() / want.norm())
