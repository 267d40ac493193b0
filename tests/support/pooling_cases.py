"""Max pooling's gradient as the tests on CPUs and GPUs build it, and PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from relay_wgrad.dtypes import numpy_dtype
from tests.support.built import built

Array = np.ndarray[Any, Any]
AXES = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1)}  # from NCHW


def backward(
    arrays: Sequence[Array], dtype: str, *attributes: Any, size: Any = None
) -> tvm.IRModule:
    """The gradient of (gradient, data), with `size` in place of the number of images if given."""
    shapes = [(a.shape[0] if size is None else size, *a.shape[1:]) for a in arrays]
    variables = [
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape in zip("gx", shapes, strict=True)
    ]
    made = relax.op.grad.max_pool2d_backward(*variables, *attributes)
    return built(variables, lambda emit: made)


def halves(dtype: str, layout: str, channels: int, size: int) -> tuple[list[Array], Array, Any]:
    """(gradient and data, PyTorch's result, attributes) of 2 x 2 windows, which do not overlap: no
    sums, so nothing is rounded."""
    rng = np.random.default_rng(2)
    x, g = (
        rng.standard_normal((2, channels, n, n)).astype(numpy_dtype(dtype))
        for n in (2 * size, size)
    )
    data = torch.tensor(x.astype("float64"), requires_grad=True)
    want = torch.autograd.grad(F.max_pool2d(data, 2), data, torch.tensor(g.astype("float64")))[0]
    arrays = [np.ascontiguousarray(a.transpose(AXES[layout])) for a in (g, x)]
    attributes = ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False, False, layout)
    return arrays, want.numpy().transpose(AXES[layout]), attributes
