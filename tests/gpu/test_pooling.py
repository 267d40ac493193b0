"""The gradient of max pooling on a device, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.pipeline.cuda import cuda_pipeline
from tests.support.pooling_cases import backward, halves

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_max_pool2d_backward(dtype: str, layout: str) -> None:
    arrays, want, attributes = halves(dtype, layout, 33, 20)
    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    mod = backward(arrays, dtype, *attributes)
    executable = tvm.compile(mod, target=target, relax_pipeline=cuda_pipeline())
    vm = relax.VirtualMachine(executable, device)
    got = vm["main"](*[tvm.runtime.tensor(a, device) for a in arrays]).numpy()
    np.testing.assert_array_equal(got.astype("float64"), want)
