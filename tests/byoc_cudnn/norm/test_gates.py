"""Squeeze and excitation becomes a part of its normalization; no GPU is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from byoc_cudnn.codegen.lowering import lower
from byoc_cudnn.norm.call import GATED
from byoc_cudnn.norm.lower import planned
from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.compiled import step_results
from tests.support.norm_packed import recorder

pytestmark = pytest.mark.usefixtures("registered")

C = 8


class Gate(nn.Module):
    """Of PyTorch's networks: by two convolutions of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(C, 4, 1), nn.Conv2d(4, C, 1)

    def forward(self, y: Any) -> Any:
        return y * torch.sigmoid(self.up(torch.relu(self.down(y.mean((2, 3), keepdim=True)))))


class Efficient(nn.Module):
    """Efficient channel attention: a convolution over neighbouring channels."""

    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, y: Any) -> Any:
        gate = self.over(y.mean((2, 3)).view(y.shape[0], 1, -1)).sigmoid()
        return y * gate.view(y.shape[0], -1, 1, 1).expand_as(y)


class Net(nn.Module):
    """A block with an activation before its gate, two with a residual and ReLU after it, the first
    of whose results has two gradients, one whose product is another normalization's residual, and
    one by neighbouring channels."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(3 if i == 0 else C, C, 1, bias=False) for i in range(8)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(C) for _ in range(6))
        self.gates = nn.ModuleList([Gate(), Gate(), Gate(), Efficient(), Gate()])
        self.last = nn.Linear(C, 3)

    def forward(self, x: Any) -> Any:
        def block(i: int, x: Any) -> Any:
            return self.norms[i](self.convs[-1 if i == 5 else i](x))

        y = self.gates[0](torch.nn.functional.silu(block(0, x)))
        y = torch.relu(self.convs[5](y))
        y = torch.relu(self.gates[4](block(5, y)) + y)
        y = torch.relu(self.convs[5](torch.relu(self.gates[1](block(1, y)) + y)))
        y = torch.relu(block(4, y) + self.gates[2](block(2, y)))
        y = torch.relu(self.convs[6](self.gates[3](torch.relu(block(3, y)))))
        return self.last(y.mean((2, 3)))


def step(dtype: str | None) -> tvm.IRModule:
    torch.manual_seed(0)
    graph = from_torch(Net().train(), (torch.zeros(2, 3, 5, 4),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    return converted(made, "NHWC")


@pytest.mark.parametrize("dtype", ["bfloat16", None])
def test_gates_are_the_normalizations(dtype: str | None) -> None:
    """No pass over a whole tensor is left, but convolutions', their ReLUs', and ReLU's gradient."""
    family = recorder()
    after, entries = lower(step(dtype), family, planned, 90)  # type: ignore[arg-type]
    relax.analysis.well_formed(after)
    names = [e.symbol for e in entries]
    of = {call.symbol: call for call in family.calls}
    kinds = [of[name].direction for name in names]
    assert [kinds.count(kind) for kind in GATED] == [5] * 4
    assert kinds.count("forward") == kinds.count("backward") == 1
    excited = [of[n] for n in names if of[n].direction == "excite"]
    assert [(c.activation, c.residual, c.last, c.bits) for c in excited] == [
        ("silu", False, "", False), ("", True, "relu", True), ("", True, "relu", True),
        ("", False, "", False), ("relu", False, "", False),
    ]  # fmt: skip
    sums = [of[n] for n in names if of[n].direction == "gate_sums"]
    assert [(c.bits, c.summed) for c in sums] == [
        (False, False), (False, False), (True, False), (True, True), (False, False)
    ]  # fmt: skip
    whole = [
        op_name(b.value)
        for b in after[ADJOINT].body.blocks[0].bindings
        if [int(n) for n in getattr(getattr(b.var.ty, "shape", None), "values", ())] == [2, 5, 4, C]
        and isinstance(b.value, relax.Call)
    ]
    left = {"relax.call_dps_packed", "relax.nn.conv2d", "relax.nn.conv2d_backward_data",
            "relax.where", "relax.less_equal", "relax.add", "relax.nn.relu"}  # fmt: skip
    casts = {"relax.astype", "relax.broadcast_to"}  # around the mask, and of the network's mean
    assert set(whole) <= left | casts, sorted(set(whole) - left - casts)
    assert whole.count("relax.nn.relu") == whole.count("relax.where") == 3  # of convolutions


@pytest.mark.longer("a whole step; its calls and kernels stay")
def test_calls_of_functions_compute_the_step() -> None:
    before, family = step(None), recorder()
    after, _ = lower(before, family, planned, 90)  # type: ignore[arg-type]
    family.register()
    rng = np.random.default_rng(0)
    values = [
        rng.integers(0, 3, 2) if str(p.ty.dtype).startswith("int") else
        (np.abs(v) if "var" in p.name else v)
        for p in after[ADJOINT].params
        for v in [rng.standard_normal([int(n) for n in p.ty.shape.values]).astype("float32")]
    ]  # fmt: skip
    got, want = (step_results(mod, values) for mod in (after, before))
    assert len(got) == len(want) > 30
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert np.linalg.norm(a - b) < 2e-5 * max(np.linalg.norm(b), 1), i


def changed(what: str) -> tvm.IRModule:
    """A gate's block whose normalization has another use, or another mean."""

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.gate = nn.Conv2d(3, C, 1), nn.BatchNorm2d(C), Gate()

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.norm(self.conv(x)))
            if what == "another use":
                return (self.gate(y) + y.sin()).mean((2, 3))
            if what == "a mean of rows":
                return (y * torch.sigmoid(y.mean(2, keepdim=True))).mean((2, 3))
            return (y * torch.sigmoid(y.mean(1, keepdim=True))).mean((2, 3))  # of channels

    graph = from_torch(Other().train(), (torch.zeros(2, 3, 5, 4),))
    return converted(step_module(graph, dtype="float16", raise_norms=True), "NHWC")


@pytest.mark.parametrize("what", ["another use", "a mean of rows", "a mean of channels"])
def test_what_is_no_gate_stays(what: str) -> None:
    family = recorder()
    after, _ = lower(changed(what), family, planned, 90)  # type: ignore[arg-type]
    relax.analysis.well_formed(after)
    assert [call.direction for call in family.calls] == ["forward", "backward"]
