"""Element-wise kernels, joins and sums with accesses of 16 bytes, on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.pipeline.cuda import cuda_pipeline
from tests.support.element_cases import ALL, op, together
from tests.support.gpu.runner import choose_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-12, "bool": 0}


def run(mod: tvm.IRModule, target: Any, pipeline: Any, arrays: list[Any], times: int = 1) -> Any:
    device = tvm.cuda(0) if target.kind.name == "cuda" else tvm.cpu()
    vm = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline), device)
    args = [tvm.runtime.tensor(a, device) for a in arrays]
    return [[t.numpy() for t in vm["main"](*args)] for _ in range(times)]


def test_the_numbers() -> None:
    """As a CPU has them."""
    choose_compiler()
    mod, arrays = together(ALL)
    target = tvm.target.Target.from_device(tvm.cuda(0))
    (got,) = run(mod, target, cuda_pipeline(), arrays)
    (want,) = run(mod, tvm.target.Target("llvm"), "default", arrays)
    wrong = []
    for name, a, b in zip(ALL, got, want, strict=True):
        limit = TOLERANCE[str(b.dtype)]
        error = np.abs(a.astype("float64") - b.astype("float64"))
        if not np.all(error <= limit * (1 + np.abs(b.astype("float64")))):
            wrong.append(f"{name}: {error.max():.3g}")
    assert wrong == []


def sums(kept: tuple[int, ...]) -> Any:
    def body(emit: Any, x: Any) -> Any:
        return emit(op.collapse_sum_to(emit(op.astype(x, "float32")), relax.ShapeExpr(kept)))

    return body


def test_sums_over_pixels() -> None:
    """Biases' gradients, and for each image apart squeeze and excitation's: float32 sums of half
    tensors; the second run gives the same bits."""
    choose_compiler()
    shapes = [(32, 28, 28, 96), (7, 13, 11, 24), (1, 2, 2, 8), (3, 9, 7, 12)]
    cases = {
        f"{dtype} {shape} {images}": ({"x": (shape, dtype)}, sums((images, 1, 1, shape[3])))
        for dtype in ("float16", "bfloat16")
        for shape in shapes
        for images in {1, shape[0]}
    }
    mod, arrays = together(cases)
    target = tvm.target.Target.from_device(tvm.cuda(0))
    first, second = run(mod, target, cuda_pipeline(), arrays, 2)
    wrong = [name for name, a, b in zip(cases, first, second, strict=True) if np.any(a != b)]
    for name, got, x in zip(cases, first, arrays, strict=True):
        wide = x.astype("float64")
        axes = (0, 1, 2) if got.shape[0] == 1 else (1, 2)
        limit = 1e-6 * np.abs(wide).sum(axes).max()
        if not np.abs(got - wide.sum(axes, keepdims=True)).max() <= limit:
            wrong.append(name)
    assert wrong == []
