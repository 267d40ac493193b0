"""The gradient of upstream's `image.grid_sample`, which is TOPI's kernel, against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from relay_wgrad.transform import grad
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

IMAGES, VOLUMES = ((2, 3, 5, 6), (2, 2, 4, 7)), ((2, 2, 3, 4, 5), (2, 3, 4, 2, 7))


def module(shapes: Any, method: str, border: str, corners: bool) -> tvm.IRModule:
    """The sum of squares of what is read."""
    bb, layout = relax.BlockBuilder(), "NCHW" if len(shapes[0]) == 4 else "NCDHW"
    x, grid = (
        relax.Var(n, relax.TensorType(s, "float64")) for n, s in zip("xg", shapes, strict=True)
    )
    with bb.function("main", [x, grid]):
        with bb.dataflow():
            args = (method, layout, border, corners)
            y = bb.emit(relax.op.image.grid_sample(x, grid, *args))
            out = bb.emit_output(relax.op.sum(bb.emit(relax.op.multiply(y, y))))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.share(3)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("shapes", [IMAGES, VOLUMES], ids=["images", "volumes"])
@pytest.mark.parametrize("border", ["zeros", "border"])
@pytest.mark.parametrize("corners", [True, False])
def test_gradient_is_pytorchs(shapes: Any, border: str, corners: bool) -> None:
    rng = np.random.default_rng(7)
    arrays = rng.standard_normal(shapes[0]), rng.uniform(-1.4, 1.4, shapes[1])
    machine = virtual_machine(grad(module(shapes, "bilinear", border, corners)), FAST)
    _, got = machine["main_adjoint"](*map(tvm.runtime.tensor, arrays))
    x, grid = (torch.tensor(array, requires_grad=True) for array in arrays)
    y = F.grid_sample(x, grid.movedim(1, -1), "bilinear", border, corners)
    (y * y).sum().backward()
    for ours, leaf in zip(got, (x, grid), strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(ours.numpy(), leaf.grad.numpy(), 1e-10, 1e-10)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("method", "border"), [("bicubic", "zeros"), ("nearest", "zeros"), ("bilinear", "reflection")]
)
def test_what_has_no_gradient_is_refused(method: str, border: str) -> None:
    with pytest.raises(ValueError, match=f"a gradient only with .* got {method}, {border}"):
        grad(module(IMAGES, method, border, corners=True))


@pytest.mark.usefixtures("registered")
def test_open_sizes_have_no_gradient() -> None:
    n = tvm.tirx.Var("n", "int64")
    shapes = tuple((n, *shape[1:]) for shape in IMAGES)
    with pytest.raises(ValueError, match="known sizes"):
        grad(module(shapes, "bilinear", "zeros", corners=True))
