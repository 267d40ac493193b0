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

from tests.support.compiled import virtual_machine
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
    ((4, 6), (1, 2), (1, 1), (1, 2, 1, 2), (1, 1)),  # windows of padding alone
    ((18, 17), (16, 16), (1, 1), (0, 0, 0, 0), (1, 1)),  # more taps than a byte tells
]


def run(
    arrays: Sequence[Array], dtype: str, *attributes: Any, size: Any = None, anywhere: bool = False
) -> Array:
    """The result of the kernels for CPUs, or of the expression that every other device has."""
    mod = backward(arrays, dtype, *attributes, size=size)
    if anywhere:
        mod = relax.transform.LegalizeOps()(mod)  # for no target
    vm = virtual_machine(mod)
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


@pytest.mark.share(4)
@pytest.mark.parametrize("how", ["static", "symbolic", "anywhere"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pool2d_backward(case: tuple[tuple[int, ...], ...], layout: str, how: str) -> None:
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
    n = tvm.tirx.Var("n", "int64") if how == "symbolic" else None
    attributes = (kernel, strides, padding, dilation, False, False, layout)
    got = run(arrays, "float64", *attributes, size=n, anywhere=how == "anywhere")
    np.testing.assert_allclose(got, want.transpose(axes), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_dtypes(dtype: str, layout: str) -> None:
    arrays, want, attributes = halves(dtype, layout, 5, 4)
    np.testing.assert_array_equal(run(arrays, dtype, *attributes).astype("float64"), want)


@pytest.mark.parametrize("anywhere", [False, True])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_equal_maxima_go_to_the_first(layout: str, anywhere: bool) -> None:
    x = np.ones((1, 1, 4, 4))
    g = np.arange(1.0, 5.0).reshape(1, 1, 2, 2)
    arrays = [a.transpose(AXES[layout]) for a in (g, x)]
    attributes = ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False, False, layout)
    got = run(arrays, "float64", *attributes, anywhere=anywhere)
    want = np.zeros((1, 1, 4, 4))
    want[0, 0, ::2, ::2] = g[0, 0]
    np.testing.assert_array_equal(got, want.transpose(AXES[layout]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("layout", "channels"), [("NCHW", 2), ("NHWC", 1), ("NHWC", 151)])
def test_ties_nan_and_infinity_are_pixels_as_others(layout: str, channels: int, dtype: str) -> None:
    """The first of equal ones, of NaN the last, as in PyTorch; also where all are infinite.  In
    vectors of neighbours, the last of which overlap, and beside them."""
    rng = np.random.default_rng(3)
    values = np.array([-np.inf, -1.0, -0.0, 0.0, 2.0, np.nan])
    x = rng.choice(values, (2, channels, 7, 39), p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    data = torch.tensor(x, dtype=getattr(torch, dtype), requires_grad=True)
    y = F.max_pool2d(data, (2, 3), (2, 1), (0, 1))
    g = torch.tensor(rng.integers(-8, 9, y.shape), dtype=data.dtype)
    want = torch.autograd.grad(y, data, g)[0].numpy().transpose(AXES[layout])
    arrays = [a.numpy().transpose(AXES[layout]).copy() for a in (g, data.detach())]
    attributes = ((2, 3), (2, 1), (0, 1, 0, 1), (1, 1), False, False, layout)
    np.testing.assert_array_equal(run(arrays, dtype, *attributes), want)


# (kernel, stride, padding) of pools whose last windows run over the edge of 8x7 pixels.
OVER = [(3, 2, 0), (3, 2, 1), (2, 2, 0), (4, 3, 1)]


@pytest.mark.share(3)
@pytest.mark.parametrize("how", ["static", "symbolic"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("window", OVER, ids=str)
def test_means_over_the_edge_are_of_what_is_inside(
    window: tuple[int, int, int], layout: str, how: str
) -> None:
    """With `ceil_mode`, padding counted: upstream's gradient divides by the whole window."""
    rng = np.random.default_rng(2)
    x = torch.tensor(rng.standard_normal((2, 3, 8, 7)), requires_grad=True)
    y = F.avg_pool2d(x, *window, ceil_mode=True)
    g = torch.tensor(rng.standard_normal(y.shape))
    want = torch.autograd.grad(y, x, g)[0].numpy()
    axes = AXES[layout]
    arrays = [a.transpose(axes).copy() for a in (g.numpy(), x.detach().numpy())]
    types = [list(array.shape) for array in arrays]
    if how == "symbolic":
        for sizes, mark in zip(types, "gx", strict=True):
            for axis in "HW":
                sizes[layout.index(axis)] = tvm.tirx.Var(f"{mark}{axis}", "int64")
    bb = relax.BlockBuilder()
    params = [
        relax.Var(n, relax.TensorType(t, "float64")) for n, t in zip("gx", types, strict=True)
    ]
    kernel, stride, padding = window
    with bb.function("main", params):
        made = bb.emit(
            relax.op.grad.avg_pool2d_backward(
                *params, pool_size=(kernel, kernel), strides=(stride, stride),
                padding=(padding,) * 4, ceil_mode=True, count_include_pad=True, layout=layout,
            )
        )  # fmt: skip
        bb.emit_func_output(made)
    vm = virtual_machine(bb.get())
    got = vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()
    np.testing.assert_allclose(got, want.transpose(axes), rtol=1e-12)
