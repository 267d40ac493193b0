"""Group and instance normalization's kernels on a GPU, and every activation, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from byoc_cudnn.norm import check, workspace_bytes
from tests.support.gpu.group_norm_runner import DTYPES, call_of, run, wrong
from tests.support.gpu.norm_runner import load, other_bits_in_place
from tests.support.norm_groups import CALLS

pytestmark = pytest.mark.gpu

SHAPES = (
    (2, 24, 20, 22, 32), (3, 5, 7, 9, 40), (1, 9, 8, 8, 32), (2, 1, 1, 1, 16), (2, 3, 12),
    (5, 33, 260), (70, 6, 6, 4), (2, 4, 4, 4, 320), (2, 64, 64, 64, 32),
)  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [call_of(d, t, *rest) for d in ("forward", "backward") for t in DTYPES
             for rest in CALLS]  # fmt: skip
    assert all(map(check, calls))
    return load(list({c.symbol: c for c in calls}.values()), tmp_path_factory.mktemp("norm"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "activation", "how"), CALLS, ids=str)
def test_shapes(functions: Any, dtype: str, groups: int, activation: str, how: Any) -> None:
    lines = []
    for shape in SHAPES:
        if groups > 0 and shape[-1] % groups:
            continue
        t = run(functions, shape, dtype, groups, activation, how)
        lines += [f"{shape} {line}" for line in wrong(t, dtype, groups, activation)]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_its_group(functions: Any, dtype: str, value: float) -> None:
    shape, how = (3, 9, 9, 32), {"residual": True}
    call = call_of("forward", dtype, 4, "leaky_relu", how)
    t = run(functions, shape, dtype, 4, "leaky_relu", how)
    t["x"][1, 2, 3, 9] = value  # of group 1 of the second image
    functions[call.symbol](*(t[n] for n in (*call.operands, *call.results)))
    bad = ~torch.isfinite(t["y"])
    assert bool(bad[1, ..., 8:16].all())
    bad[1, ..., 8:16] = False
    assert not bool(bad.any())


@pytest.mark.parametrize("dtype", DTYPES)
def test_twice_the_same_bits_and_with_a_small_workspace(functions: Any, dtype: str) -> None:
    for groups, activation, how in CALLS[:4]:
        for shape in ((2, 24, 20, 22, 32), (5, 33, 260)):
            first = run(functions, shape, dtype, groups, activation, how)
            again = run(functions, shape, dtype, groups, activation, how)
            for name, value in first.items():
                assert torch.equal(value.view(torch.uint8), again[name].view(torch.uint8)), name
            rows = 32 if "bits" in how else 1  # that may lie side by side
            least = 12 * shape[-1] * shape[0] * rows
            assert workspace_bytes(shape[-1], dtype, shape[0]) > least
            block = torch.empty(least, device="cuda", dtype=torch.uint8)
            small = run(functions, shape, dtype, groups, activation, how, block)
            assert not wrong(small, dtype, groups, activation)


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_the_place_of_an_operand_the_same_bits(functions: Any, dtype: str) -> None:
    lines = []
    for groups, activation, how in CALLS:
        for shape in ((2, 64, 64, 64, 32), (5, 33, 260), (1, 9, 8, 8, 32), (3, 5, 13)):
            if groups > 0 and shape[-1] % groups:
                continue
            t = run(functions, shape, dtype, groups, activation, how)
            for direction in ("forward", "backward"):
                call = call_of(direction, dtype, groups, activation, how)
                lines += other_bits_in_place(functions, call, t)
    assert not lines, "\n".join(lines)


def test_calls_are_checked(functions: Any) -> None:
    call = call_of("forward", "float32", 4, "leaky_relu", {"residual": True})
    t = run(functions, (2, 3, 12), "float32", 4, "leaky_relu", {"residual": True})
    args = [t[n] for n in (*call.operands, *call.results)]
    with pytest.raises(ValueError, match="mean must have two axes, of the 2 images and of groups"):
        functions[call.symbol](*args[:5], args[5][:, :3].flatten(), args[6])
    with pytest.raises(ValueError, match="mean must have two axes"):
        functions[call.symbol](*args[:5], args[5].new_empty(2, 5), args[6])
    with pytest.raises(ValueError, match="mean has 4 groups and rstd 3"):
        functions[call.symbol](*args[:6], args[6].new_empty(2, 3))
