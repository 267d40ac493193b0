"""`process_mean`: types, its gradient, what is refused, what runs it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from legalize.cpu import host_target
from relay_wgrad.ops.process_mean import RUNS
from relay_wgrad.training.compiled import compile_module
from relay_wgrad.transform import grad
from tests.support.built import built

pytestmark = pytest.mark.usefixtures("registered")


def test_gradient_is_the_transpose() -> None:
    """Run by doubles of the functions: of one process both are the identity."""
    calls: list[int] = []

    def stand_in(kind: int) -> None:
        def run(x: tvm.runtime.Tensor, y: tvm.runtime.Tensor) -> None:
            calls.append(kind)
            y.copyfrom(x.numpy())

        tvm_ffi.register_global_func(RUNS[kind], run, override=True)

    x = relax.Var("x", relax.TensorType((3,), "float64"))
    module = built(
        [x], lambda emit: relax.op.sum(emit(relax.op.square(emit(relax.op.nn.process_mean(x)))))
    )
    adjoint = grad(module, "main", wrt=["x"])
    for kind in RUNS:
        stand_in(kind)
    value = np.array([1.0, -2.0, 3.0])
    made = compile_module(adjoint, host_target(), function="main_adjoint")
    _, (found,) = made.vm["main_adjoint"](tvm.runtime.tensor(value))
    np.testing.assert_array_equal(found.numpy(), 2 * value)
    assert calls == [0, 1]


def test_what_is_refused() -> None:
    x = relax.Var("x", relax.TensorType((3,), "float16"))
    with pytest.raises(TypeError, match="process_mean: x must be a float32 or float64 tensor"):
        relax.BlockBuilder().normalize(relax.op.nn.process_mean(x))
    with pytest.raises(ValueError, match="process_mean: transposed must be 0 or 1, got 2"):
        relax.op.nn.process_mean(x, 2)
