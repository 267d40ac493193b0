"""The PyTorch functions on a device: numbers, streams, graphs, devices, time of a call.

cuDNN's library is built at most once, into the user's cache.  Each float64 kernel costs seconds of
nvcc, so all float64 tests are of `DOUBLE`: three kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import relay_wgrad.torch as rt
from byoc_cudnn.backends.cudnn import loaded as cudnn_library
from byoc_cudnn.building import fixed_source, toolchain
from relay_wgrad.torch import cache
from tests.support.torch.cases import Config, error, gradients, random_config

pytestmark = pytest.mark.gpu

F = torch.nn.functional
TOLERANCE = {
    torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-12,
}  # fmt: skip
TYPICAL = Config(False, (4, 32, 15, 14), (64, 16, 3, 3), (2, 1), (1, 2), (0, 0), (1, 1), 2, True)
DOUBLE = Config(False, (2, 6, 9, 7), (4, 3, 3, 2), (2, 1), (1, 2), (0, 0), (1, 2), 2, True)


@pytest.fixture(autouse=True)
def full_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side rounds to tf32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def reference(config: Config, operands: list[Any], seed: int) -> list[torch.Tensor]:
    """PyTorch's in float64, on the CPU."""
    wide = [None if t is None else t.detach().cpu().double().requires_grad_() for t in operands]
    return gradients(config.theirs, wide, seed)


def compare(config: Config, operands: list[Any], seed: int) -> None:
    got = [t.cpu() for t in gradients(config.ours, operands, seed)]
    want = reference(config, operands, seed)
    # The cotangents are the same up to their own rounding.
    limit = 3 * TOLERANCE[operands[0].dtype]
    assert max(map(error, got, want)) < limit, config


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("part", range(3))
def test_random_configurations(dtype: torch.dtype, part: int) -> None:
    """Convolutions and their transposes."""
    rng = np.random.default_rng((part, 7))
    for seed in range(4):
        config = random_config(rng)
        for one in (config, config.transpose()):
            compare(one, one.operands(seed, dtype, "cuda"), seed)


