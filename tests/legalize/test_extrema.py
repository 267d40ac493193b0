"""max, min, argmax and argmin of special values, in TVM's pipeline and in ours: NumPy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.pipeline.cpu import cpu_pipeline
from tests.support.compiled import virtual_machine
from tests.support.extrema import ROWS, WHOLE, wrong
from tests.support.partition_cases import module

pytestmark = pytest.mark.usefixtures("registered")

DTYPES = ("float16", "bfloat16", "float32", "float64", *WHOLE)


@pytest.mark.share(5)
@pytest.mark.parametrize("pipeline", ["default", "ours"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype: str, pipeline: str) -> None:
    rows = np.array(WHOLE[dtype]) if dtype in WHOLE else ROWS
    rows = rows.astype(getattr(ml_dtypes, dtype, dtype))
    passes = cpu_pipeline() if pipeline == "ours" else "default"
    assert not wrong(rows, dtype, "llvm", passes, tvm.cpu())


@pytest.mark.parametrize("pipeline", ["default", "ours"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_of_a_product(name: str, dtype: str, pipeline: str) -> None:
    """Which is computed in the search's kernel, in float32 where it is a bfloat16."""

    def body(emit: Any, x: Any) -> list[Any]:
        product = emit(relax.op.multiply(x, relax.const(-0.5, dtype)))
        return [emit(getattr(relax.op, name)(product, axis)) for axis in (0, 1)]

    given = np.random.default_rng(0).permutation(64 * 37).reshape(64, 37) - 1000
    given = (given // 16).astype(getattr(ml_dtypes, dtype, dtype))
    passes = cpu_pipeline() if pipeline == "ours" else "default"
    made = virtual_machine(module({"x": (given.shape, dtype)}, body), "llvm", passes)
    wide = given.astype("float32") * np.float32(-0.5)
    for axis, got in enumerate(made["main"](tvm.runtime.tensor(given))):
        np.testing.assert_array_equal(got.numpy().astype("float32"), getattr(wide, name)(axis))
