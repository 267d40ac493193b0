"""Backward of max pooling against PyTorch, and its own transpose for the second order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

pytestmark = pytest.mark.usefixtures("registered")

# (size, kernel, stride, padding top/left/bottom/right, dilation); the second is one that upstream's
# kernel gets wrong: outputs * stride < kernel.
CASES = [
    ((8, 9), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1)),
    ((6, 3), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((9, 7), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((7, 7), (7, 7), (1, 1), (0, 0, 0, 0), (1, 1)),
    ((10, 11), (3, 2), (1, 3), (1, 0, 1, 1), (1, 1)),
    ((11, 10), (3, 3), (2, 1), (0, 1, 1, 0), (2, 2)),
    ((5, 5), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pool2d_backward(case: tuple[tuple[int, ...], ...], layout: str) -> None:
    size, kernel, strides, padding, dilation = case
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.standard_normal((2, 3, *size)), requires_grad=True)
    top, left, bottom, right = padding
    padded = F.pad(x, (left, right, top, bottom), value=-1e30)
    y = F.max_pool2d(padded, kernel, strides, dilation=dilation)
    g = torch.tensor(rng.standard_normal(y.shape))
    want = torch.autograd.grad(y, x, g)[0].numpy()
    axes = [0, 1, 2, 3] if layout == "NCHW" else [0, 2, 3, 1]
    arrays = [a.transpose(axes).copy() for a in (g.numpy(), x.detach().numpy())]

    variables = [
        relax.Var(n, relax.TensorType(a.shape, "float64"))
        for n, a in zip("gx", arrays, strict=True)
    ]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            out = bb.emit_output(
                relax.op.grad.max_pool2d_backward(
                    *variables, kernel, strides, padding, dilation, False, False, layout
                )
            )
        bb.emit_func_output(out)
    vm = relax.VirtualMachine(tvm.compile(bb.get(), target="llvm"), tvm.cpu())
    got = vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()
    np.testing.assert_allclose(got, want.transpose(axes), rtol=1e-14, atol=1e-14)


def test_equal_maxima_go_to_the_first() -> None:
    x = np.ones((1, 1, 4, 4))
    g = np.arange(1.0, 5.0).reshape(1, 1, 2, 2)
    bb = relax.BlockBuilder()
    variables = [
        relax.Var(n, relax.TensorType(a.shape, "float64")) for n, a in (("g", g), ("x", x))
    ]
    with bb.function("main", variables):
        with bb.dataflow():
            out = bb.emit_output(relax.op.grad.max_pool2d_backward(*variables, (2, 2), (2, 2)))
        bb.emit_func_output(out)
    vm = relax.VirtualMachine(tvm.compile(bb.get(), target="llvm"), tvm.cpu())
    got = vm["main"](tvm.runtime.tensor(g), tvm.runtime.tensor(x)).numpy()
    want = np.zeros((1, 1, 4, 4))
    want[0, 0, ::2, ::2] = g[0, 0]
    np.testing.assert_array_equal(got, want)
