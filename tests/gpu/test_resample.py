"""Resampling and its gradient on a device, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.transform import grad
from tests.support.gpu.runner import choose_compiler
from tests.support.resample_cases import module

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

SHAPE = (4, 30, 37, 64)
BOUND = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}


@pytest.mark.parametrize("terms", [1, 3, 30])
@pytest.mark.parametrize("dtype", BOUND)
def test_value_and_gradient(dtype: str, terms: int) -> None:
    choose_compiler()
    rng = np.random.default_rng(terms)
    matrix = np.zeros((53, SHAPE[1]))
    for row in matrix:
        row[rng.choice(SHAPE[1], terms, replace=False)] = rng.standard_normal(terms)
    mod = grad(module(matrix, 1, SHAPE, dtype), "main", wrt=["x"], target_index=0)
    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    built = tvm.compile(mod, target=target, relax_pipeline=cuda_pipeline())
    given = (rng.standard_normal(SHAPE) / 16).astype(dtype)
    (_, y), (dx,) = relax.VirtualMachine(built, device)["main_adjoint"](
        tvm.runtime.tensor(given, device)
    )
    wide = matrix if dtype == "float64" else matrix.astype("float32").astype("float64")
    want = np.einsum("ph,nhwc->npwc", wide, given.astype("float64"))
    back = np.einsum("ph,npwc->nhwc", 2 * wide, want)
    for got, expected in ((y, want), (dx, back)):
        error = np.linalg.norm(got.numpy().astype("float64") - expected)
        assert error <= BOUND[dtype] * np.linalg.norm(expected), (dtype, terms)
