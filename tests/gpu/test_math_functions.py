"""Element-wise functions on the device: none is approximate, with NVRTC nor with nvcc."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

import byoc_cudnn
from relay_wgrad.training.cuda_tools import cuda_compiler, has_nvrtc
from tests.support.math_functions import module, wrong

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_functions(dtype: str, compiler: str, monkeypatch: Any) -> None:
    if compiler == "nvrtc" and not has_nvrtc():
        pytest.skip("needs NVRTC's bindings")
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    with cuda_compiler():
        machine = byoc_cudnn.build(module(dtype)).virtual_machine(tvm.cuda(0))
    assert wrong(dtype, machine, tvm.cuda(0)) == {}
