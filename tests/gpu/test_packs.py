"""Element-wise kernels, joins and sums with accesses of 16 bytes, on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.pipeline.cuda import cuda_pipeline
from tests.support.element_cases import CASES, arrays_of, op
from tests.support.gpu.runner import choose_compiler
from tests.support.partition_cases import module

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-12, "bool": 0}
N = (3, 7, 5)
JOINS: dict[str, tuple[dict[str, Any], Any]] = {
    f"{count} joined": (
        {f"x{i}": ((*N, 8 * (i % 3 + 1)), "bfloat16") for i in range(count)},
        lambda e, *x: e(op.concat(x, 3)),
    )
    for count in (2, 3, 9)
}
ALL = {**CASES, **JOINS}


def run(mod: tvm.IRModule, target: Any, pipeline: Any, arrays: list[np.ndarray]) -> list[Any]:
    device = tvm.cuda(0) if target.kind.name == "cuda" else tvm.cpu()
    vm = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline), device)
    made = vm["main"](*(tvm.runtime.tensor(a, device) for a in arrays))
    return [t.numpy() for t in (made if isinstance(made, tvm.ir.Array | list | tuple) else [made])]


def test_the_numbers() -> None:
    """Of all in one module, as a CPU has them."""
    choose_compiler()
    target = tvm.target.Target.from_device(tvm.cuda(0))
    wrong = []
    for name, (operands, body) in ALL.items():
        mod, arrays = module(operands, body), arrays_of(operands)
        (got,), (want,) = (
            run(mod, t, p, arrays)
            for t, p in ((target, cuda_pipeline()), (tvm.target.Target("llvm"), "default"))
        )
        limit = TOLERANCE["bool" if want.dtype == bool else str(mod["main"].ret_ty.dtype)]
        error = np.abs(got.astype("float64") - want.astype("float64"))
        if not np.all(error <= limit * (1 + np.abs(want.astype("float64")))):
            wrong.append(f"{name}: {error.max():.3g}")
    assert wrong == []


@pytest.mark.parametrize("images", [1, None])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(32, 28, 28, 96), (7, 13, 11, 24), (1, 2, 2, 8), (3, 9, 7, 12)])
def test_sums_over_pixels(shape: tuple[int, ...], dtype: str, images: int | None) -> None:
    """Biases' gradients, and for each image apart squeeze and excitation's: float32 sums of half
    tensors; the second run gives the same bits."""
    choose_compiler()
    kept = (images or shape[0], 1, 1, shape[3])

    def body(emit: Any, x: Any) -> Any:
        wide = emit(op.astype(x, "float32"))
        return emit(op.collapse_sum_to(wide, relax.ShapeExpr(kept)))

    mod = module({"x": (shape, dtype)}, body)
    x = np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype(dtype))
    target = tvm.target.Target.from_device(tvm.cuda(0))
    device = tvm.cuda(0)
    vm = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=cuda_pipeline()), device)
    first, second = (vm["main"](tvm.runtime.tensor(x, device)).numpy() for _ in range(2))
    assert first.tobytes() == second.tobytes()
    axes = (0, 1, 2) if images else (1, 2)
    want = x.astype("float64").sum(axes, keepdims=True)
    limit = 1e-6 * np.abs(x.astype("float64")).sum(axes).max()
    np.testing.assert_allclose(first, want, rtol=0, atol=limit)
