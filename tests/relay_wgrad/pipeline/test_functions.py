"""Element-wise functions are right where approximations are not, in all types."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import relax

import legalize.cpu
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.cuda import cuda_pipeline
from tests.support.cuda_source import cuda_source
from tests.support.functions import module, wrong


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_on_the_cpu(dtype: str) -> None:
    target = legalize.cpu.host_target()
    executable = tvm.compile(module(dtype), target=target, relax_pipeline=cpu_pipeline())
    assert wrong(dtype, relax.VirtualMachine(executable, tvm.cpu()), tvm.cpu()) == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cuda_is_asked_for_what_it_has(dtype: str) -> None:
    """TVM called hsinh, hcosh and hnearbyint, which nobody defines, and had no asin."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    made = tvm.compile(module(dtype), target=target, relax_pipeline=cuda_pipeline())
    source = cuda_source(made.mod)
    kernels = source[source.index("__launch_bounds__") :]
    assert {"asinf", "sinhf", "coshf", "nearbyintf"} <= set(re.findall(r"\b\w+(?=\()", kernels))
    assert not re.search(r"\bh(sinh|cosh|nearbyint)\(", kernels)
