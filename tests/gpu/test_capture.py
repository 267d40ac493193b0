"""A function's work as one CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.training.capture import Captured
from relay_wgrad.training.cuda_tools import cuda_runtime
from relay_wgrad.transform import ConvertLayout, grad
from tests.support.gpu.runner import choose_compiler

pytestmark = pytest.mark.gpu
SHAPES = ((4, 8, 12, 12), (16, 8, 3, 3), (8, 16, 3, 3))


def module() -> tvm.IRModule:
    x, w1, w2 = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in zip(("x", "w1", "w2"), SHAPES, strict=True)
    )
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w1, w2]):
        with bb.dataflow():
            hidden = bb.emit(relax.op.nn.relu(bb.emit(relax.op.nn.conv2d(x, w1, padding=1))))
            y = bb.emit(relax.op.add(bb.emit(relax.op.nn.conv2d(hidden, w2, padding=1)), x))
            loss = bb.emit_output(relax.op.sum(bb.emit(relax.op.multiply(y, y))))
        bb.emit_func_output(loss)
    out = grad(bb.get(), "main", wrt=["x", "w1", "w2"])
    del out["main"]
    return ConvertLayout("NHWC", functions=["main_adjoint"], params="keep")(out)


def numbers(results: Any) -> list[np.ndarray]:
    loss, gradients = results
    return [np.array(t.numpy()) for t in (loss, *gradients)]


@pytest.mark.parametrize("offloaded", [True, False])
def test_replays_are_calls(offloaded: bool, registered: None) -> None:
    choose_compiler()
    given = byoc_cudnn.partition_for_cudnn(module())[0] if offloaded else module()
    library = byoc_cudnn.build(given, pipeline=cuda_pipeline(keep_memory=True))
    device, rng = tvm.cuda(0), np.random.default_rng(0)
    machine, other = (library.virtual_machine(device) for _ in range(2))
    args = [
        tvm.runtime.tensor(rng.standard_normal(shape).astype("float32"), device) for shape in SHAPES
    ]
    captured = Captured(cuda_runtime(), machine, "main_adjoint", args, device)
    for _ in range(3):
        want = numbers(other["main_adjoint"](*args))
        results = captured.replay()
        device.sync()
        for got, exact in zip(numbers(results), want, strict=True):
            np.testing.assert_array_equal(got, exact)
        # What others take of the pool is not the graph's; arguments are read where they are.
        taken = [tvm.runtime.tensor(np.full(n, np.nan, "float32"), device) for n in (64, 9216)]
        for tensor in args:
            tensor.copyfrom(rng.standard_normal(tensor.shape).astype("float32"))
        del taken


def test_what_a_graph_cannot_hold(registered: None) -> None:
    """The error says so, and the device goes on."""
    choose_compiler()
    device = tvm.cuda(0)
    tensor = tvm.runtime.tensor(np.ones(4, "float32"), device)

    def takes_memory(x: Any) -> Any:
        return tvm.runtime.empty((1 << 20,), "float32", device)

    for function in (lambda x: x.numpy(), takes_memory):
        with pytest.raises(Exception, match="captur"):
            Captured(cuda_runtime(), {"f": function}, "f", [tensor], device)  # type: ignore[arg-type]
    assert tensor.numpy().sum() == 4
    assert relay_wgrad.is_registered()
