"""Matrix products go to the rows that convolutions go to: which, what the report says, values."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

import byoc_cudnn
from relay_wgrad import relay
from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.training.libraries import partitioned
from relay_wgrad.training.options import Options
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.compiled import virtual_machine
from tests.support.partition_cases import regions

pytestmark = pytest.mark.usefixtures("registered")


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10),
    )  # fmt: skip


def step(model: nn.Module, shape: tuple[int, ...], **options: Any) -> tuple[Any, tvm.IRModule]:
    torch.manual_seed(0)
    graph = from_torch(model, (torch.zeros(shape, dtype=next(model.parameters()).dtype),))
    return graph, converted(step_module(graph, **options), "NHWC")


def products(mod: tvm.IRModule) -> int:
    return sum(
        op_name(binding.value) == "relax.matmul"
        for func in mod.functions.values() if isinstance(func, relax.Function)
        for block in func.body.blocks for binding in block.bindings
    )  # fmt: skip


def gradients(mod: tvm.IRModule, graph: Any) -> list[np.ndarray]:
    made = virtual_machine(mod, "llvm", cpu_pipeline())
    args = [tvm.runtime.tensor(v) for v in graph.arguments(graph.random_batch(0))]
    return [g.numpy() for g in made[ADJOINT](*args)[1]]


@pytest.mark.longer("a whole step; each product's partition stays")
def test_a_step() -> None:
    graph, mod = step(net(), (4, 3, 6, 6))
    out, report = byoc_cudnn.partition_for_cudnn(mod, products=True, strict=True)
    assert (products(mod), products(out)) == (6, 0)
    relax.analysis.well_formed(out)
    assert str(report).splitlines()[0] == (
        "2 of 2 convolutions and 6 of 6 matrix products offloaded"
    )
    of_products = [e for e in report.entries if e.op == "matmul"]
    rows = Counter(e.row for e in of_products)
    assert rows == {"fprop_bias_relu": 1, "fprop_bias": 1, "dgrad": 2, "wgrad": 2}
    assert {e.adapted for e in report.entries} == {""}
    assert json.loads(report.to_json())["offloaded"] == len(regions(out)) == 8
    again, second = byoc_cudnn.partition_for_cudnn(out, products=True)
    tvm.ir.assert_structural_equal(again, out)
    assert second.offloaded == 8
    plain, without = byoc_cudnn.partition_for_cudnn(mod)
    assert (products(plain), without.total) == (6, 2)
    got, want = (gradients(m, graph) for m in (byoc_cudnn.unpartition(out), mod))
    for a, b in zip(got, want, strict=True):
        assert np.linalg.norm(a - b) < 1e-6 * np.linalg.norm(b)


@pytest.mark.longer_cases("cudnn-False-a")
@pytest.mark.parametrize(
    ("backend", "wide", "around"),
    [("cutlass", True, {""}), ("cutlass", False, {""}), ("cudnn", False, {""}),
     ("cudnn", True, {"", "cast"})],
)  # fmt: skip
def test_half_precision(backend: str, wide: bool, around: set[str]) -> None:
    """Weights go untransposed, and by cuDNN in half precision where nothing is to be wider."""
    graph, mod = step(net(), (4, 3, 6, 6), dtype="float16", wide_weight_gradients=wide)
    out, report = byoc_cudnn.partition(mod, (backend,), products=True, strict=True)
    assert products(out) == 0
    assert {e.adapted for e in report.entries} == around
    # One transposition is left of a step: none is of a matrix.
    assert not any(
        op_name(b.value) == "relax.permute_dims" and b.var.ty.ndim == 2
        for block in out[ADJOINT].body.blocks for b in block.bindings
    )  # fmt: skip
    if backend == "cudnn" and not wide:
        got, want = (gradients(m, graph) for m in (byoc_cudnn.unpartition(out), mod))
        for a, b in zip(got, want, strict=True):
            assert np.linalg.norm(a - b) < 3e-3 * np.linalg.norm(b)


class Tokens(nn.Module):
    """Layers on tokens, and products of a batch's own matrices between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        q = self.first(x)
        return self.last(q + torch.softmax(q @ q.transpose(1, 2), -1) @ q).mean(1)


@pytest.mark.longer("whole steps; refusals of convolutions stay")
def test_what_stays_is_reported() -> None:
    graph, mod = step(Tokens(), (2, 6, 8))
    out, report = byoc_cudnn.partition_for_cudnn(mod, products=True, strict=True)
    assert str(report).splitlines()[0] == (
        "0 of 0 convolutions and 5 of 11 matrix products offloaded"
    )
    assert report.reasons() == {"a product for each image, and no sum of them": 6}
    assert products(out) == 6
    got, want = (gradients(m, graph) for m in (byoc_cudnn.unpartition(out), mod))
    for a, b in zip(got, want, strict=True):
        assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(b)
    notes: list[str] = []
    _, entries = partitioned(mod, ["cudnn"], Options(), notes)
    assert [e.source.partition(".")[0] for e in entries] == ["cudnn"] * 5
    assert len(notes) == 1
    assert notes[0].startswith("6 of 11 convolutions and matrix products by generated kernels (6:")


def test_of_float64_none_goes() -> None:
    _, mod = step(net().double(), (4, 3, 6, 6))
    out, report = byoc_cudnn.partition_for_cudnn(mod, products=True)
    assert products(out) == 6
    assert report.offloaded == 0
    assert all("float64" in reason for reason in report.reasons())


def test_a_relay_module() -> None:
    x = relay.var("x", shape=(2, 3), dtype="float32")
    mod = relay.IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))
    with pytest.raises(ValueError, match="products=True is for Relax modules"):
        byoc_cudnn.partition(mod, products=True)
