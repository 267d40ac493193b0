"""Kernels that make a tensor and sum it over pixels, on a device."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.pipeline.cuda import cuda_pipeline
from tests.support.cuda_source import cuda_source
from tests.support.gpu.runner import choose_compiler
from tests.support.made_sums import several

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

PIXELS, IMAGES = [0, 1, 2], [1, 2]
CASES = [
    ((64, 14, 14, 384), "float16", PIXELS, False), ((64, 14, 14, 1536), "float16", PIXELS, False),
    ((16, 28, 28, 96), "bfloat16", PIXELS, True), ((64, 7, 7, 1536), "float16", IMAGES, True),
    ((9, 31, 30, 136), "float16", IMAGES, False), ((8, 28, 28, 64), "float32", PIXELS, False),
]  # fmt: skip


def test_as_numpy_has_them() -> None:
    """Twice with the same bits; sums are of what is stored."""
    choose_compiler()
    mod, given = several(CASES)
    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    built = tvm.compile(mod, target, relax_pipeline=cuda_pipeline())
    assert cuda_source(built.mod).count("_and_sum_kernel(") >= len(CASES)
    vm = relax.VirtualMachine(built, device)
    args = [tvm.runtime.tensor(a, device) for a in given]
    first, second = ([t.numpy() for t in vm["main"](*args)] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    for i, (_, dtype, axes, of_product) in enumerate(CASES):
        g, x, s = (a.astype("float64") for a in given[3 * i : 3 * i + 3])
        made, total = (a.astype("float64") for a in first[2 * i : 2 * i + 2])
        want = g / (1 + np.exp(-x)) * s
        limit = {"float16": 4e-4, "bfloat16": 3e-3, "float32": 1e-6}[dtype]
        assert np.linalg.norm(made - want) <= limit * np.linalg.norm(want), i
        added = made * x if of_product else made
        apart = total - added.sum(tuple(axes), keepdims=True)
        assert np.abs(apart).max() <= 1e-6 * np.abs(added).sum(tuple(axes)).max(), i
