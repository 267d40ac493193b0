"""Backward of max pooling against PyTorch, and its own transpose for the second order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from tests.support.pooling_cases import AXES, Array, backward, halves

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


def run(arrays: Sequence[Array], dtype: str, *attributes: Any, size: Any = None) -> Array:
    """The result of the kernel for this CPU."""
    mod = backward(arrays, dtype, *attributes, size=size)
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pool2d_backward(
    case: tuple[tuple[int, ...], ...], layout: str, symbolic: bool
) -> None:
    size, kernel, strides, padding, dilation = case
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.standard_normal((2, 3, *size)), requires_grad=True)
    top, left, bottom, right = padding
    padded = F.pad(x, (left, right, top, bottom), value=-1e30)
    y = F.max_pool2d(padded, kernel, strides, dilation=dilation)
    g = torch.tensor(rng.standard_normal(y.shape))
    want = torch.autograd.grad(y, x, g)[0].numpy()
    axes = AXES[layout]
    arrays = [a.transpose(axes).copy() for a in (g.numpy(), x.detach().numpy())]
    n = tvm.tirx.Var("n", "int64") if symbolic else None
    attributes = (kernel, strides, padding, dilation, False, False, layout)
    got = run(arrays, "float64", *attributes, size=n)
    np.testing.assert_allclose(got, want.transpose(axes), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_dtypes(dtype: str, layout: str) -> None:
    arrays, want, attributes = halves(dtype, layout, 5, 4)
    np.testing.assert_array_equal(run(arrays, dtype, *attributes).astype("float64"), want)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])  # each has a kernel of its own
def test_equal_maxima_go_to_the_first(layout: str) -> None:
    x = np.ones((1, 1, 4, 4))
    g = np.arange(1.0, 5.0).reshape(1, 1, 2, 2)
    arrays = [a.transpose(AXES[layout]) for a in (g, x)]
    attributes = ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False, False, layout)
    got = run(arrays, "float64", *attributes)
    want = np.zeros((1, 1, 4, 4))
    want[0, 0, ::2, ::2] = g[0, 0]
    np.testing.assert_array_equal(got, want.transpose(AXES[layout]))


def test_nan_and_infinity_are_pixels_as_others() -> None:
    """NaN is taken as PyTorch takes it; where all are minus infinity, the first."""
    x = np.array([[[[1.0, np.nan, 3.0, 2.0], [0.0, 2.0, 1.0, 0.0]]]])
    x = np.concatenate([x, np.full_like(x, -np.inf)], axis=1)
    g = np.array([[[[5.0, 7.0]], [[2.0, 3.0]]]])
    data = torch.tensor(x, requires_grad=True)
    want = torch.autograd.grad(F.max_pool2d(data, 2), data, torch.tensor(g))[0].numpy()
    np.testing.assert_array_equal(run((g, x), "float64", (2, 2), (2, 2)), want)
