"""ReLU's masks before gradients that move data: the same bits, on what is smaller or whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad
from relay_wgrad.transform.mask_order import masks_early
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")
op, nn = relax.op, relax.op.nn
WINDOW = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1)}


def step(loss: Any) -> tvm.IRModule:
    """The gradient of sum(loss(relu(x)) z) by x."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 8, 8), "float32"))
    z = relax.Var("z", relax.TensorType((2, 3, 4, 4), "float32"))
    with bb.function("main", [x, z]):
        with bb.dataflow():
            p = loss(bb.emit, bb.emit(nn.relu(x)))
            out = bb.emit_output(op.sum(bb.emit(op.multiply(p, z))))
        bb.emit_func_output(out)
    mod = grad(bb.get(), "main", wrt=["x"])
    return tvm.IRModule({ADJOINT: mod[ADJOINT]})


def pooled(emit: Any, y: Any) -> Any:
    return emit(nn.max_pool2d(y, **WINDOW))


def masked(mod: tvm.IRModule) -> list[list[int]]:
    """Shapes of selections."""
    values = [b.value for b in mod[ADJOINT].body.blocks[0].bindings]
    return [[int(n) for n in v.ty.shape.values] for v in values if op_name(v) == "relax.where"]


def gradient(mod: tvm.IRModule, *args: Any) -> Any:
    vm = virtual_machine(mod, "llvm", cpu_pipeline())
    return vm[ADJOINT](*map(tvm.runtime.tensor, args))[1][0].numpy()


@pytest.mark.longer
def test_the_same_bits_on_a_quarter() -> None:
    """Ties, windows without a positive pixel, NaN and infinities among them; as PyTorch's."""
    before = step(pooled)
    after = masks_early(before, ADJOINT)
    relax.analysis.well_formed(after)
    assert (masked(before), masked(after)) == ([[2, 3, 8, 8]], [[2, 3, 4, 4]])
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 3, (2, 3, 8, 8)).astype("float32")
    x[0, 0, :4, :4] = -1
    x[0, 1, 2, 2], x[0, 1, 5, 5], x[1, 2, 0, 0], x[1, 1, 7, 7] = np.nan, np.inf, -np.inf, -0.0
    z = rng.standard_normal((2, 3, 4, 4)).astype("float32")
    got, other = gradient(after, x, z), gradient(before, x, z)
    t = torch.tensor(x, requires_grad=True)
    (torch.nn.functional.max_pool2d(t.relu(), 3, 2, 1) * torch.tensor(z)).sum().backward()
    np.testing.assert_array_equal(got, other)
    np.testing.assert_allclose(got, t.grad.numpy(), rtol=1e-6)
    assert 0 < np.count_nonzero(got) < got.size


def inception(emit: Any, y: Any) -> Any:
    """Two activations, joined, then pooled."""
    other = emit(nn.relu(emit(op.sin(y))))
    joined = emit(op.concat([emit(nn.relu(emit(op.cos(y)))), other], 1))
    return emit(op.mean(pooled(emit, joined), [1], keepdims=True))


def test_a_mask_of_what_was_joined() -> None:
    """One mask before the split of its gradient, and before the pooling's at once."""
    before = step(inception)
    after = masks_early(before, ADJOINT)
    relax.analysis.well_formed(after)
    assert masked(before) == [[2, 3, 8, 8]] * 3
    assert masked(after) == [[2, 6, 4, 4], [2, 3, 8, 8]]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 8, 8)).astype("float32") * 2
    x[0, 0, 1, 1] = np.nan
    z = rng.standard_normal((2, 3, 4, 4)).astype("float32")
    np.testing.assert_array_equal(gradient(after, x, z), gradient(before, x, z))


@pytest.mark.share(3)
@pytest.mark.parametrize("change", [
    lambda e, a, b: e(op.concat([b, a], 1)),  # another order
    lambda e, a, b: e(op.concat([a, e(op.exp(b))], 1)),  # a part that is no ReLU
    lambda e, a, b: e(op.concat([a, e(op.multiply(b, b))], 1)),
    lambda e, a, b: e(op.add(e(op.concat([a, b], 1)), e(op.concat([b, b], 1)))),
])  # fmt: skip
def test_parts_that_are_not_all_masked(change: Any) -> None:
    """The numbers stay, whatever is rewritten."""

    def loss(emit: Any, y: Any) -> Any:
        a, b = (emit(nn.relu(emit(f(y)))) for f in (op.sin, op.cos))
        return emit(op.mean(pooled(emit, change(emit, a, b)), [1], keepdims=True))

    before = step(loss)
    after = masks_early(before, ADJOINT)
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((2, 3, n, n)).astype("float32") * 2 for n in (8, 4))
    np.testing.assert_array_equal(gradient(after, x, z), gradient(before, x, z))


@pytest.mark.parametrize("loss", [
    # something else needs the gradient at ReLU's result: it is a sum
    lambda e, y: e(op.add(pooled(e, y), e(op.nn.avg_pool2d(y, **WINDOW)))),
    # another pooling's result is not what the mask asks for
    lambda e, y: pooled(e, e(op.sin(y))),
])  # fmt: skip
def test_other_masks_stay(loss: Any) -> None:
    mod = step(loss)
    tvm.ir.assert_structural_equal(masks_early(mod, ADJOINT), mod)
    assert masked(mod) == [[2, 3, 8, 8]]


def test_a_function_of_several_blocks_stays() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with bb.function(ADJOINT, [x]):
        bb.emit_func_output(bb.emit(nn.relu(x)))
    mod = bb.get()
    assert masks_early(mod, ADJOINT) is mod
