"""max, min, argmax and argmin of special values, in TVM's pipeline and in ours: NumPy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm

from relay_wgrad.pipeline.cpu import cpu_pipeline
from tests.support.extrema import ROWS, WHOLE, wrong

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
