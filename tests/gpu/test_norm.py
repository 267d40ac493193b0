"""Training batch normalization from a Relax module to a GPU's kernels, against PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

import byoc_cudnn
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import grad
from tests.support.gpu.runner import choose_compiler
from tests.support.norm_cases import TOLERANCE, Case, distance, module, reference, settled

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

LAST = {"axis": 3, "running": True}
CASES = [
    *(Case((4, 9, 7, 24), dtype, activation=act, residual=res, **LAST)
      for dtype in ("float32", "float16", "bfloat16")
      for act, res in (("", False), ("relu", False), ("relu", True), ("relu6", True))),
    Case((4, 9, 7, 24), "float32", activation="silu", unbiased=False, **LAST),
    Case((4, 9, 7, 24), "float32", residual=True, **LAST),
    Case((3, 5, 6, 7), "float16", activation="relu", residual=True, **LAST),  # C not of 8
    Case((3, 5, 6, 7), "float64", activation="relu", residual=True, **LAST),
    Case((2, 1, 1, 1), "float32", activation="relu", **LAST),
    Case((64, 33), "bfloat16", axis=1, activation="relu", running=True),
    Case((4, 9, 7, 24), "float16", activation="relu", residual=True, symbolic=True, **LAST),
    Case((3, 6, 5, 7), "float32", activation="relu", residual=True, running=True),  # composite
    Case((3, 6, 5, 7), "bfloat16", activation="relu", running=True),
    Case((2, 5, 6, 7, 32), "bfloat16", axis=4, activation="leaky_relu", groups=32),
    Case((2, 5, 6, 24), "float32", axis=3, activation="leaky_relu", residual=True, groups=4),
    Case((2, 5, 6, 7), "float16", axis=3, activation="gelu", groups=7),
    Case((2, 6, 5, 4, 3), "float32", activation="leaky_relu", groups=6),  # composite
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    choose_compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: Case) -> None:
    values = settled(case)
    zeros = tuple(name for name in values if name[:6] == "weight" and name != "weight0")
    mod = grad(module(case, zeros), "main", wrt=case.names)
    del mod["main"]
    library = byoc_cudnn.build(mod)
    assert all(bool(e.symbol) == (case.axis == len(case.shape) - 1) for e in library.direct)
    device = tvm.cuda(0)
    vm = library.virtual_machine(device)
    given = [tvm.runtime.tensor(v, device) for n, v in values.items() if n not in zeros]
    runs = []
    for _ in range(2):
        first, partials = vm[ADJOINT](*given)
        runs.append([t.numpy() for t in (*first, *partials)])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*runs, strict=True))
    exact = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in values.items()}
    loss, results = reference(case, exact)
    wanted = torch.autograd.grad(loss, [exact[n] for n in case.names], allow_unused=True)
    made = ["y", "mean", "rstd", "mean'", "var'"][: len(results)]
    limit, wrong = 2 * TOLERANCE[case.dtype], []
    # The loss is one sum of terms of both signs: its error is beside their norm, not the sum.
    terms = float((results[0] * exact["weight0"]).detach().norm())
    error = abs(float(runs[0][0]) - float(loss.detach())) / terms
    wrong += [f"loss: {error:.2e}"] if not error < limit else []
    rest = zip([*made, *case.names], runs[0][1:], [*results, *wanted], strict=True)
    for name, got, want in rest:
        right = np.zeros(got.shape) if want is None else want.detach().numpy()
        error = distance(got, right) if np.any(right) else float(np.abs(got).max())
        wrong += [f"{name}: {error:.2e}"] if not error < limit else []
    assert wrong == []


class Block(nn.Module):
    """What follows a normalization: nothing, ReLU, a sum, a sum of two normalizations, ReLU6."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.third = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.short = nn.Conv2d(width, width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))
        self.last = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        y = nn.functional.relu6(self.norms[0](self.first(x)))
        y = torch.relu(self.norms[1](self.second(y)) + self.norms[2](self.short(y)))
        y = y + self.norms[3](self.third(y))
        return self.last(y.mean((2, 3)))


def network() -> tuple[nn.Module, Any, dict[str, Any]]:
    torch.manual_seed(0)
    net = Block()
    graph = from_torch(net, (torch.zeros(8, 3, 16, 16),))
    return net, graph, graph.random_batch(0)


def ours(graph: Any, batch: dict[str, Any], dtype: str | None) -> list[list[np.ndarray]]:
    """The gradients of two runs, in the order of `graph.trainable`."""
    step = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    options = {"allow_tf32": False, "deterministic": True}
    mod, report = byoc_cudnn.partition_for_cudnn(converted(step, "NHWC"), **options)
    assert report.offloaded == report.total
    library = byoc_cudnn.build(mod)
    norms = [entry for entry in library.direct if "norm" in entry.op]
    assert len(norms) == 8
    assert all(entry.symbol for entry in norms)
    device = tvm.cuda(0)
    vm = library.virtual_machine(device)
    given = [tvm.runtime.tensor(v, device) for v in graph.arguments(batch)]
    return [[t.numpy() for t in vm[ADJOINT](*given)[1]] for _ in range(2)]


def pytorch(net: nn.Module, batch: dict[str, Any], dtype: str | None) -> dict[str, np.ndarray]:
    """PyTorch's gradients on the device: in float64, or as it trains in a dtype."""
    exact = dtype == "float64"
    one = copy.deepcopy(net).cuda().to(torch.float64 if exact else torch.float32)
    one = one.to(memory_format=torch.channels_last)
    x = torch.tensor(batch["x"]).cuda().to(next(one.parameters()).dtype)
    half = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(str(dtype))
    with torch.autocast("cuda", dtype=half, enabled=half is not None):
        logits = one(x.to(memory_format=torch.channels_last))
        loss = nn.functional.cross_entropy(logits, torch.tensor(batch["labels"]).cuda())
    loss.backward()
    return {
        name.replace(".", "_"): p.grad.double().cpu().numpy() for name, p in one.named_parameters()
    }


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_a_step(dtype: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as near to float64 as PyTorch's own step in the dtype; twice the same bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    net, graph, batch = network()
    exact, theirs = pytorch(net, batch, "float64"), pytorch(net, batch, dtype)
    first, second = ours(graph, batch, dtype)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    assert sorted(exact) == sorted(graph.trainable)

    def flat(values: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([values[name].ravel() for name in graph.trainable])

    mine = distance(flat(dict(zip(graph.trainable, first, strict=True))), flat(exact))
    yardstick = distance(flat(theirs), flat(exact))
    print(f"{dtype}: {mine:.2e}, PyTorch's {yardstick:.2e}")
    assert mine < 1.5 * yardstick + 2e-5, (mine, yardstick)  # other algorithms in float32
