"""`TrainingStep(piece_bytes=…)`: gradients that come in pieces are those that come at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as fn

import relay_wgrad.torch as rt
from relay_wgrad.torch.backward_part import BackwardPart

pytestmark = pytest.mark.usefixtures("registered")

SHAPE, EACH = (4, 3, 6, 6), (64, 256)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head((x + torch.relu(self.inner(x))).mean((2, 3)))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def data(seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, generator=generator), torch.tensor([0, 4, 2, 1])


def step_of(piece_bytes: Any, **options: Any) -> Any:
    return rt.TrainingStep(net(), data()[0], piece_bytes=piece_bytes, **options)


_made: list[Any] = []


@pytest.fixture
def steps() -> Any:
    """(in pieces, in one), compiled once, with the same parameters."""
    if not _made:
        _made.extend(step_of(pieces) for pieces in (EACH, 0))
    for step in _made:
        step.load_state_dict(net().state_dict())
        step.zero_grad()
    return _made


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pieces that run, by number."""
    found, gradients = list[int](), BackwardPart.gradients

    def recorded(self: BackwardPart, number: int, *given: Any) -> Any:
        found.append(number)
        return gradients(self, number, *given)

    monkeypatch.setattr(BackwardPart, "gradients", recorded)
    return found


def gradients(step: Any) -> list[torch.Tensor]:
    return [p.grad.clone() for p in step.parameters()]


def equal(some: Any) -> None:
    for one, other in zip(*some, strict=True):
        assert torch.equal(one, other)


def test_bits(steps: Any, ran: list[int]) -> None:
    """Accumulated, by another gradient, twice through one graph."""
    found = []
    for step in steps:
        x, labels = data()
        for scale in (1.0, -3.0):
            (fn.cross_entropy(step(x), labels) * scale).backward()
        out = step(x)
        out.square().sum().backward(retain_graph=True)
        out.sin().sum().backward()
        found.append(gradients(step))
    equal(found)
    assert ran == [0, 1, 2] * 4 + [0] * 4


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [{"checkpoint": "auto"}, {"loss": "cross_entropy"}], ids=str)
def test_bits_with_options(options: dict[str, Any]) -> None:
    found = []
    for pieces in (EACH, 0):
        (x, labels), step = data(), step_of(pieces, **options)
        x.requires_grad_()
        loss = step(x, labels) if options.get("loss") else fn.cross_entropy(step(x), labels)
        loss.backward()
        found.append([*gradients(step), x.grad])
    equal(found)


@pytest.mark.longer("two more steps; bits of other ones stay")
def test_bits_under_autocast() -> None:
    found = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        steps = [step_of(pieces) for pieces in (EACH, 0)]
    for step in steps:
        x, labels = data()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = fn.cross_entropy(step(x), labels)
        loss.backward()
        found.append(gradients(step))
    equal(found)


def test_only_what_is_asked_runs(steps: Any, ran: list[int]) -> None:
    """A gradient of the head needs one piece, and what was kept for the others is there still."""
    step, whole = steps
    x, labels = data()
    loss = fn.cross_entropy(step(x), labels)
    (head,) = torch.autograd.grad(loss, [step.head.weight], retain_graph=True)
    assert ran == [0]
    (stem,) = torch.autograd.grad(loss, [step.stem.weight])
    assert ran == [0, 0, 1, 2]
    fn.cross_entropy(whole(x), labels).backward()
    assert torch.equal(head, whole.head.weight.grad)
    assert torch.equal(stem, whole.stem.weight.grad)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, [step.stem.weight])


@contextlib.contextmanager
def updated_at_once(step: Any) -> Iterator[None]:
    """Each parameter is updated as soon as its gradient is there, which is given up then."""

    def update(parameter: Any) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    hooks = [p.register_post_accumulate_grad_hook(update) for p in step.parameters()]
    yield
    for hook in hooks:
        hook.remove()


def test_updates_in_hooks(steps: Any) -> None:
    """No later piece reads a parameter whose gradient is there."""
    found = []
    for step in steps:
        with updated_at_once(step):
            for seed in range(3):
                x, labels = data(seed)
                fn.cross_entropy(step(x), labels).backward()
        found.append([p.detach().clone() for p in step.parameters()])
    equal(found)


def test_gradients_in_pieces_are_ones_own(steps: Any) -> None:
    """A hook may write a gradient in place while later pieces wait."""
    found = []
    for step in steps:
        hooks = [p.register_hook(lambda g: g.mul_(2)) for p in step.parameters()]
        x, labels = data()
        fn.cross_entropy(step(x), labels).backward()
        found.append(gradients(step))
        for hook in hooks:
            hook.remove()
    equal(found)


def test_what_is_changed_in_place_is_noticed(steps: Any) -> None:
    step, _ = steps
    out = step(data()[0])
    with torch.no_grad():
        step.inner.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(step(data()[0]).sum(), [step.stem.weight], create_graph=True)


@pytest.mark.parametrize("wrong", [1, (1,), (0, 4), 2.5, True, "auto", [1, 1]])
def test_wrong_sizes(wrong: Any) -> None:
    with pytest.raises(ValueError, match="piece_bytes must be None, 0 or two numbers of bytes"):
        rt.TrainingStep(nn.Linear(2, 2), torch.zeros(1, 2), piece_bytes=wrong)
