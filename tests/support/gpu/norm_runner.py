"""Normalizations of random operands: built without TVM's compiler, run on torch's tensors."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.norm import NormCall, check, generate, inputs
from relay_wgrad.dtypes import FLOATS
from relay_wgrad.pipeline.overwrites import matched

# Largest errors, relative in norm: a rounding of the result; of float32 or float64 sums.
ROWS = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 1e-6, "float64": 1e-14}
SUMS = {"float16": 2e-6, "bfloat16": 2e-6, "float32": 2e-6, "float64": 1e-14}


# residual, bits, summed
HOW = (
    (False, False, False), (True, False, False), (True, True, False), (True, False, True),
    (True, True, True),
)  # fmt: skip


def call_of(
    direction: str,
    dtype: str,
    activation: str,
    residual: bool,
    bits: bool = False,
    summed: bool = False,
) -> NormCall:
    forward = direction == "forward"
    summed = summed and not forward
    more = ("bits" if bits else "add" if residual else "alone") + "_summed" * summed
    symbol = f"{direction}_{dtype}_{activation or 'none'}_{more}"
    return NormCall(
        symbol, direction, dtype, activation, residual, running=forward, bits=bits, summed=summed
    )


def all_calls() -> list[NormCall]:
    calls = [
        call_of(direction, dtype, activation, *how)
        for direction in ("forward", "backward")
        for dtype in FLOATS
        for activation in ("", "relu", "relu6", "silu")
        for how in HOW
    ]
    return list({call.symbol: call for call in calls if check(call)}.values())


def load_source(generate: Any, inputs: Any, calls: Sequence[Any], folder: Path) -> Any:
    """The module of a family's calls, with kernels for the GPU that is there."""
    major, minor = torch.cuda.get_device_capability()
    folder.mkdir(exist_ok=True)
    source, library = folder / "calls.cc", folder / "calls.so"
    text = generate(calls, 10 * major + minor)
    source.write_text(text, encoding="utf-8")
    subprocess.run(library_command(source, library, inputs=inputs(text)), check=True)
    return tvm_ffi.load_module(str(library))


def load(calls: Sequence[NormCall], folder: Path) -> Any:
    """The module of the calls' functions."""
    return load_source(generate, inputs, calls, folder)


