"""Element-wise functions are right where approximations are not, in all types."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax

import legalize.cpu
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.cuda import cuda_pipeline
from tests.support.compiled import virtual_machine
from tests.support.cuda_source import cuda_source
from tests.support.math_functions import module, wrong


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_on_the_cpu(dtype: str) -> None:
    target = legalize.cpu.host_target()
    executable = virtual_machine(module(dtype), target, cpu_pipeline())
    assert wrong(dtype, executable, tvm.cpu()) == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cuda_is_asked_for_what_it_has(dtype: str) -> None:
    """TVM called hsinh, hcosh and hnearbyint, which nobody defines, and had no asin."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    made = tvm.compile(module(dtype), target=target, relax_pipeline=cuda_pipeline())
    source = cuda_source(made.mod)
    kernels = source[source.index("__launch_bounds__") :]
    assert {"asinf", "sinhf", "coshf", "nearbyintf"} <= set(re.findall(r"\b\w+(?=\()", kernels))
    assert not re.search(r"\bh(sinh|cosh|nearbyint)\(", kernels)


@pytest.mark.parametrize("name", ["tanh", "atanh", "sigmoid", "sinh"])
def test_of_itself_many_times(name: str) -> None:
    """Fused, it is one expression, which must not have an argument twice to the power of twelve."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 33), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for _ in range(12):
                y = bb.emit(getattr(relax.op, name)(relax.op.multiply(y, relax.const(0.5))))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    target = legalize.cpu.host_target()
    machine = virtual_machine(bb.get(), target, cpu_pipeline())
    given = np.random.default_rng(0).standard_normal((4, 33)).clip(-1.9, 1.9).astype("float32")
    want = given.astype("float64")
    functions = {"sigmoid": lambda v: 1 / (1 + np.exp(-v)), "atanh": np.arctanh}
    for _ in range(12):
        want = functions.get(name, getattr(np, name, None))(0.5 * want)
    got = machine["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)
