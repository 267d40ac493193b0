"""Kernels around a gate on a GPU, squeeze and excitation of a normalization, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from byoc_cudnn.norm import check, workspace_bytes
from tests.support.gate_cases import CASES, calls, taken
from tests.support.gpu.gates_runner import KINDS, run, wrong
from tests.support.gpu.norm_runner import load, other_bits_in_place

pytestmark = pytest.mark.gpu

SHAPES = (
    (128, 56, 56, 256), (64, 28, 28, 512), (32, 7, 7, 2048), (8, 112, 112, 96), (3, 9, 5, 13),
    (128, 14, 14, 72), (2, 7, 7, 40), (1, 200, 3, 264),
)  # fmt: skip
EVERY = [(d, *kind) for d in ("float16", "bfloat16") for kind in KINDS]
EVERY += [("float32", *KINDS[i]) for i in (0, 2, 4)]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kinds = dict.fromkeys([*EVERY, *((d, a, r, end) for d, _, a, r, end in CASES)])
    made = [call for kind in kinds for call in calls(*kind)]
    assert all(map(check, made))
    return load(made, tmp_path_factory.mktemp("gates"))


@pytest.mark.parametrize(("dtype", "activation", "residual", "last"), EVERY)
def test_in_the_place_of_an_operand_the_same_bits(
    functions: Any, dtype: str, activation: str, residual: bool, last: str
) -> None:
    for shape in ((64, 28, 28, 512), (3, 9, 5, 13), (2, 7, 7, 40)):
        t = run(functions, dtype, shape, activation, residual, last)
        for call in calls(dtype, activation, residual, last):
            assert not other_bits_in_place(functions, call, taken(call, t))


@pytest.mark.parametrize(("dtype", "activation", "residual", "last"), EVERY)
def test_shapes(functions: Any, dtype: str, activation: str, residual: bool, last: str) -> None:
    lines = []
    for shape in SHAPES:
        if dtype == "float32" and shape[0] == 128:
            continue  # float64 of it would not fit beside others
        t = run(functions, dtype, shape, activation, residual, last)
        lines += wrong(t, dtype, activation, last)
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(("dtype", "shape", "activation", "residual", "last"), CASES)
def test_cases(
    functions: Any, dtype: str, shape: Any, activation: str, residual: bool, last: str
) -> None:
    t = run(functions, dtype, shape, activation, residual, last)
    assert not wrong(t, dtype, activation, last)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_twice_the_same_bits_and_with_a_small_workspace(functions: Any, dtype: str) -> None:
    for shape in ((8, 112, 112, 96), (32, 7, 7, 2048)):
        first, again = (run(functions, dtype, shape, "silu", False, "") for _ in range(2))
        for name, value in first.items():
            assert torch.equal(value.view(torch.uint8), again[name].view(torch.uint8)), name
        least = 12 * shape[0] * shape[-1]
        assert workspace_bytes(shape[-1], dtype, shape[0]) >= least
        block = torch.empty(least, device="cuda", dtype=torch.uint8)
        small = run(functions, dtype, shape, "silu", False, "", block)
        assert not wrong(small, dtype, "silu", "")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_image(functions: Any, value: float) -> None:
    t = run(functions, "float16", (6, 9, 9, 40), "silu", False, "")
    excite = calls("float16", "silu", False, "")[1]
    t["gate"][3, 0, 0, 7] = value
    functions[excite.symbol](*(t[n] for n in (*excite.operands, *excite.results)))
    bad = ~torch.isfinite(t["y"])
    assert bool(bad[3, :, :, 7].all())
    assert int(bad.sum()) == 81


def test_calls_are_checked(functions: Any) -> None:
    t = run(functions, "float32", (6, 4, 2, 12), "silu", False, "")
    excite = calls("float32", "silu", False, "")[1]
    t["gate"] = t["gate"][:5].contiguous()
    with pytest.raises(ValueError, match="gate must have 1 for each of 6 images and 12 channels"):
        functions[excite.symbol](*(t[n] for n in (*excite.operands, *excite.results)))
