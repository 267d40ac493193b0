"""The schedule rule for joined tensors: what it takes, and that its loops compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay_wgrad.pipeline.cuda_joins import Joins
from tests.support.element_cases import CUDA, function, op, run
from tests.support.schedules import on_the_host

pytestmark = pytest.mark.usefixtures("registered")
N = (2, 3, 5)


def operands(channels: list[int], dtype: str) -> dict[str, Any]:
    return {f"x{i}": ((*N, c), dtype) for i, c in enumerate(channels)}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("channels", "axis"), [([8, 16], 3), ([16, 8, 24], 3), ([8] * 12, 3), ([8] * 3, 2)]
)
def test_the_numbers(channels: list[int], axis: int, dtype: str) -> None:
    func = function(operands(channels, dtype), lambda e, *x: e(op.concat(x, axis)))
    schedule = on_the_host(Joins).apply(func, CUDA, False)
    assert "T.vectorized" in schedule.mod.script()
    arrays = [np.random.default_rng(c).standard_normal((*N, c)).astype(dtype) for c in channels]
    want = np.concatenate(arrays, axis)
    got = run(schedule.mod["main"], arrays, np.zeros_like(want))
    np.testing.assert_array_equal(got, want)


def test_joined_twice() -> None:
    """As dense blocks do it: the inner one is a part of the same kernel."""
    func = function(
        operands([8, 16, 8], "float16"),
        lambda e, x, y, z: e(op.concat([e(op.concat([x, y], 3)), z], 3)),
    )
    schedule = on_the_host(Joins).apply(func, CUDA, False)
    assert schedule is not None
    arrays = [np.random.default_rng(c).standard_normal((*N, c)).astype("float16") for c in (8, 16)]
    arrays.append(arrays[0] + 1)
    names = [str(p.name) for p in func.params]
    order = [arrays[int(n[1:])] for n in names[:-1]]
    got = run(schedule.mod["main"], order, np.zeros((*N, 32), "float16"))
    np.testing.assert_array_equal(got, np.concatenate(arrays, 3))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_bias_behind_one(dtype: str) -> None:
    """As a transposed convolution's: computed in registers, written in packs."""
    given = operands([8, 16], dtype) | {"bias": ((8,), "float32")}

    def body(e: Any, x: Any, y: Any, bias: Any) -> Any:
        return e(op.concat([e(op.add(x, e(op.astype(bias, dtype)))), y], 3))

    func = function(given, body)
    schedule = on_the_host(Joins).apply(func, CUDA, False)
    assert "T.vectorized" in schedule.mod.script()
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((*N, c)).astype(dtype) for c in (8, 16))
    bias = rng.standard_normal(8).astype("float32")
    arrays = {"x0": x, "x1": y, "bias": bias}
    order = [arrays[str(p.name)] for p in func.params[:-1]]
    got = run(schedule.mod["main"], order, np.full((*N, 24), np.nan, dtype))
    np.testing.assert_array_equal(got, np.concatenate([x + bias.astype(dtype), y], 3))


@pytest.mark.parametrize(
    ("given", "body"),
    [
        (operands([8, 12], "float16"), lambda e, *x: e(op.concat(x, 3))),
        (operands([8, 12, 4], "float16"), lambda e, *x: e(op.concat(x, 3))),
        (operands([16, 16], "bool"), lambda e, *x: e(op.concat(x, 3))),
        (operands([8, 8], "float16"), lambda e, *x: e(op.astype(e(op.concat(x, 3)), "float32"))),
        (operands([8], "float16"), lambda e, x: e(op.negative(x))),
        (operands([8], "float16"), lambda e, x: e(op.nn.pad(x, (0, 0, 0, 0, 0, 0, 8, 0)))),
    ],
)
def test_other_kernels_are_left(given: dict[str, Any], body: Any) -> None:
    assert Joins().apply(function(given, body), CUDA, False) is None
