"""What a compiled function takes of the device: its plan, and one set of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import byoc_cudnn
from relay_wgrad.pipeline.arena import NAME
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.storages import static_bytes
from relay_wgrad.training.cuda_tools import cuda_runtime
from tests.support.gpu.exclusive import EXCLUSIVE
from tests.support.gpu.runner import choose_compiler

pytestmark = [pytest.mark.gpu, EXCLUSIVE]
ROWS, COLUMNS = 256, 1 << 16
ONE = 4 * ROWS * COLUMNS  # bytes: 64 MiB


def module() -> tvm.IRModule:
    """Two tensors of four times x's size, then seven of its size at once."""
    x = relax.Var("x", relax.TensorType((ROWS, COLUMNS), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.softmax(x))
            wide = bb.emit(relax.op.nn.softmax(bb.emit(relax.op.concat([y] * 4, 0))))
            total = bb.emit(relax.op.sum(wide, 0, keepdims=True))
            parts = [y]
            for _ in range(6):
                parts.append(bb.emit(relax.op.nn.softmax(parts[-1])))
            whole = bb.emit(relax.op.concat(parts, 1))
            summed = bb.emit(relax.op.sum(whole, 1, keepdims=True))
            out = [bb.emit_output(relax.op.multiply(t, summed)) for t in (total, y)]
        bb.emit_func_output(relax.Tuple(out))
    return bb.get()


@pytest.mark.parametrize("keep", [True, False])
def test_a_function_takes_its_plan_and_its_results(keep: bool, registered: None) -> None:
    choose_compiler()
    device, runtime = tvm.cuda(0), cuda_runtime()
    planned: list[int] = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
            if str(info.name) == NAME:
                blocks = (block for _, f in mod.functions_items() for block in _blocks(f))
                sizes = (static_bytes(b.value) or 0 for block in blocks for b in block.bindings)
                planned.append(sum(sizes))

    with tvm.transform.PassContext(instruments=[Watch()]):
        library = byoc_cudnn.build(module(), pipeline=cuda_pipeline(keep_memory=keep))
    machine = library.virtual_machine(device)
    given = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), "float32")
    x = tvm.runtime.tensor(given, device)
    tvm.get_global_func("vm.builtin.memory_manager.clear")()  # what earlier tests gave back to TVM
    before = runtime.memory()[0]
    found = machine["main"](x)
    first = [t.data_ptr() for t in found]
    values = [t.numpy() for t in found]
    del found
    for _ in range(3):
        assert sorted(t.data_ptr() for t in machine["main"](x)) == sorted(first)
    device.sync()
    taken = before - runtime.memory()[0]
    assert 0 < planned[-1] + 2 * ONE <= taken + ONE
    assert taken <= planned[-1] + 2 * ONE + ONE  # and the kernels' code

    # In float64: half a million numbers summed one by one in float32 lose 4e-4 of their sum.
    for got, want in zip(values, _wanted(given.astype("float64")), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def _wanted(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = part = _softmax(x)
    # The same rows four times: so is their sum.
    total = 4 * _softmax(y).sum(0, keepdims=True)
    summed = y.sum(1, keepdims=True)
    for _ in range(6):
        part = _softmax(part)
        summed += part.sum(1, keepdims=True)
    return total * summed, y * summed


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def _blocks(func: Any) -> list[Any]:
    return list(func.body.blocks) if isinstance(func, relax.Function) else []
