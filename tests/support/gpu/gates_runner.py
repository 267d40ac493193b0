"""Kernels around a gate on a GPU, run and held against float64."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.gate_cases import RESULTS, calls, expected, mask_shape, size_of, taken, through
from tests.support.gpu.norm_runner import ROWS, SUMS

# (activation before the gate, whether a residual is added, what comes last)
KINDS = (("silu", False, ""), ("relu", False, ""), ("", True, "relu"), ("", False, ""),
         ("", True, "relu summed"))  # fmt: skip


def run(
    functions: Any, dtype: str, shape: tuple[int, ...], activation: str, residual: bool, last: str,
    workspace: Any = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """All tensors by name, results full of NaN before."""
    generator = torch.Generator("cuda").manual_seed(shape[-1])
    t: dict[str, torch.Tensor] = {}
    wide = torch.float64 if dtype == "float64" else torch.float32
    for call in calls(dtype, activation, residual, last):
        for name in (*call.operands, *call.results):
            if name == "mask":
                if name in call.results:
                    told = torch.full(mask_shape(shape, dtype), 0xA5, dtype=torch.uint8)
                    t[name] = told.to("cuda")
                continue
            size, of_rows = size_of(name, shape)
            kind = getattr(torch, dtype) if of_rows else wide
            if name in call.results:
                t[name] = torch.full(size, torch.nan, device="cuda", dtype=kind)
            elif name not in t:
                made = torch.randn(size, device="cuda", generator=generator)
                t[name] = (1.5 * made + 0.3).to(kind)
        more = [] if workspace is None else [workspace]
        own = taken(call, t)
        functions[call.symbol](*(own[n] for n in (*call.operands, *call.results)), *more)
    return t


def wrong(t: dict[str, torch.Tensor], dtype: str, activation: str, last: str) -> list[str]:
    given = {n: v for n, v in t.items() if n not in (*RESULTS, "mask") or n == "dresidual"}
    if dtype == "float64":  # of which PyTorch's Hardswish on a GPU has float32's sixth
        given = {n: v.cpu() for n, v in given.items()}
    want = {n: v.to("cuda") for n, v in expected(given, activation, last).items()}
    lines = []
    if "dresidual" in t and not torch.equal(t["dresidual"], through(t, t["y"])):
        lines.append(f"{tuple(t['x'].shape)} dresidual")
    for name in (n for n in RESULTS if n in t):
        of_rows = t[name].dtype == getattr(torch, dtype) and t[name].ndim > 1
        limit = (ROWS if of_rows else SUMS)[dtype]
        got, exact = t[name].double(), want[name].reshape(t[name].shape)
        scale = float(exact.norm())
        if name in ("dx", "dgamma", "dbeta"):  # differences, of terms of this size
            scale += 1e-2 * float(t["dy"].double().norm() * t["rstd"].max())
        if name == "dgamma":  # of as many terms of either sign as there are pixels
            scale *= 5
        error = float((got - exact).norm())
        if not error <= 2 * limit * scale:
            lines.append(f"{tuple(t['x'].shape)} {name}: {error / scale:.2e}")
    return lines
