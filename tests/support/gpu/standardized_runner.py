"""Standardized weights on a GPU, run and held against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from byoc_cudnn.standardized import STANDARDIZED, StandardizedCall, Weight
from tests.support.gpu.norm_runner import load_source
from tests.support.standardized import values

WEIGHTS = (
    Weight(64, 16, 9, 0.3), Weight(1536, 384, 1, 0.05), Weight(384, 64, 9, 0.07, False),
    Weight(16, 3, 9, 0.5), Weight(1, 2, 1), Weight(5, 7, 49, -2.0), Weight(3, 2048, 1),
)  # fmt: skip
LIMITS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 4e-6}


def wrong_directions(folder: Path, dtype: str, weights: tuple[Weight, ...]) -> list[str]:
    """What is wrong of both calls, in words; results are full of NaN before, and made twice."""
    calls = [StandardizedCall(f"f_{d}", d, dtype, weights, 1e-6) for d in ("forward", "backward")]
    functions = load_source(STANDARDIZED.generate, STANDARDIZED.inputs, calls, folder)
    generator = torch.Generator("cuda").manual_seed(0)

    def random(count: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
        made = torch.randn(count, device="cuda", generator=generator)
        return (1.5 * made + 0.3).to(kind)

    half, sizes = getattr(torch, dtype), [w.filters * w.row for w in weights]
    wide, gains = [random(n) for n in sizes], [random(w.filters) for w in weights if w.gained]
    shapes = [(n, half) for n in sizes] + [(2 * w.filters, torch.float32) for w in weights]
    made, lines = _ran(functions["f_forward"], [*wide, *gains], shapes)
    lines += _wrong(calls[0], [*wide, *gains], made)
    given = [*(random(n, half) for n in sizes), *wide, *gains, *made[len(sizes) :]]
    shapes = [(n, torch.float32) for n in sizes]
    shapes += [(w.filters, torch.float32) for w in weights if w.gained]
    made, more = _ran(functions["f_backward"], given, shapes)
    return [*lines, *more, *_wrong(calls[1], given, made)]


def _ran(
    function: object, given: list[torch.Tensor], shapes: list[tuple[int, torch.dtype]]
) -> tuple[list[torch.Tensor], list[str]]:
    twice = []
    for _ in range(2):
        out = [torch.full((n,), torch.nan, device="cuda", dtype=kind) for n, kind in shapes]
        function(*given, *out)  # type: ignore[operator]
        twice.append(out)
    other = [i for i, (a, b) in enumerate(zip(*twice, strict=True)) if not torch.equal(a, b)]
    return twice[0], [f"result {i}: two runs differ" for i in other]


def _wrong(call: StandardizedCall, given: list[torch.Tensor], got: list[torch.Tensor]) -> list[str]:
    want = values(call, [t.double().cpu().numpy() for t in given])
    lines = []
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        limit = LIMITS[str(a.dtype).removeprefix("torch.")]
        exact = b.astype("float64")
        error = np.linalg.norm(a.double().cpu().numpy() - exact)
        # A filter of two elements has no gradient but rounding.
        if not error <= limit * max(np.linalg.norm(exact), 1.0):
            lines.append(f"{call.direction} {call.dtype} result {i}: {error:.1e}")
    return lines
