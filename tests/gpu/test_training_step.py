"""`TrainingStep` on a device: PyTorch's loops, streams, precisions, memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as fn

import relay_wgrad.torch as rt
from tests.support.gpu.growth import grown, taken

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

SHAPE = (8, 3, 16, 16)


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.one = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, groups=width),
        )  # fmt: skip
        self.head = nn.Linear(width, 7)

    def forward(self, x: Any) -> Any:
        x = fn.max_pool2d(torch.relu(self.norm(self.stem(x))), 2)
        x = torch.relu(x + self.one(x))
        return self.head(x.mean((2, 3)))


def net() -> Net:
    torch.manual_seed(3)
    return Net().cuda()


def data(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    return torch.randn(SHAPE, dtype=dtype).cuda(), torch.randint(0, 7, SHAPE[:1]).cuda()


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)


_made: list[Any] = []


@pytest.fixture
def step() -> Any:
    if not _made:
        _made.append(rt.TrainingStep(net(), data()[0]))
    ours, twin = _made[0], net()
    ours.load_state_dict(twin.state_dict())
    for parameter in ours.parameters():
        parameter.grad = None
    return ours.train(), twin


def distance(got: Any, want: Any) -> float:
    pairs = [(a.detach(), b.detach()) for a, b in zip(got, want, strict=True)]
    over = sum((a.double() - b.double()).square().sum() for a, b in pairs)
    return float((over / sum(b.double().square().sum() for _, b in pairs)) ** 0.5)


def train(model: Any, optimizer: Any, scaler: Any = None, steps: int = 6) -> list[float]:
    """Updates of two accumulated batches, with clipped gradients."""
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        for j in range(2):
            x, labels = data(2 * i + j)
            with torch.autocast("cuda", dtype=torch.float16, enabled=scaler is not None):
                loss = fn.cross_entropy(model(x), labels) / 2
            (loss if scaler is None else scaler.scale(loss)).backward()
            losses.append(loss.item())
        if scaler is not None:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return losses


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_loops_equal_eager_ones(step: Any, name: str) -> None:
    ours, twin = step
    runs = []
    for model in (ours, twin):
        more = {"momentum": 0.9} if name == "SGD" else {}
        runs.append(train(model, getattr(torch.optim, name)(model.parameters(), 1e-2, **more)))
    assert ours.captured
    assert runs[0] == pytest.approx(runs[1], rel=1e-3)
    assert distance(ours.parameters(), twin.parameters()) < 1e-3
    assert torch.allclose(ours.norm.running_var, twin.norm.running_var, rtol=1e-3)
    assert int(ours.norm.num_batches_tracked) == 12


def test_scaled_half_precision(step: Any) -> None:
    """Under autocast and GradScaler, beside PyTorch's own error."""
    ours, twin = step
    exact = net()
    runs = []
    for model, scaler in ((exact, None), (ours, torch.amp.GradScaler()),
                          (twin, torch.amp.GradScaler())):  # fmt: skip
        runs.append(train(model, torch.optim.SGD(model.parameters(), 0.05), scaler))
    assert runs[1] == pytest.approx(runs[0], rel=2e-2)
    wanted = list(exact.parameters())
    theirs = distance(twin.parameters(), wanted)
    assert distance(ours.parameters(), wanted) < max(2 * theirs, 1e-3)
    assert not [p for p in ours.parameters() if p.grad.dtype != torch.float32]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_gradients_in_half_precision(step: Any, half: torch.dtype) -> None:
    ours, twin = step
    x, labels = data(1)
    exact = copy.deepcopy(twin).double()
    fn.cross_entropy(exact(x.double()), labels).backward()
    for model in (ours, twin):
        with torch.autocast("cuda", dtype=half):
            loss = fn.cross_entropy(model(x), labels)
        (loss * 1024).backward()
        for parameter in model.parameters():
            parameter.grad /= 1024
    wanted = [p.grad for p in exact.parameters()]
    errors = [distance([p.grad for p in m.parameters()], wanted) for m in (ours, twin)]
    assert errors[0] < max(2 * errors[1], 1e-3)


