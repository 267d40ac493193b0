"""The gradient of max pooling on a device, against PyTorch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from relay_wgrad.transform.cuda_pipeline import cuda_pipeline

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_max_pool2d_backward(dtype: str, layout: str) -> None:
    """Windows that do not overlap: no sums, so nothing is rounded."""
    rng = np.random.default_rng(2)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x, g = (rng.standard_normal((2, 33, size, size)).astype(kind) for size in (40, 20))
    data = torch.tensor(x.astype("float64"), requires_grad=True)
    want = torch.autograd.grad(F.max_pool2d(data, 2), data, torch.tensor(g.astype("float64")))[0]
    axes = [0, 1, 2, 3] if layout == "NCHW" else [0, 2, 3, 1]
    arrays = [np.ascontiguousarray(a.transpose(axes)) for a in (g, x)]
    variables = [
        relax.Var(name, relax.TensorType(a.shape, dtype))
        for name, a in zip("gx", arrays, strict=True)
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            out = bb.emit_output(
                relax.op.grad.max_pool2d_backward(
                    *variables, (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False, False, layout
                )
            )
        bb.emit_func_output(out)
    device = tvm.cuda(0)
    executable = tvm.compile(
        bb.get(), target=tvm.target.Target.from_device(device),
        relax_pipeline=cuda_pipeline(),
    )  # fmt: skip
    vm = relax.VirtualMachine(executable, device)
    got = vm["main"](*[tvm.runtime.tensor(a, device) for a in arrays]).numpy().astype("float64")
    np.testing.assert_array_equal(got, want.numpy().transpose(axes))
