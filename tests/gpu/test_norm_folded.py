"""Normalizations of channels that are no whole packs, on a GPU, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from byoc_cudnn.norm import check
from tests.support.gpu.group_norm_runner import call_of, run, wrong
from tests.support.gpu.norm_runner import load

pytestmark = pytest.mark.gpu

DTYPE = "float16"
CALLS: list[tuple[int, str, dict[str, Any]]] = [  # groups (-1: a channel a group), activation, how
    (0, "relu", {}),
    (0, "relu", {"residual": True, "bits": True, "summed": True}),
    (-1, "silu", {}),
]
SHAPES = (
    (64, 56, 56, 18), (64, 28, 28, 36), (64, 56, 56, 26), (16, 14, 14, 52), (3, 7, 7, 18),
    (2, 9, 8, 13), (4, 3, 2, 300), (1, 64, 64, 4),
)  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [call_of(d, DTYPE, *rest) for d in ("forward", "backward") for rest in CALLS]
    assert all(map(check, calls))
    return load(calls, tmp_path_factory.mktemp("norm"))


@pytest.mark.parametrize(("groups", "activation", "how"), CALLS, ids=str)
def test_shapes(functions: Any, groups: int, activation: str, how: Any) -> None:
    lines = []
    for shape in SHAPES:
        t = run(functions, shape, DTYPE, groups, activation, how)
        lines += [f"{shape} {line}" for line in wrong(t, DTYPE, groups, activation)]
        again = run(functions, shape, DTYPE, groups, activation, how)
        same = (torch.equal(t[n].view(torch.uint8), again[n].view(torch.uint8)) for n in t)
        lines += [f"{shape}: other bits the second time"] * (not all(same))
    assert not lines, "\n".join(lines)


def test_tensors_that_lie_anywhere_have_the_same_rows(functions: Any) -> None:
    """What passes goes from a call with tensors at 16 bytes to one without."""
    how = CALLS[1][2]
    t = run(functions, (8, 6, 6, 18), DTYPE, 0, "relu", how)
    back = call_of("backward", DTYPE, 0, "relu", how)
    moved = torch.empty(t["dy"].numel() + 1, device="cuda", dtype=torch.float16)[1:]
    moved = moved.view(t["dy"].shape)
    moved.copy_(t["dy"])
    wanted = {name: t[name].clone() for name in back.results}
    for name in back.results:
        t[name].fill_(torch.nan)
    functions[back.symbol](*(moved if n == "dy" else t[n] for n in (*back.operands, *back.results)))
    for name, value in wanted.items():
        assert torch.allclose(t[name].double(), value.double(), rtol=1e-3, atol=1e-3), name