@pytest.mark.parametrize("config", [DOUBLE, DOUBLE.transpose()], ids=["conv", "transpose"])
def test_float64(config: Config) -> None:
    """This package's own CUDA kernels: PyTorch's numbers, and finite differences of both orders."""
    operands = config.operands(0, torch.float64, "cuda")
    compare(config, operands, 0)
    assert torch.autograd.gradcheck(config.ours, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(config.ours, operands, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_channels_last_and_views(dtype: torch.dtype) -> None:
    x, w, b = (t.detach() for t in TYPICAL.operands(1, dtype, "cuda"))
    n, c, h, width = x.shape
    last = torch.channels_last
    cases = [
        x.contiguous(memory_format=last),
        torch.randn(n, c, width, h, device="cuda", dtype=dtype).mT,
        torch.randn(1, c, 1, width, device="cuda", dtype=dtype).expand(x.shape),
        torch.randn(x.numel() + 1, device="cuda", dtype=dtype)[1:].view(x.shape),
        torch.randn(n, h, width, 2 * c, device="cuda", dtype=dtype).permute(0, 3, 1, 2)[:, c:],
    ]
    for case in cases:
        for weight in (w, w.contiguous(memory_format=last)):
            compare(TYPICAL, [t.detach().requires_grad_() for t in (case, weight, b)], 1)
    out = TYPICAL.ours(cases[0], w, b)
    assert out.is_contiguous(memory_format=last)
    x = torch.empty(0, *x.shape[1:], device="cuda", dtype=dtype, requires_grad=True)
    weight = w.clone().requires_grad_()
    TYPICAL.ours(x, weight, b).sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_same_padding_of_an_even_kernel() -> None:
    """Lopsided padding, which cuDNN has not: an explicit pad, and a crop."""
    config = Config(
        False, (2, 8, 9, 10), (8, 8, 4, 2), (1, 1), (1, 0, 2, 1), (0, 0), (1, 1), 1, True
    )
    for last in (False, True):
        operands = config.operands(2, torch.float32, "cuda")
        if last:
            operands[0] = operands[0].detach().contiguous(memory_format=torch.channels_last)
            operands[0].requires_grad_()
        compare(config, operands, 2)


def test_the_current_stream_is_used() -> None:
    """Operands that a busy stream has yet to write: only work on that stream sees them."""
    x, w, b = (t.detach() for t in TYPICAL.operands(3, torch.float32, "cuda"))
    want = TYPICAL.ours(x, w, b)
    late = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        late.copy_(x)
        got = TYPICAL.ours(late, w, b)
    assert not stream.query()  # the call did not wait
    stream.synchronize()
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_training_step_in_a_graph(dtype: torch.dtype) -> None:
    """Forward, backward and update captured; replays train as calls do."""

    n, c, h, w = DOUBLE.input

    def model() -> torch.nn.Sequential:
        torch.manual_seed(0)
        first = rt.Conv2d(
            c, DOUBLE.weight[0], DOUBLE.weight[2:], DOUBLE.stride, DOUBLE.padding, DOUBLE.dilation,
            DOUBLE.groups,
        )  # fmt: skip
        layers = [first, torch.nn.ReLU()]
        if dtype != torch.float64:
            layers.append(rt.ConvTranspose2d(DOUBLE.weight[0], 3, 2, stride=2))
        return torch.nn.Sequential(*layers).to("cuda", dtype)

    batches = [torch.randn(n, c, h, w, device="cuda", dtype=dtype) for _ in range(4)]
    static = batches[0].clone()

    def step(net: Any, x: torch.Tensor) -> torch.Tensor:
        for p in net.parameters():
            p.grad = None
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
        return loss

    plain, captured = model(), model()
    state = {k: v.clone() for k, v in captured.state_dict().items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(captured, static)
    torch.cuda.current_stream().wait_stream(stream)
    captured.load_state_dict(state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(captured, static)
    captured.load_state_dict(state)
    for x in batches:
        static.copy_(x)
        graph.replay()
        step(plain, x)
    torch.cuda.synchronize()
    for a, b in zip(plain.parameters(), captured.parameters(), strict=True):
        assert error(a, b) < 10 * TOLERANCE[dtype]


def test_options_reach_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explicit flags, and `torch.backends.cudnn`'s where none are given; equal ones share plans."""
    if text := toolchain.find().missing():
        pytest.skip(text)
    x, w = torch.randn(1, 8, 8, 19, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    for _ in range(2):
        monkeypatch.setattr(cache, "kept", cache.Cache())
        rt.convolution(x, w)
        rt.convolution(x, w, None, 1, 0, 1, 1, False, True, True)
        monkeypatch.setattr(fixed_source, "run_tool", None)  # nothing is compiled from here on
    found = [line for line in cudnn_library.plans() if "fprop n=1 c=8 h=8 w=19 " in line]
    # Bits: 1 for tf32, 2 for deterministic, 4 for benchmark.
    assert sorted(line.split(" options=")[1].split()[0] for line in found) == ["0", "3"]


def test_deterministic_bits() -> None:
    x = torch.randn(8, 32, 28, 28, device="cuda", dtype=torch.float16)
    v = torch.randn(8, 64, 28, 28, device="cuda", dtype=torch.float16)
    runs = [
        rt.convolution_backward_weight(x, (64, 32, 3, 3), v, 1, 1, 1, 1, False, True)
        for _ in range(5)
    ]
    assert all(torch.equal(runs[0], other) for other in runs)


@pytest.mark.skipif("torch.cuda.device_count() < 2")
def test_second_device() -> None:
    compare(TYPICAL, TYPICAL.operands(4, torch.float32, "cuda:1"), 4)
    operands = DOUBLE.operands(4, torch.float64, "cuda:1")
    assert error(DOUBLE.ours(*operands), DOUBLE.theirs(*operands)) < TOLERANCE[torch.float64]
    assert torch.cuda.current_device() == 0


def test_compile() -> None:
    model = torch.nn.Sequential(rt.Conv2d(3, 8, 3, padding="same"), torch.nn.ReLU()).cuda()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 9, 9, device="cuda")
    results = []
    for net in (model, compiled):
        model.zero_grad()
        net(x).square().sum().backward()
        results.append([p.grad.clone() for p in model.parameters()])
    assert all(error(a, b) < 1e-5 for a, b in zip(*results, strict=True))


def microseconds(function: Callable[[], Any], count: int = 500) -> float:
    """Host time of one call; the device is never waited for in between."""
    for _ in range(20):
        function()
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            function()
        best = min(best, (time.perf_counter() - start) / count)
        torch.cuda.synchronize()
    return best * 1e6


def test_time_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed for docs/howto/torch.md; the limit catches a plan looked for at every call."""
    x = torch.randn(1, 8, 8, 8, device="cuda", requires_grad=True)
    w = torch.randn(8, 8, 3, 3, device="cuda", requires_grad=True)
    v = torch.ones(1, 8, 6, 6, device="cuda")
    rows = {}
    for name, function in (("ours", rt.convolution), ("PyTorch's", F.conv2d)):
        with torch.no_grad():
            forward = microseconds(lambda f=function: f(x, w))
        both = microseconds(lambda f=function: torch.autograd.grad(f(x, w), (x, w), v))
        rows[name] = (forward, both)
    with capsys.disabled():
        for name, (forward, both) in rows.items():
            print(f"\n{name}: {forward:.1f} us forward, {both:.1f} us with backward", end="")
    assert rows["ours"][0] < 300


def test_bounded_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of this package's goes and is built again; one of a captured graph stays."""
    monkeypatch.setattr(cache, "kept", cache.Cache(1))
    x = torch.randn(1, 2, 5, 5, device="cuda", dtype=torch.float64)
    w = torch.randn(2, 2, 3, 3, device="cuda", dtype=torch.float64)
    out = torch.empty(1, 2, 3, 3, device="cuda", dtype=torch.float64)
    out.copy_(rt.convolution(x, w))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(rt.convolution(x, w))
    for width in (6, 5, 6):
        y = torch.randn(1, 2, 5, width, device="cuda", dtype=torch.float64)
        assert error(rt.convolution(y, w), F.conv2d(y, w)) < TOLERANCE[torch.float64]
    rt.clear_cache()
    assert rt.cache_info().kernels == 1
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert error(out, F.conv2d(x, w)) < TOLERANCE[torch.float64]
    # cuDNN's library outlives its kernels.
    compare(TYPICAL, TYPICAL.operands(6, torch.float32, "cuda"), 6)
    rt.clear_cache()
    compare(TYPICAL, TYPICAL.operands(7, torch.float32, "cuda"), 7)


def test_forward_mode() -> None:
    x, w, b = (t.detach() for t in TYPICAL.operands(0, torch.float32, "cuda"))
    tangents = (x.cos(), w.cos(), b.cos())
    got = torch.func.jvp(TYPICAL.ours, (x, w, b), tangents)[1].cpu()
    wide = [t.cpu().double() for t in (x, w, b, *tangents)]
    want = torch.func.jvp(TYPICAL.theirs, tuple(wide[:3]), tuple(wide[3:]))[1]
    assert error(got, want) < 1e-5


def test_a_graph_keeps_what_its_kernels_need() -> None:
    """A sum in parts is captured, then others want more memory of that kind."""
    x, y = (torch.randn(2, 8, 24, 24, dtype=torch.float64, device="cuda") for _ in range(2))

    def gradient(data: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return rt.convolution_backward_weight(data, (8, 8, 3, 3), grad, padding=1)

    want = gradient(x, y).cpu()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gradient(x, y)
    gradient(*(t.repeat(4, 1, 2, 2) for t in (x, y)))
    others = [
        torch.full((n,), 7.0, dtype=torch.float64, device="cuda") for n in (64, 9216, 1 << 20)
    ]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got.cpu(), want)
    assert all(bool((other == 7).all()) for other in others)
