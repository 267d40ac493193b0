"""`benchmark=True` and `optimize` on a device: our own kernels where they are faster, and right."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import relay_wgrad.torch as rt
from byoc_cudnn.building.compilers import missing
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.tuning import single_convolution
from relay_wgrad.torch import cache, kernels
from tests.support.gpu.exclusive import EXCLUSIVE
from tests.support.torch.cases import error

pytestmark = pytest.mark.gpu

F = torch.nn.functional
# Channels, kernel, stride, groups, size: depthwise, grouped, few filters, dense.
LAYERS = {
    "depthwise": (96, 96, 3, 2, 96, 112),
    "depthwise5": (144, 144, 5, 1, 144, 28),
    "grouped": (128, 128, 3, 1, 32, 28),
    "few": (320, 4, 3, 1, 1, 32),
    "dense": (64, 64, 3, 1, 1, 28),
}


@pytest.fixture(autouse=True)
def own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known, and what is measured stays here."""
    if text := missing(find()):
        pytest.skip(text)
    monkeypatch.setattr(
        single_convolution.Record, "default_path", staticmethod(lambda: tmp_path / "r.json")
    )
    monkeypatch.setattr(cache, "kept", cache.Cache())
    single_convolution.measurements.cache_clear()
    yield
    single_convolution.measurements.cache_clear()


def operands(name: str, dtype: torch.dtype, batch: int = 8) -> tuple[Any, ...]:
    c, k, taps, stride, groups, size = LAYERS[name]
    torch.manual_seed(0)
    last = torch.channels_last
    x = torch.randn(batch, c, size, size, device="cuda", dtype=dtype).to(memory_format=last)
    w = torch.randn(k, c // groups, taps, taps, device="cuda", dtype=dtype) / taps
    return x, w.to(memory_format=last), (stride, taps // 2, 1, groups)


def results(function: Any, x: Any, w: Any, v: Any, *rest: Any) -> list[torch.Tensor]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w, None, *rest)
    return [y, *torch.autograd.grad(y, (x, w), v)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(LAYERS))
def test_what_is_chosen_is_right(name: str, dtype: torch.dtype, capsys: Any) -> None:
    x, w, rest = operands(name, dtype)
    with torch.no_grad():
        v = torch.randn_like(F.conv2d(x, w, None, *rest))
    with kernels.recorded_calls() as heard:
        got = results(rt.convolution, x, w, v, *rest, True)
    wide = [t.detach().cpu().double() for t in (x, w, v)]
    want = results(F.conv2d, *wide, *rest)
    limit = 4e-3 if dtype == torch.float16 else 3e-2
    assert max(error(a.cpu(), b) for a, b in zip(got, want, strict=True)) < limit
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in got[:2])
    whose = {kind.value: what for kind, what in heard}
    with capsys.disabled():
        times = {m.problem.split()[0] + " " + m.backend: f"{m.ms * 1e3:.0f}" for m in _record()}
        print(f"\n{name} {dtype}: {whose} {times}", end="")
    if name != "dense":
        assert "cuda_direct" in {m.backend for m in _record()}
    if name == "depthwise":
        assert whose["dgrad"] == "cuda_direct"  # 242 us of cuDNN's, where memory needs 45
    # Other processes, and other calls, measure nothing.
    count = len(list(_record()))
    again = results(rt.convolution, x, w, v, *rest, True)
    assert len(list(_record())) == count
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True) if "cuda_direct" in whose)


def _record() -> Any:
    return single_convolution.measurements().record


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.ReLU6(),
        torch.nn.Conv2d(32, 32, 3, 1, 1, groups=32, bias=False), torch.nn.ReLU6(),
        torch.nn.Conv2d(32, 96, 1, bias=False), torch.nn.BatchNorm2d(96), torch.nn.ReLU6(),
        torch.nn.Conv2d(96, 96, 3, 2, 1, groups=96, bias=False), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    ).cuda().to(memory_format=torch.channels_last)  # fmt: skip


@EXCLUSIVE
def test_a_model_that_is_optimized(capsys: Any) -> None:
    """Under autocast; then eager, compiled, captured, copied, saved, and of other sizes."""
    model, plain = net(), net()
    x = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.float16):
        report = rt.optimize(model, x, host=False)
    with capsys.disabled():
        print(f"\n{report}", end="")
    assert "7" in report.replaced
    (row,) = [row for row in report.layers if row.name == "7"]
    assert "dgrad cuda_direct" in row.kernels

    def step(module: Any, images: torch.Tensor) -> list[torch.Tensor]:
        for p in module.parameters():
            p.grad = None
        with torch.autocast("cuda", torch.float16):
            loss = module(images).float().square().mean()
        loss.backward()
        return [p.grad.clone() for p in module.parameters()]

    def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
        assert max(map(error, a, b)) < 2e-2

    want = step(plain, x)
    same(step(model, x), want)
    same(step(copy.deepcopy(model), x), want)
    same(step(torch.compile(model), x), want)
    small = torch.randn(5, 3, 64, 96, device="cuda").to(memory_format=torch.channels_last)
    same(step(model, small), step(plain, small))
    same(step(model, small.contiguous()), step(plain, small))
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    plain.load_state_dict(torch.load(io.BytesIO(stored.getvalue())))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(model, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(model, x)
    graph.replay()
    torch.cuda.synchronize()
    same(captured, want)
    report.undo()
    assert type(model[7]) is torch.nn.Conv2d
    same(step(model, x), want)


def test_a_first_call_in_a_graph() -> None:
    """Nothing can be measured there: cuDNN's kernel, and the next call measures."""
    x, w, rest = operands("depthwise", torch.float16)
    rt.convolution(x[:1], w, None, *rest)  # cuDNN's library is there
    with torch.no_grad():
        want = F.conv2d(x, w, None, *rest)
    rt.convolution(x, w, None, *rest, False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = rt.convolution(x, w, None, *rest, True)
    graph.replay()
    torch.cuda.synchronize()
    assert error(y, want) < 4e-3
    assert len(list(_record())) == 0
    rt.convolution(x, w, None, *rest, True)
    assert len(list(_record())) > 0
