"""Group and instance normalization of random operands, any activation, beside float64."""

from __future__ import annotations

from typing import Any

import torch

from byoc_cudnn.norm import NormCall
from tests.support.gpu.norm_runner import ROWS, SUMS
from tests.support.norm_groups import alpha_of, expected

DTYPES = ("bfloat16", "float32")


def call_of(direction: str, dtype: str, groups: int, activation: str, how: Any) -> NormCall:
    """One of a kind, whatever its groups."""
    given = {n: v for n, v in how.items() if n != "summed" or direction == "backward"}
    kind = "groups" if groups else "batch"
    symbol = "_".join([direction, dtype, kind, activation, *given])
    return NormCall(
        symbol, direction, dtype, activation, alpha=alpha_of(activation), grouped=groups != 0,
        **given,
    )  # fmt: skip


def run(functions: Any, shape: Any, dtype: str, groups: int, activation: str, how: Any,
        workspace: Any = None) -> dict[str, torch.Tensor]:  # fmt: skip
    """All tensors of both directions by name."""
    generator = torch.Generator("cuda").manual_seed(len(shape) + shape[-1])
    groups = shape[-1] if groups < 0 else groups
    rows, sums = getattr(torch, dtype), torch.float32
    few = (shape[0], groups) if groups else shape[-1:]
    sizes = {"mean": few, "rstd": few, "gamma": shape[-1:], "beta": shape[-1:]}
    packs = -(-shape[-1] * torch.empty((), dtype=rows).element_size() // 16)
    t: dict[str, torch.Tensor] = {}
    for direction in ("forward", "backward"):
        call = call_of(direction, dtype, groups, activation, how)
        for name in (*call.operands, *call.results):
            if name == "mask":
                t.setdefault(name, torch.full((*shape[:-1], packs), 0x5A, device="cuda",
                                              dtype=torch.uint8))  # fmt: skip
                continue
            size = sizes.get(name.removeprefix("d"), shape)
            kind = sums if size is not shape else rows
            if name in call.results:
                t[name] = torch.full(size, torch.nan, device="cuda", dtype=kind)
            elif name not in t:
                made = torch.randn(size, device="cuda", generator=generator)
                t[name] = (1.5 * made + 0.3).to(kind)
        more = [] if workspace is None else [workspace]
        functions[call.symbol](*(t[n] for n in (*call.operands, *call.results)), *more)
    return t


def wrong(t: dict[str, torch.Tensor], dtype: str, groups: int, activation: str) -> list[str]:
    given = {n: t[n] for n in ("x", "gamma", "beta", "residual") if n in t}
    groups = t["x"].shape[-1] if groups < 0 else groups
    dy = t["dy"] + t["dy2"] if "dy2" in t else t["dy"]
    want = expected(given, dy, t["y"], groups, activation)
    lines = []
    scale = float(want["rstd"].max() * t["gamma"].abs().max() * dy.double().norm())
    for name, right in want.items():
        if name not in t:
            continue
        got = t[name].double().reshape(right.shape)
        rows = t[name].shape == t["x"].shape
        # A sum's error is that of its terms; dx is a difference of what is as large as `scale`, and
        # with a residual of dy as it was rounded for that: of one voxel it should be nothing.
        rounding = ROWS[dtype] if name == "dx" and "residual" in t else 2e-6
        limit = 2 * (ROWS if rows else SUMS)[dtype] * float(right.norm()) + rounding * scale
        error = float((got - right).norm())
        if not error <= limit:
            lines.append(f"{name}: {error:.1e}, at most {limit:.1e}")
    return lines