def test_streams_and_channels_last(step: Any) -> None:
    """A stream that waits for a busy one; nothing is computed before its operands are there."""
    ours, twin = step
    x, labels = data(1)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        y = (x * 2).contiguous(memory_format=torch.channels_last)
        loss = fn.cross_entropy(ours(y), labels)
        loss.backward()
        grads = [p.grad.clone() for p in ours.parameters()]
    side.synchronize()
    fn.cross_entropy(twin(x * 2), labels).backward()
    assert distance(grads, [p.grad for p in twin.parameters()]) < 1e-4


def test_gradients_are_ready_when_autograd_says(step: Any) -> None:
    """Many steps without waiting: parameters that an optimizer changes meanwhile."""
    ours, twin = step
    x, labels = data(1)
    for model in (ours, twin):
        optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
        for _ in range(30):
            optimizer.zero_grad(set_to_none=True)
            fn.cross_entropy(model(x), labels).backward()
            optimizer.step()
    assert distance(ours.parameters(), twin.parameters()) < 1e-3


def test_what_a_graph_does_itself(step: Any) -> None:
    """Statistics and counters are written once a pass, of which autograd knows, and gradients are
    nobody else's memory, however small."""
    ours, twin = step
    norm, held = ours.norm, []
    for i in range(24):
        x, labels = data(i)
        before = norm.running_mean._version, norm.num_batches_tracked._version
        for model in (ours, twin):
            model.zero_grad()
            fn.cross_entropy(model(x), labels).backward()
        assert norm.running_mean._version > before[0]
        assert norm.num_batches_tracked._version > before[1]
        assert int(norm.num_batches_tracked) == i + 1
        held.append([(p.grad, p.grad.clone()) for p in ours.parameters()])
        if i == 10:  # buffers elsewhere
            assert ours.captured
            norm.running_mean.data = norm.running_mean.clone()
            norm.num_batches_tracked.data = norm.num_batches_tracked.clone()
    assert ours.captured
    assert not [note for note in ours.notes if "apart" in note]
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(norm, name), getattr(twin.norm, name), rtol=1e-3, atol=1e-5)
    assert all(torch.equal(now, then) for pairs in held for now, then in pairs)


def test_passes_in_any_order(step: Any) -> None:
    """Backward passes that come again, and forward passes before another's backward pass, though
    both parts write over each other's memory."""
    ours, twin = step
    for i in range(25):
        kind, (x, labels), (other, _) = i % 4, data(i), data(i + 50)
        for model in (ours, twin):
            model.zero_grad()
            loss = fn.cross_entropy(model(x), labels)
            if kind == 1:
                loss.backward(retain_graph=True)
            if kind == 2:
                loss = loss + 2 * fn.cross_entropy(model(other), labels)
            if kind == 3:
                with torch.no_grad():
                    model(other)
            loss.backward()
        grads = ([p.grad for p in model.parameters()] for model in (ours, twin))
        assert distance(*grads) < 1e-3, (i, kind)
    (program,) = (p for _, p in ours._programs if p.wrt and p is ours._programs[-1][1])
    assert program.backward.last is not program.backward.functions
    assert ours.captured


def test_memory_stays(step: Any) -> None:
    """What a pass keeps goes when its backward pass is over, though the loss stays."""
    ours, _ = step
    x, labels = data(1)
    free = []
    for _ in range(8):
        loss = fn.cross_entropy(ours(x), labels)
        loss.backward()
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[-1] >= free[2] - 2**21  # other processes aside


def test_two_thousand_steps_take_no_more_memory(step: Any) -> None:
    """Of the device beside what 200 have, and of the process some of Python's own."""
    ours, _ = step
    batches = [data(seed) for seed in range(4)]
    optimizer = torch.optim.SGD(ours.parameters(), 1e-3, momentum=0.9, fused=True)
    found = []
    for count in (200, 1800):
        for i in range(count):
            optimizer.zero_grad()
            x, labels = batches[i % 4]
            fn.cross_entropy(ours(x), labels).backward()
            optimizer.step()
        found.append(taken())
    assert ours.captured
    assert grown(*found) == [], found


def test_evaluation_and_a_move(step: Any) -> None:
    ours, twin = step
    x, _ = data(1)
    with torch.no_grad():
        assert distance([ours.eval()(x)], [twin.eval()(x)]) < 1e-5
    clone = copy.deepcopy(ours).cpu()
    with torch.no_grad():
        assert distance([clone(x.cpu())], [twin(x).cpu()]) < 1e-5
        with pytest.raises(ValueError, match="one device"):
            clone(x)
