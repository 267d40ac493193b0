"""Lowering to kernels of our own takes time in proportion to a module's length."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax

from byoc_cudnn.cast_transpose.lower import lower_cast_transposes
from byoc_cudnn.joins.lower import lower_joins
from byoc_cudnn.norm.lower import lower_norms
from byoc_cudnn.pool.lower import lower_pools
from tests.support.cast_transpose import step

pytestmark = pytest.mark.usefixtures("registered")


def called(function: Callable[[], Any]) -> int:
    """How many functions it calls, of C and of Python."""
    count = 0

    def heard(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(heard)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def chain(norms: int) -> tvm.IRModule:
    """Normalizations one after another, each pooled, joined with itself and cut, in NHWC."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 8, 8, 8), "float16"))
    vectors = [relax.Var(f"v{i}", relax.TensorType((8,), "float32")) for i in range(2 * norms)]
    with bb.function("main", [x, *vectors]):
        with bb.dataflow():
            y: Any = x
            for gamma, beta in zip(vectors[::2], vectors[1::2], strict=True):
                made = bb.emit(relax.op.nn.batch_norm_train(y, gamma, beta, axis=3))
                y = bb.emit(relax.TupleGetItem(made, 0))
                y = bb.emit(relax.op.nn.max_pool2d(y, (3, 3), padding=1, layout="NHWC"))
                cut = bb.emit(relax.op.split(bb.emit(relax.op.concat([y, y], 3)), [3, 8], 3))
                first, second = (bb.emit(relax.TupleGetItem(cut, i)) for i in (0, 1))
                y = bb.emit(relax.op.concat([second, first], 3))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize("lower", [lower_norms, lower_pools, lower_joins, lower_cast_transposes])
def test_four_times_the_module_is_four_times_the_work(lower: Callable[..., Any]) -> None:
    def module_of(n: int) -> tvm.IRModule:
        return step([(8, 3, 3, 2)] * n, False) if lower is lower_cast_transposes else chain(n)

    few, many = module_of(12), module_of(48)
    lower(few, 90)  # what is computed once
    assert called(lambda: lower(many, 90)) < 5 * called(lambda: lower(few, 90))
