"""Calls repeated as a graph: nobody sees a difference, whatever is kept and wherever it lies.

The lane here has no device: what it captured it does again into the same memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import tvm

from relay_wgrad.torch import replayed
from relay_wgrad.torch.replayed import LATER, MISSES, TRIES, WARM, Replayed


class Lane:
    """Captures by doing a function's work again."""

    def __init__(self, fails: int = 0) -> None:
        self.captures, self.launches, self.fails = 0, 0, fails

    def done(self, function: Callable[[], Any]) -> Any:
        return function()

    def captured(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        self.captures += 1
        if self.captures <= self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        results = function()
        for result in results:
            torch.from_dlpack(result).fill_(-1)  # no work has been done

        def launch() -> None:
            self.launches += 1
            for old, new in zip(results, function(), strict=True):
                torch.from_dlpack(old).copy_(torch.from_dlpack(new))

        return results, launch


def function(*args: Any) -> list[torch.Tensor]:
    """Of three tensors: two results and a number."""
    x, w, s = (torch.from_dlpack(a) if not isinstance(a, torch.Tensor) else a for a in args)
    return [x * w + s, x - w, (x * s).sum().reshape(())]


def raw(*args: Any) -> list[Any]:
    return [tvm.runtime.tensor(t.numpy()) for t in function(*args)]


def plain(args: Any) -> list[torch.Tensor]:
    return function(*args)


def made(late: bool = False, fails: int = 0) -> tuple[Replayed, Lane, list[str]]:
    lane, told = Lane(fails), list[str]()
    return Replayed(plain, raw, lane, told.append, late), lane, told


def drawn(rng: random.Random) -> torch.Tensor:
    return torch.tensor([rng.random() for _ in range(6)]).reshape(2, 3)


@pytest.mark.parametrize("seed", range(20))
def test_any_use(seed: int) -> None:
    """Operands that stay, move, or are written in place; results kept for any time, or changed."""
    rng = random.Random(seed)
    repeated, lane, _ = made(late=seed % 2 == 1)
    w, x, s = drawn(rng), drawn(rng), torch.tensor(0.5)
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    likely = rng.choice((0.0, 0.05, 0.4))
    for _ in range(60):
        if rng.random() < likely:
            w = drawn(rng)
        else:
            w.mul_(1.01)
        if rng.random() < rng.choice((0.0, 1.0)):
            x = drawn(rng)
        s = torch.tensor(rng.random())
        results, _ = repeated([x, w, s])
        wanted = function(x, w, s)
        for one, want in zip(results, wanted, strict=True):
            assert torch.equal(one, want)
        if rng.random() < 0.3:  # autograd, a list of losses, a view
            held += [(one, one.clone()) for one in results if rng.random() < 0.5]
            held += [(results[0].view(-1)[:2], wanted[0].view(-1)[:2].clone())]
        if rng.random() < 0.2:
            results[1].zero_()  # as of gradients, in place
            held = [pair for pair in held if pair[0].data_ptr() != results[1].data_ptr()]
        rng.shuffle(held)
        del results, one, held[rng.randrange(3) :]
        assert all(torch.equal(now, then) for now, then in held)
    if likely < 0.4:
        assert lane.launches > 5


def test_usual_steps_are_graphs() -> None:
    """Weights that stay, images that move, a loss that someone keeps."""
    repeated, lane, told = made()
    w, losses = torch.ones(2, 3), []
    for i in range(20):
        x = torch.full((2, 3), float(i))
        losses.append(repeated([x, w, torch.tensor(1.0)])[0][2])
        w += 1
    assert (lane.captures, lane.launches, told) == (1, 20 - WARM, [])
    assert losses[7] == 7 * 6


def test_weights_elsewhere() -> None:
    """A model that was moved: after some calls it is captured anew, and then copied."""
    repeated, lane, _ = made()
    x, s = torch.ones(2, 3), torch.tensor(2.0)
    for i in range(30):
        if i == 10:
            w = torch.zeros(2, 3)
        elif i == 0:
            w = torch.ones(2, 3)
        assert torch.equal(repeated([x, w, s])[0][0], x * w + s)
    assert (lane.captures, lane.launches) == (2, 30 - WARM - MISSES - 1)


@pytest.mark.parametrize("late", [False, True])
def test_failures(late: bool) -> None:
    """The reason is told once, and calls go on as they were."""
    repeated, lane, told = made(late, fails=100)
    w, s = torch.ones(2, 3), torch.tensor(2.0)
    for _ in range(20):
        assert torch.equal(repeated([w, w, s])[0][0], w * w + s)
    assert not repeated.is_graph
    assert lane.captures == TRIES
    assert told == [
        "its calls are not one CUDA graph: operation not permitted when stream is capturing"
    ]


def test_a_backward_pass_waits_for_its_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not given gigabytes to copy because its forward pass was no graph yet."""
    monkeypatch.setattr(replayed, "MOST", 16)
    repeated, lane, told = made(late=True)
    w, s = torch.ones(2, 3), torch.tensor(2.0)
    for i in range(20):
        x = torch.ones(2, 3) if i < LATER + 2 else w
        keep = x  # noqa: F841
        assert torch.equal(repeated([x, w, s])[0][0], x * w + s)
    assert (lane.captures, told) == (1, [])
    assert repeated.is_graph


def test_without_a_lane() -> None:
    repeated = Replayed(plain, raw, None, lambda what: None)
    for _ in range(5):
        repeated([torch.ones(2, 3), torch.ones(2, 3), torch.tensor(1.0)])
    assert not repeated.is_graph
