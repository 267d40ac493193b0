"""The negative log likelihood as CUDA's pipeline legalizes it, run on the CPU, beside PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from relay_wgrad.pipeline.fused_kernels import legalize_ops
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")

TARGET = tvm.target.Target("cuda", host="llvm")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(9, 5), (3, 5, 2, 2)])
def test_nll_loss(shape: tuple[int, ...], reduction: str) -> None:
    labels_shape = (shape[0], *shape[2:])
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    labels = relax.Var("labels", relax.TensorType(labels_shape, "int64"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, labels]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.nn.nll_loss(x, labels, reduction=reduction))
        bb.emit_func_output(out)
    with TARGET:
        mod = legalize_ops()(bb.get())
    # One sum a kernel: for two of them TVM's schedules have one thread.
    assert len(mod.functions_items()) == (4 if reduction == "sum" else 5)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape, "float32")
    given = rng.integers(0, shape[1], labels_shape)
    given.flat[1] = -100
    vm = virtual_machine(mod)
    got = vm["main"](tvm.runtime.tensor(values), tvm.runtime.tensor(given)).numpy()
    want = torch.nn.functional.nll_loss(
        torch.tensor(values).double(), torch.tensor(given), reduction=reduction
    )
    assert abs(float(got) - float(want)) < 1e-5
