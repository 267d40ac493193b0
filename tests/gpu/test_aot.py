"""`torch.compile(backend=…)` on a device: steps beside eager's, streams, memory orders."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.torch.compiler import backend, convolutions_backend
from relay_wgrad.torch.reports import compiled_graphs
from tests.support.torch.pair_uses import USES, at_once

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 7),
    ).cuda()  # fmt: skip


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)


def data(count: int = 8, seed: int = 0, last: bool = False) -> Any:
    torch.manual_seed(seed)
    x = torch.randn(count, 3, 16, 16).cuda()
    x = x.to(memory_format=torch.channels_last) if last else x
    return x, torch.randint(0, 7, (count,)).cuda()


def losses(model: Any, module: nn.Module, counts: Any, last: bool = False) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    found = []
    for seed, count in enumerate(counts):
        x, labels = data(count, seed, last)
        optimizer.zero_grad()
        loss = fn.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # Inductor's advice
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["whole", "convolutions"])
def test_steps_are_eager_ones(name: str, last: bool) -> None:
    """Five steps, and another batch size after them."""
    module, counts = net(), (8, 8, 8, 6, 6)
    if last:
        module = module.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(module)
    made: Callable[..., Any] = backend if name == "whole" else convolutions_backend
    step = torch.compile(module, backend=made, fullgraph=True)
    found, wanted = losses(step, module, counts, last), losses(twin, twin, counts, last)
    assert found == pytest.approx(wanted, rel=2e-3)
    assert all(not graph.reason for graph in compiled_graphs()[-4:])
    if name == "whole":
        lines = [line for graph in compiled_graphs()[-4:] for line in graph.convolutions]
        assert lines
        assert all("cudnn" in line for line in lines), lines


@pytest.mark.parametrize("kept", [False, True])
def test_steps_as_graphs(kept: bool) -> None:
    """Twenty steps as CUDA graphs are eager ones; results that someone keeps stay what they were,
    and gradients of two passes add up."""
    module = net().to(memory_format=torch.channels_last)
    twin = copy.deepcopy(module)
    step = torch.compile(module, backend=backend, fullgraph=True, mode="reduce-overhead")
    assert losses(step, module, (8,) * 20, True) == pytest.approx(
        losses(twin, twin, (8,) * 20, True), rel=5e-3
    )
    forward, backward = compiled_graphs()[-2:]
    assert (forward.captured, backward.captured, forward.notes + backward.notes) == (True, True, [])
    seen = []
    for model, of in ((step, module), (twin, twin)):
        of.zero_grad()
        made = []
        for seed in range(6):
            x, _ = data(8, seed, True)
            y = model(x)
            y.square().sum().backward()
            made.append(y.detach() if kept else y.detach().clone())
            del y
        seen.append([*made, *(p.grad for p in of.parameters())])
    for one, other in zip(*seen, strict=True):
        assert float((one - other).norm()) <= 5e-3 * float(other.norm()) + 1e-5


# Dynamo reads `.grad` of an image that is no leaf, as some uses have it; 2.11 lets the warning out.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("graphs", [True, False])
def test_uses(graphs: bool) -> None:
    """One compiled model, used in each way in turn: passes that come again or in another order,
    under hooks of saved tensors, in other threads."""
    module = net().to(memory_format=torch.channels_last)
    twin = copy.deepcopy(module)
    before = len(compiled_graphs())
    step = torch.compile(module, backend=backend, fullgraph=True, options={"graphs": graphs})
    for turn in range(4):
        for use in USES:
            ours, theirs = (
                use(of, run, lambda seed: data(8, seed, True)[0])
                for of, run in ((module, step), (twin, twin))
            )
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                far, size = (float(t.float().norm()) for t in (a - b, b))
                assert far <= 2e-3 * size + 1e-4, (turn, use.__name__, i)
    for _ in range(30):
        at_once(module, step, lambda seed: data(8, seed, True)[0])
    found = compiled_graphs()[before : before + 2]  # others are for images that need a gradient
    assert [(g.reason, g.captured, g.notes) for g in found] == [("", graphs, [])] * 2


def test_graphs_on_another_stream() -> None:
    """What was put on a stream before is waited for, and what follows waits."""
    module = net().eval()
    step = torch.compile(module, backend=backend, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for i in range(12):
            x, _ = data(8, i)
            want = module(x)
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream if i % 2 else torch.cuda.default_stream()):
                late = torch.zeros_like(x)
                torch.cuda._sleep(20_000_000)
                late.copy_(x)
                found = step(late).clone()
            torch.cuda.synchronize()
            assert torch.allclose(found, want, rtol=1e-3, atol=1e-4)
    assert compiled_graphs()[-1].captured


def test_the_current_stream() -> None:
    """What is computed on another stream waits for what was put there before."""
    module = net()
    step = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    x, _ = data()
    want = step(x).detach().clone()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if "running" in name:
                    buffer.fill_(1)
        found = step(late).detach()
    stream.synchronize()
    assert torch.allclose(found, want, rtol=1e-4, atol=1e-5)


def test_memory_does_not_grow() -> None:
    module = net()
    step = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    losses(step, module, (8, 8))
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    losses(step, module, (8,) * 20)
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20


def test_times() -> None:
    """Milliseconds of a step of a ResNet's block beside eager's and Inductor's, for the report."""

    class Block(nn.Module):
        def __init__(self, width: int = 64) -> None:
            super().__init__()
            self.parts = nn.ModuleList(
                nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False),
                              nn.BatchNorm2d(width))
                for _ in range(4)
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            for part in self.parts:
                x = torch.relu(x + part(x))
            return x.mean((2, 3))

    x = torch.randn(64, 64, 56, 56, device="cuda").to(memory_format=torch.channels_last)
    sides = {"eager": None, "inductor": "inductor", "ours": backend, "only": convolutions_backend}
    torch.backends.cudnn.allow_tf32 = True
    for name, made in sides.items():
        torch._dynamo.reset()
        module = Block().cuda().to(memory_format=torch.channels_last)
        step = module if made is None else torch.compile(module, backend=made)
        for _ in range(5):
            step(x).square().sum().backward()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            step(x).square().sum().backward()
        torch.cuda.synchronize()
        print(f"{name:9s} {(time.perf_counter() - began) * 50:.2f} ms a step")