class Operands:
    """Operands and results of a normalization, both directions."""

    def __init__(
        self, shape: tuple[int, ...], dtype: str, activation: str, residual: bool,
        seed: int = 0, mean: float = 0.3, bits: bool = False, summed: bool = False,
    ) -> None:  # fmt: skip
        generator = torch.Generator("cuda").manual_seed(seed)
        rows = getattr(torch, dtype)
        sums = torch.float64 if dtype == "float64" else torch.float32

        def random(scale: float = 1, shift: float = 0) -> torch.Tensor:
            t = torch.randn(shape, device="cuda", dtype=torch.float64, generator=generator)
            return (t * scale + shift).to(rows)

        def vector(shift: float) -> torch.Tensor:
            return torch.rand(shape[-1], device="cuda", dtype=sums, generator=generator) + shift

        self.dtype, self.activation, self.how = dtype, activation, (residual, bits, summed)
        self.x, self.dy = random(1.5, mean), random()
        self.dy2 = random() if summed else None
        self.residual = random() if residual else None
        self.gamma, self.beta = vector(0.5), vector(-0.5)
        self.running_mean, self.running_var = vector(0), vector(0.5)
        self.results: dict[str, torch.Tensor] = {}
        for name in ("y", "dx", *(("dresidual",) if self.call("backward").stored else ())):
            self.results[name] = torch.empty_like(self.x)
        for name in ("mean", "rstd", "dgamma", "dbeta", "new_running_mean", "new_running_var"):
            self.results[name] = torch.empty_like(self.gamma)
        packs = -(-shape[-1] * self.x.element_size() // 16)
        self.mask = torch.empty((*shape[:-1], packs), device="cuda", dtype=torch.uint8)
        self.poison()

    def __getattr__(self, name: str) -> torch.Tensor:
        results = self.__dict__.get("results", {})
        if name in results:
            return results[name]
        raise AttributeError(name)

    def call(self, direction: str) -> NormCall:
        return call_of(direction, self.dtype, self.activation, *self.how)

    def poison(self) -> None:
        for value in self.results.values():
            value.fill_(float("nan"))
        self.mask.fill_(0x5A)

    def args(self, call: NormCall) -> list[torch.Tensor]:
        return [getattr(self, name) for name in (*call.operands, *call.results)]

    def calls(self) -> list[NormCall]:
        return [c for c in map(self.call, ("forward", "backward")) if check(c)]

    def run(self, functions: Any, *workspace: torch.Tensor) -> None:
        for call in self.calls():
            functions[call.symbol](*self.args(call), *workspace)

    def summed(self) -> torch.Tensor:
        """dy, and dy2 where there is one, rounded as PyTorch's sum is."""
        return self.dy if self.dy2 is None else self.dy + self.dy2

    def wanted(self) -> dict[str, torch.Tensor]:
        """All results in float64; masks are those of the stored y, whose rounding decides."""
        x = self.x.double().flatten(0, -2)
        gamma, beta = self.gamma.double(), self.beta.double()
        mean, var = x.mean(0), x.var(0, unbiased=False)
        rstd = (var + 1e-5).rsqrt()
        normal = (x - mean) * rstd
        z = normal * gamma + beta
        if self.residual is not None:
            z = z + self.residual.double().flatten(0, -2)
        y, dy = z, self.summed().double().flatten(0, -2)
        stored = self.results["y"].double().flatten(0, -2)
        if self.activation == "relu":
            y, dy = z.relu(), torch.where(stored <= 0, 0, dy)
        elif self.activation == "relu6":
            y, dy = z.clamp(0, 6), torch.where((stored <= 0) | (stored >= 6), 0, dy)
        elif self.activation == "silu":
            s = z.sigmoid()
            y, dy = z * s, dy * (s * (1 + z * (1 - s)))
        m = x.shape[0]
        dbeta, dgamma = dy.sum(0), (dy * normal).sum(0)
        dx = gamma * rstd * (dy - dbeta / m - normal * dgamma / m)
        spread = var * m / torch.full_like(var, m - 1)  # NaN of one row, as PyTorch has it
        return {
            "y": y, "mean": mean, "rstd": rstd, "dx": dx, "dgamma": dgamma, "dbeta": dbeta,
            "new_running_mean": 0.9 * self.running_mean.double() + 0.1 * mean,
            "new_running_var": 0.9 * self.running_var.double() + 0.1 * spread,
            "dresidual": dy,
        }  # fmt: skip

    def limits(self) -> dict[str, float]:
        """Largest error norms: of the result's size, and of what it is a difference of."""
        want = self.wanted()
        rows, sums = ROWS[self.dtype], SUMS[self.dtype]
        dy = self.summed().double().flatten(0, -2)
        x = self.x.double().flatten(0, -2)
        scale = (self.gamma.double() * want["rstd"]).abs()
        # A sum's error is that of its terms; a variance of nothing is 1 / epsilon times as large.
        terms = {
            "dbeta": dy.abs().sum(0).norm(),
            "dgamma": (dy * (x.abs() + want["mean"].abs()) * want["rstd"]).abs().sum(0).norm(),
            "mean": x.abs().mean(0).norm(),
        }
        found = {}
        for name, value in want.items():
            least = rows if value.ndim > 1 else sums
            found[name] = float(least * value.norm() + sums * terms.get(name, 0))
        apart = (x.abs() + want["mean"].abs()) * scale
        found["y"] += float(sums * apart.norm())
        found["dx"] += float(sums * 8 * (scale * (1 + apart) * dy.abs().mean(0)).norm())
        return found


def wrong_results(functions: Any, t: Operands) -> list[str]:
    """What is further from float64 than it may be, after a run; of `functions` None, as it is."""
    if functions is not None:
        t.run(functions)
    want, limits = t.wanted(), t.limits()
    wrong = []
    for call in t.calls():
        for name in call.results:
            if name == "mask":  # dresidual tells
                continue
            got, right = t.results[name].double(), want[name]
            same = got.reshape(right.shape)
            both = torch.isnan(same) & torch.isnan(right)
            error = float((same - right).masked_fill(both, 0).norm())
            if not error <= limits[name] and not (both.all() and error == 0):
                wrong.append(f"{call.symbol} {name}: {error:.1e}, at most {limits[name]:.1e}")
    return wrong


def other_bits_in_place(
    functions: Any, call: NormCall, made: dict[str, torch.Tensor], times: int = 3
) -> list[str]:
    """Results whose bits change where they lie in an operand's place: each allowed pair by itself,
    and as many at once as a plan can take.

    made : all tensors of a call by name, its results made apart; none of them changes.
    """
    lines = []
    most = matched(call.overwrites, lambda result, operand: True)
    for over in [*({r: o} for r, o in call.overwrites), most] * times:
        t = {name: made[name].clone() for name in call.operands}
        for name in call.results:
            t[name] = t[over[name]] if name in over else torch.empty_like(made[name])
        functions[call.symbol](*(t[name] for name in (*call.operands, *call.results)))
        lines += [
            f"{call.symbol} {tuple(made[name].shape)} {name}, with {over}"
            for name in call.results
            if not torch.equal(t[name].view(torch.uint8), made[name].view(torch.uint8))
        ]
    return lines
