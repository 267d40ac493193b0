"""What is joined is kept once: slices of the joined tensor, and the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.pipeline import fused_kernels, joined
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.joined import Joined
from tests.support.compiled import virtual_machine
from tests.support.memory_plans import bindings, planned, storages

ROWS = 64


def unet(
    axis: int = 1, late: Any = relax.op.nn.softmax, rows: Any = ROWS, first: bool = True
) -> tvm.IRModule:
    """Two tensors, joined and read; much is alive; then one of the two is read again."""
    x = relax.Var("x", relax.TensorType((rows, 64), "float32"))
    bb = relax.BlockBuilder()
    op = relax.op
    with bb.function("main", [x]):
        with bb.dataflow():
            left = bb.emit(op.nn.softmax(x))
            right = bb.emit(op.nn.softmax(bb.emit(op.tanh(left))))
            pair = [left, right] if first else [right, left]
            both = bb.emit(op.concat(pair, axis))
            more = [bb.emit(op.nn.softmax(both)) for _ in range(3)]
            sums = [bb.emit(op.sum(each, 0)) for each in (*more, both)]
            again = bb.emit(op.sum(bb.emit(late(left)), 0))
            out = [bb.emit_output(op.exp(each)) for each in (*sums, again)]
        bb.emit_func_output(relax.Tuple(out))
    return bb.get()


def names(mod: tvm.IRModule) -> list[str]:
    return [op_name(binding.value) for binding in bindings(mod["main"])]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("first", [True, False])
def test_a_late_reader_has_a_slice(axis: int, first: bool) -> None:
    before = unet(axis, first=first)
    after = Joined()(before)
    relax.analysis.well_formed(after)  # raises
    values = [binding.value for binding in bindings(after["main"])]
    place = names(after).index("relax.strided_slice")
    # Right behind the joined tensor's last use, and the late reader takes it.
    assert op_name(values[place - 1]) == "relax.sum"
    assert values[place + 1].args[0].same_as(bindings(after["main"])[place].var)
    less = [sum(storages(planned(mod)["main"])) for mod in (before, after)]
    assert less[1] < less[0]


def test_bits_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((ROWS, 64), "float32"))
    for axis, first in ((0, False), (1, True)):
        found = []
        for one in (joined.Joined, _nothing):
            monkeypatch.setattr(fused_kernels, "Joined", one)
            built = virtual_machine(unet(axis, first=first), "llvm", cpu_pipeline())
            found.append([t.numpy() for t in built["main"](given)])
        assert all(map(np.array_equal, *found))


def _nothing() -> tvm.transform.Pass:
    return tvm.transform.Sequential([])


@pytest.mark.parametrize("pooled", [False, True])
def test_a_view_that_is_read_late_keeps_it(pooled: bool) -> None:
    """But not one that a pooling's gradient takes for its sizes alone."""
    x = relax.Var("x", relax.TensorType((1, 8, 8, 64), "float32"))
    op = relax.op
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            left = bb.emit(op.nn.softmax(x))
            view = bb.emit(op.reshape(left, (1, 16, 4, 64)))
            small = bb.emit(op.nn.avg_pool2d(view, (2, 2), (2, 2), layout="NHWC"))
            both = bb.emit(op.concat([left, left], 3))
            more = [bb.emit(op.nn.softmax(both)) for _ in range(3)]
            sums = [bb.emit(op.sum(each)) for each in (*more, both)]
            late = op.nn.softmax(view)
            if pooled:
                late = op.grad.avg_pool2d_backward(small, view, (2, 2), (2, 2), layout="NHWC")
            sums += [bb.emit(op.sum(bb.emit(each))) for each in (op.nn.softmax(left), late)]
            out = [bb.emit_output(op.exp(each)) for each in sums]
        bb.emit_func_output(relax.Tuple(out))
    assert ("relax.strided_slice" in names(Joined()(bb.get()))) == pooled


def test_what_has_no_late_reader_or_no_known_size_stays() -> None:
    n = tvm.tirx.Var("n", "int64")
    small = relax.Var("x", relax.TensorType((ROWS, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [small]):
        with bb.dataflow():
            left = bb.emit(relax.op.tanh(small))
            both = bb.emit(relax.op.concat([left, left], 0))
            out = bb.emit_output(relax.op.exp(both))
        bb.emit_func_output(out)
    for mod in (bb.get(), unet(1, rows=n)):
        tvm.ir.assert_structural_equal(Joined()(mod), mod)
