"""What `benchmarks.gpu_norm` measures: normalizations, their operands, float64's results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from byoc_cudnn.norm import NormCall

# ResNet-50's: how many there are, channels, side of the image at 224×224, what follows.
RESNET50 = (
    (1, 64, 112, "relu"), (6, 64, 56, "relu"), (1, 128, 56, "relu"), (7, 128, 28, "relu"),
    (1, 256, 28, "relu"), (11, 256, 14, "relu"), (1, 512, 14, "relu"), (5, 512, 7, "relu"),
    (3, 256, 56, "add relu"), (4, 512, 28, "add relu"), (6, 1024, 14, "add relu"),
    (3, 2048, 7, "add relu"),
    (1, 256, 56, ""), (1, 512, 28, ""), (1, 1024, 14, ""), (1, 2048, 7, ""),
)  # fmt: skip
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
EPSILON, MOMENTUM = 1e-5, 0.1


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
        return "relu" if "relu" in self.after else ""

    @property
    def residual(self) -> bool:
        return "add" in self.after

    @property
    def tensor_bytes(self) -> int:
        size = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8}[self.mode]
        return self.rows * self.channels * size

    @property
    def passes(self) -> tuple[int, int]:
        """Reads and writes of a tensor, forward and backward."""
        return (4, 6) if self.residual else (3, 5)

    def call(self, direction: str) -> NormCall:
        """What computes it; the symbol tells all but sizes."""
        symbol = f"{direction}_{self.mode}_{self.after.replace(' ', '_') or 'none'}"
        return NormCall(
            symbol, direction, DTYPES[self.mode], self.activation, self.residual,
            running=direction == "forward", bits=self.residual, epsilon=EPSILON, momentum=MOMENTUM,
        )  # fmt: skip


def cases(batch: int, mode: str) -> list[Case]:
    return [Case(times, batch, *rest, mode) for times, *rest in RESNET50]


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
        self.residual = rows() if case.residual else None
        self.gamma, self.beta = vector(0.5), vector(-0.5)
        self.running_mean, self.running_var = vector(), vector(0.5)
        new: Any = torch.empty_like
        self.y, self.dx = new(self.x), new(self.x)
        self.dresidual = new(self.x) if case.residual else None
        packs = -(-case.channels * self.x.element_size() // 16)
        self.mask = torch.zeros((case.rows, packs), device="cuda", dtype=torch.uint8)
        self.mean, self.rstd, self.dgamma, self.dbeta = (new(self.gamma) for _ in range(4))
        self.new_running_mean, self.new_running_var = new(self.gamma), new(self.gamma)

    def args(self, call: NormCall) -> list[torch.Tensor]:
        return [getattr(self, name) for name in (*call.operands, *call.results)]

    def poison(self) -> None:
        for name in ("y", "dx", "dresidual", "mean", "rstd", "dgamma", "dbeta",
                     "new_running_mean", "new_running_var"):  # fmt: skip
            if getattr(self, name) is not None:
                getattr(self, name).fill_(float("nan"))


def wanted(t: Tensors) -> dict[str, torch.Tensor]:
    """All results in float64; the mask is that of the stored y, whose rounding decides."""
    call = t.case.call("forward")
    x = t.x.double().flatten(0, -2)
    gamma, beta = t.gamma.double(), t.beta.double()
    mean, var = x.mean(0), x.var(0, unbiased=False)
    rstd = (var + call.epsilon).rsqrt()
    normal = (x - mean) * rstd
    y = normal * gamma + beta
    if t.residual is not None:
        y = y + t.residual.double().flatten(0, -2)
    dy = t.dy.double().flatten(0, -2)
    if t.case.activation:
        y = y.relu()
        dy = torch.where(t.y.flatten(0, -2) <= 0, 0, dy)
    m = x.shape[0]
    dbeta, dgamma = dy.sum(0), (dy * normal).sum(0)
    dx = gamma * rstd * (dy - dbeta / m - normal * dgamma / m)
    found = {
        "y": y, "mean": mean, "rstd": rstd, "dx": dx, "dgamma": dgamma, "dbeta": dbeta,
        "new_running_mean": 0.9 * t.running_mean.double() + 0.1 * mean,
        "new_running_var": 0.9 * t.running_var.double() + 0.1 * var * (m / max(m - 1, 1)),
    }  # fmt: skip
    if t.dresidual is not None:
        found["dresidual"] = dy
    return found


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    wide = got.double().flatten(0, -2) if got.ndim > 1 else got.double()
    return float((wide - want).norm() / want.norm())
