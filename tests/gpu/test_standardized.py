"""Standardized weights on a GPU, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from byoc_cudnn.standardized import STANDARDIZED, StandardizedCall, Weight
from tests.support.gpu.norm_runner import load_source
from tests.support.standardized import values

pytestmark = pytest.mark.gpu

WEIGHTS = (
    Weight(64, 16, 9, 0.3), Weight(1536, 384, 1, 0.05), Weight(384, 64, 9, 0.07, False),
    Weight(16, 3, 9, 0.5), Weight(1, 2, 1), Weight(5, 7, 49, -2.0), Weight(3, 2048, 1),
) * 12  # fmt: skip
LIMITS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 4e-6}


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_both_directions(tmp_path: Path, dtype: str) -> None:
    """More weights than a launch's table holds; results full of NaN before; the same bits twice."""
    calls = [StandardizedCall(f"f_{d}", d, dtype, WEIGHTS, 1e-6) for d in ("forward", "backward")]
    functions = load_source(STANDARDIZED.generate, STANDARDIZED.inputs, calls, tmp_path)
    generator = torch.Generator("cuda").manual_seed(0)

    def random(count: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
        made = torch.randn(count, device="cuda", generator=generator)
        return (1.5 * made + 0.3).to(kind)

    half, sizes = getattr(torch, dtype), [w.filters * w.row for w in WEIGHTS]
    weights, gains = [random(n) for n in sizes], [random(w.filters) for w in WEIGHTS if w.gained]
    shapes = [(n, half) for n in sizes] + [(2 * w.filters, torch.float32) for w in WEIGHTS]
    made = ran(functions["f_forward"], [*weights, *gains], shapes)
    compared(calls[0], [*weights, *gains], made)
    given = [*(random(n, half) for n in sizes), *weights, *gains, *made[len(sizes) :]]
    shapes = [(n, torch.float32) for n in sizes]
    shapes += [(w.filters, torch.float32) for w in WEIGHTS if w.gained]
    compared(calls[1], given, ran(functions["f_backward"], given, shapes))


def ran(
    function: object, given: list[torch.Tensor], shapes: list[tuple[int, torch.dtype]]
) -> list[torch.Tensor]:
    twice = []
    for _ in range(2):
        out = [torch.full((n,), torch.nan, device="cuda", dtype=kind) for n, kind in shapes]
        function(*given, *out)  # type: ignore[operator]
        twice.append(out)
    assert all(torch.equal(a, b) for a, b in zip(*twice, strict=True))
    return twice[0]


def compared(call: StandardizedCall, given: list[torch.Tensor], got: list[torch.Tensor]) -> None:
    want = values(call, [t.double().cpu().numpy() for t in given])
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        limit = LIMITS[str(a.dtype).removeprefix("torch.")]
        exact = b.astype("float64")
        error = np.linalg.norm(a.double().cpu().numpy() - exact)
        # A filter of two elements has no gradient but rounding.
        assert error <= limit * max(np.linalg.norm(exact), 1.0), (i, error)


def test_calls_are_checked(tmp_path: Path) -> None:
    call = StandardizedCall("f", "forward", "float16", (Weight(4, 3, 9),), 1e-6)
    f = load_source(STANDARDIZED.generate, STANDARDIZED.inputs, [call], tmp_path)["f"]
    good = [torch.zeros(n, device="cuda") for n in (108, 4)]
    results = [torch.zeros(108, device="cuda", dtype=torch.float16), torch.zeros(8, device="cuda")]
    f(*good, *results)
    with pytest.raises(TypeError, match="expected 4 tensors, got 3"):
        f(*good, results[0])
    with pytest.raises(ValueError, match="a gain has 5 elements, expected 4"):
        f(good[0], torch.zeros(5, device="cuda"), *results)
