"""Matrix products as convolutions of one pixel, by the libraries on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

import byoc_cudnn
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.cuda_tools import cuda_compiler
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.gpu.runner import choose_compiler

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

# Of each dtype: how far all gradients together may be from float64's, relative to their norm.
LIMITS = {"tf32": 3e-3, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture(autouse=True, scope="module")
def _compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    choose_compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Layers(nn.Module):
    """Fully connected layers after a flattened image; the last has sizes that are no multiples."""

    def __init__(self, inner: int, out: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3 * 8 * 8, inner), nn.Linear(inner, 64)
        self.last = nn.Linear(64, out)
        with torch.no_grad():  # no sum is near a kink, where rounding would decide
            for layer in (self.first, self.second):
                layer.weight.mul_(0.2)
                layer.bias.copy_(torch.where(layer.bias > 0, 1.0, -1.0))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.second(torch.relu(self.first(x.flatten(1)))))
        return self.last(x)


class Tokens(nn.Module):
    """Layers on tokens, and products of a batch's own matrices, which no library takes here."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 32), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        q = torch.tanh(self.first(x))
        weights = torch.softmax(q @ q.transpose(1, 2) * 0.1, -1)
        return self.last(q + weights @ q).mean(1)


CASES = {
    "multiples of 8": (lambda: Layers(256, 1000), (32, 3, 8, 8)),
    "no multiples": (lambda: Layers(37, 11), (5, 3, 8, 8)),
    "one image": (lambda: Layers(64, 10), (1, 3, 8, 8)),
    "tokens": (Tokens, (4, 70, 24)),
}


@pytest.mark.parametrize("backend", ["cudnn", "cutlass"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, dtype: str, wide: bool, backend: str) -> None:
    half = dtype if dtype in ("float16", "bfloat16") else None
    if half is None and wide:
        pytest.skip("float32 gradients are wide")
    if backend == "cutlass" and name not in ("multiples of 8", "no multiples"):
        pytest.skip("nvcc takes seconds for each kernel")
    make, shape = CASES[name]
    torch.manual_seed(0)
    model = make()
    graph = from_torch(model, (torch.zeros(shape),))
    step = step_module(graph, dtype=half, wide_weight_gradients=wide)
    options: dict[str, Any] = {backend: {"allow_tf32": dtype == "tf32", "deterministic": True}}
    mod, report = byoc_cudnn.partition(
        converted(step, "NHWC"), (backend,), products=True, **options
    )
    assert report.offloaded == report.total - (6 if name == "tokens" else 0)
    with cuda_compiler():
        library = byoc_cudnn.build(mod)
        vm = library.virtual_machine()
    batch = graph.random_batch(0)
    given = [tvm.runtime.tensor(v, tvm.cuda(0)) for v in graph.arguments(batch)]
    runs = [[g.numpy() for g in vm[ADJOINT](*given)[1]] for _ in range(2)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*runs, strict=True))
    model.double()
    logits = model(torch.tensor(batch["x"], dtype=torch.float64))
    nn.functional.cross_entropy(logits, torch.tensor(batch["labels"])).backward()
    wanted = {n.replace(".", "_"): p.grad.numpy() for n, p in model.named_parameters()}
    got = dict(zip(graph.trainable, runs[0], strict=True))
    assert sorted(got) == sorted(wanted)
    flat, right = (np.concatenate([v[n].ravel() for n in wanted]) for v in (got, wanted))
    assert np.linalg.norm(flat - right) < LIMITS[dtype] * np.linalg.norm(right)
