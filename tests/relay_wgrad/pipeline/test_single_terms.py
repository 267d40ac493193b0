"""Reductions and searches of one term, and what is computed of their results in the same kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock
from tvm_ffi import structural_walk

from legalize.cpu import host_target
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from tests.support.compiled import virtual_machine
from tests.support.schedules import CUDA
from tests.support.sized import module

pytestmark = pytest.mark.usefixtures("registered")
R = relax.op
POOL = {"pool_size": (2, 3), "strides": (2, 3)}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _added_pool_gradient(g: Any, gate: Any, dy: Any, x: Any) -> Any:
    return R.add(R.multiply(g, gate), R.grad.avg_pool2d_backward(dy, x, **POOL))


IMAGE, CHANNEL = (2, 4, 2, 3), (2, 4, 1, 1)
# (what, body, shapes, the same in NumPy)
CASES: list[tuple[str, Callable[..., Any], list[Any], Callable[..., Any]]] = [
    ("a gate, and the gradient of a pool over the whole image", _added_pool_gradient,
     [IMAGE, CHANNEL, CHANNEL, IMAGE], lambda g, gate, dy, x: g * gate + dy / 6),
    ("sum", lambda x, y: R.add(R.sum(x, [1]), y), [(8, 1, 5), (8, 5)], lambda x, y: x[:, 0] + y),
    ("prod", lambda x, y: R.add(R.prod(x, [1]), y), [(8, 1, 5), (8, 5)], lambda x, y: x[:, 0] + y),
    ("max", lambda x: R.sigmoid(R.max(x, [1])), [(8, 1, 5)], lambda x: _sigmoid(x[:, 0])),
    ("open size", lambda x: R.sigmoid(R.sum(x, [1])), [("n", 1, 5)], lambda x: _sigmoid(x[:, 0])),
    ("matmul", lambda x, w, b: R.sigmoid(R.add(R.matmul(x, w), b)), [(3, 1), (1, 4), (4,)],
     lambda x, w, b: _sigmoid(x * w + b)),
    ("conv1d", lambda x, w, b: R.exp(R.add(R.nn.conv1d(x, w), b)), [(2, 1, 9), (4, 1, 1), (4, 1)],
     lambda x, w, b: np.exp(x * w[:, 0] + b)),
    ("max pool", lambda x, y: R.subtract(y, R.nn.max_pool2d(x, (1, 1))), [IMAGE, IMAGE],
     lambda x, y: y - x),
    ("average pool", lambda x, y: R.add(R.nn.avg_pool2d(x, (1, 1)), y), [IMAGE, IMAGE],
     lambda x, y: x + y),
    ("collapse_sum_to", lambda x, y: R.add(R.collapse_sum_to(x, (3, 4)), y), [(1, 3, 4), (3, 4)],
     lambda x, y: x[0] + y),
    ("search", lambda x: R.argmax(R.astype(x, "float32"), 0), [(1, 512, 5, 14)],
     lambda x: np.argmax(x, 0)),
    ("search, read", lambda x, y: R.add(R.astype(R.argmin(x, 1), y.ty.dtype), y),
     [(48, 1, 400), (48, 400)], lambda x, y: y),
]  # fmt: skip


def _sized(shapes: Sequence[Any]) -> list[list[int]]:
    return [[2 if isinstance(n, str) else n for n in shape] for shape in shapes]


EACH = pytest.mark.parametrize(
    ("body", "shapes", "expected"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)


@EACH
def test_what_reads_a_sum_of_one_term_is_computed_once(
    body: Any, shapes: list[Any], expected: Any
) -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape) for shape in _sized(shapes)]
    made = virtual_machine(module(body, *shapes, dtype="float64"), host_target(), cpu_pipeline())
    result = made["main"](*map(tvm.runtime.tensor, values)).numpy()
    np.testing.assert_allclose(result, expected(*values), rtol=1e-12)


@EACH
def test_no_schedule_of_a_gpu_sees_a_first_value_of_one_term(
    body: Any, shapes: list[Any], expected: Any
) -> None:
    blocks: list[Any] = []
    with CUDA:
        mod = tvm.transform.Sequential(fused_kernels())(module(body, *shapes))
    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            structural_walk(func.body, (SBlock, blocks.append))
    assert blocks
    for block in blocks:
        terms = [x.dom.extent for x in block.iter_vars if x.iter_type == tirx.IterVar.CommReduce]
        assert block.init is None or any(int(n) > 1 for n in terms)
