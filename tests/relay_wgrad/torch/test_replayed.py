"""Calls repeated as a graph: nobody sees a difference, whatever is kept and wherever it lies.

The lane here has no device: what it captured it does again into the same memory.
"""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import relay_wgrad.torch as rt
from relay_wgrad.torch import compiler, depends, replayed
from relay_wgrad.torch.replayed import LATER, MISSES, TRIES, WARM, Replayed, Written
from relay_wgrad.training.compiled import Compiled
from tests.support.memory_plans import memory_is_kept
from tests.support.torch.lane import Lane, borrowed, on_lanes


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
        results = repeated([x, w, s]).results
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


@pytest.mark.parametrize("places", [2, 3])
def test_places_in_turn(places: int) -> None:
    """One of an operand that an allocator gives some places in turn is one of which few calls are
    the graph's, until it is copied."""
    repeated, lane, _ = made()
    x, s = torch.ones(2, 3), torch.tensor(2.0)
    weights = [torch.full((2, 3), float(i)) for i in range(places)]
    for i in range(60):
        w = weights[0 if i <= WARM else i % places]
        assert torch.equal(repeated([x, w, s])[0][0], x * w + s)
    assert lane.captures == 2
    assert lane.launches >= 60 - WARM - 3 * places * (MISSES + 1)


def test_a_few_calls_elsewhere() -> None:
    """Weights that are others in each twentieth call, as of an average of them, are not copied."""
    repeated, lane, _ = made()
    x, w, s, average = torch.ones(2, 3), torch.ones(2, 3), torch.tensor(2.0), torch.zeros(2, 3)
    for i in range(200):
        repeated([x, average if i % 20 == 19 else w, s])
    assert (lane.captures, lane.launches) == (1, 200 - WARM - 10)


@pytest.mark.parametrize("late", [0, 1])
def test_copies_that_lie_where_they_lay(late: int) -> None:
    """The gradient of a sum is one number everywhere, of which an allocator makes the dense one in
    the same place each time."""
    place, lane = torch.empty(2, 3), Lane()

    def prepared(given: Any) -> list[torch.Tensor]:
        return [x if x.is_contiguous() else place.copy_(x) for x in given]

    repeated = Replayed(plain, raw, lane, print, late, prepared)
    w, s = torch.ones(2, 3), torch.tensor(2.0)
    for i in range(30):
        x = torch.tensor(float(i)).expand(2, 3)
        assert torch.equal(repeated([x, w, s])[0][0], x * w + s)
    assert (lane.captures, lane.launches) == (1, 30 - (LATER if late else WARM))


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


def test_memory_of_their_own() -> None:
    """Kept results need not be looked after; of the others one tensor says who has them."""
    lane = Lane()
    repeated = Replayed(plain, raw, lane, print, own={0}, token=True)
    w, s, held = torch.ones(2, 3), torch.tensor(2.0), []
    for i in range(20):
        x = torch.full((2, 3), float(i))
        results, _, operands, token, *_ = repeated([w, x, s])
        assert torch.equal(operands[1], x)
        assert (token is not None) is (i >= WARM)
        held.append((results[0], w * x + s))
        del token
    assert lane.launches == 20 - WARM
    assert all(torch.equal(now, then) for now, then in held)
    tokens = [repeated([w, x, s]).token for _ in range(2)]
    assert lane.launches == 20 - WARM + 1  # the first of them is still somebody's
    assert tokens[1] is None


def test_operands_that_are_what_they_were() -> None:
    """Whoever says so by the last call's stamp spares the look at all that are not fresh; the stamp
    of another graph says nothing."""
    lane = Lane()
    repeated = Replayed(plain, raw, lane, print, own={0}, token=True, fresh=[1])
    w, s = torch.ones(2, 3), torch.tensor(2.0)
    images = [torch.full((2, 3), float(i)) for i in range(30)]
    stamps: list[object] = [None]
    for i, x in enumerate(images):
        if i == 15:
            w = torch.full((2, 3), 3.0)
        call = repeated([w, x, s], None if i == 15 else stamps[-1])
        assert torch.equal(call.results[0], w * x + s), i
        stamps.append(call.stamp)
        del call  # and its token
        if i == 10:  # a wrong word is believed
            wrong = repeated([torch.zeros(2, 3), x, s], stamps[-1])
            assert torch.equal(wrong.results[0], w * x + s)
            del wrong
            right = repeated([torch.zeros(2, 3), x, s])
            assert torch.equal(right.results[0], s.expand(2, 3))
            del right
            stamps.append(None)
    first, last = ({*stamps[a:b]} for a, b in ((WARM + 1, 11), (25, 31)))
    assert len(first) == len(last) == 1
    assert None not in first | last
    assert first != last


@pytest.mark.parametrize("refused", [False, True])
def test_what_is_written_into_operands(refused: bool) -> None:
    """A result, and a count, by the graph itself, where they lie; autograd sees that they changed.
    Elsewhere, or where the device has something against it, it is left to the caller."""
    lane, told = Lane(), list[str]()
    lane.refuses = refused
    repeated = Replayed(plain, raw, lane, told.append, own={0, 1}, token=True,
                        written=Written([0], [1], [3]))  # fmt: skip
    x, s = torch.arange(6.0).reshape(2, 3), torch.tensor(0.5)
    w, count = torch.ones(2, 3), torch.tensor(0)
    for i in range(30):
        if i == 15:
            w, count = w.clone(), count.clone()
        before, wanted = (w._version, count._version), x * w + s
        made = repeated([x, w, s, count])
        if not made.written:
            w.copy_(made.results[0])
            count.add_(1)
        assert torch.equal(w, wanted)
        assert torch.equal(made.results[0], wanted)
        assert int(count) == i + 1
        assert w._version > before[0]
        assert count._version > before[1]
        assert made.written is (not refused and WARM <= i < 15)
        del made  # and the token
    assert lane.launches > 20
    assert len(told) == (2 if refused else 0)


class Shares(Lane):
    """Of a function whose first result is its second operand."""

    def captured(self, function: Any, work: Any = None) -> Any:
        shared, made = function()

        def launch() -> None:
            torch.from_dlpack(made).copy_(torch.from_dlpack(function()[1]))

        return [shared, made], launch


def test_what_is_written_is_no_result_of_before() -> None:
    """A result that is an operand's memory is what it was before that is written."""

    def shares(*args: Any) -> list[Any]:
        return [args[1], raw(*args)[0]]

    repeated = Replayed(lambda args: [args[1].clone(), function(*args)[0]], shares, Shares(), print,
                        own={0, 1}, token=True, written=Written([1], [1], []))  # fmt: skip
    w, x, s = torch.ones(2, 3), torch.full((2, 3), 2.0), torch.tensor(0.5)
    for _ in range(8):
        before, made = w.clone(), repeated([x, w, s])
        assert torch.equal(made.results[0], before)
        assert not made.written
        w.copy_(made.results[1])
        del made
    assert repeated.is_graph


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        x = nn.functional.dropout(torch.relu(self.norm(self.conv(x))), 0.0)
        return self.head(x.mean((2, 3)))


def _grads(module: Any) -> list[torch.Tensor]:
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def _loop(module: Any, seed: int, again: bool) -> list[torch.Tensor]:
    """What a loop may do: accumulate, keep, go back twice, two forward passes before a backward
    one, change outputs and gradients in place, look without gradients, move parameters, keep some
    of what the backward pass reads elsewhere."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    images = torch.empty(4, 2, 5, 5)
    seen, held = [], []

    def forward() -> Any:
        fresh = torch.randn(images.shape, generator=generator)
        return module(images.copy_(fresh) if what != "two" and rng.random() < 0.5 else fresh)

    elsewhere = saved_tensors_hooks(lambda x: x.clone() if x.dim() == 4 else x, lambda x: x)
    other_things = ["twice", "two", "kept", "in place", "eval", "cleared", "elsewhere"]
    for turn in range(28):
        what = rng.choice(["plain", "plain", *other_things])
        with elsewhere if what == "elsewhere" else nullcontext():
            out = forward()
        seen.append(out.detach().clone())
        loss = out.square().sum()
        if what in ("two", "elsewhere"):
            other = forward().sum()
            loss = loss + 2 * other
        if what == "twice" and again:
            loss.backward(retain_graph=True)
        if what == "kept":
            held.append((out, out.detach().clone()))
        loss.backward()
        if what == "in place":
            out.detach().zero_()
            module.head.weight.grad.mul_(2)
        seen += _grads(module)
        if what == "eval":
            module.eval()
            with torch.no_grad():
                seen.append(forward().clone())
            module.train()
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(p.grad, alpha=1e-3)
                if what == "cleared":
                    p.grad = None
                elif turn % 3 == 0:
                    p.grad.zero_()
        if turn == 15:
            module.head.weight = nn.Parameter(module.head.weight.detach().clone())
        del held[rng.randrange(3) :]
    assert all(torch.equal(now, then) for now, then in held)
    return [*seen, *module.buffers()]


def _step(module: nn.Module, graphs: bool) -> Any:
    return rt.TrainingStep(module, torch.zeros(4, 2, 5, 5), graphs=graphs)


def _pieces(module: nn.Module, graphs: bool) -> Any:
    return rt.TrainingStep(module, torch.zeros(4, 2, 5, 5), graphs=graphs, piece_bytes=(1, 1))


def _compiled(module: nn.Module, graphs: bool) -> Any:
    return torch.compile(module, backend=compiler.backend, options={"graphs": graphs})


@pytest.fixture
def lanes(registered: None, monkeypatch: pytest.MonkeyPatch) -> list[Lane]:
    return on_lanes(monkeypatch)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[Any, Any]]:
    """Parts of a step share memory, as on a GPU."""
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    with memory_is_kept(monkeypatch) as made:
        monkeypatch.setattr(Lane, "kept", made)
        yield made


class Deep(Net):
    """Whose backward part has more to write than its forward part leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.conv(x)))
        for conv in self.more:
            x = x + torch.nn.functional.silu(conv(x))
        return self.head(nn.functional.avg_pool2d(x, 2).mean((2, 3)))


@pytest.mark.share(9)
@pytest.mark.parametrize("way", [_step, _pieces])
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_loops_in_one_memory(
    way: Any, graphs: bool, seed: int, lanes: list[Lane], joined: dict[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What the parts write over of each other's memory nobody misses: bit for bit."""
    runs = []
    for shares in (True, False):
        if not shares:
            monkeypatch.setattr(Compiled, "joined", lambda _, names: [None] * len(names))
        torch.manual_seed(seed)
        step = way(Deep(), graphs)
        (program,) = (program for _, program in step._programs)
        assert (program.backward.last is not program.backward.functions) is shares
        runs.append(_loop(step, seed, again=True))
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.share(5)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("way", [_step, _pieces, _compiled])
def test_each_part_is_a_graph(
    way: Any, last: bool, lanes: list[Lane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a usual loop each forward pass after the first ones, and in the end the backward passes,
    one piece after another: one whose operand happened to lie at one place some calls long is
    captured again.  Where an allocator puts them is chance, so a few calls may miss."""
    monkeypatch.setattr(replayed, "tvm_tensor", borrowed)
    torch._dynamo.reset()
    module, order = Net(), torch.channels_last if last else torch.contiguous_format
    step = way(module.to(memory_format=order), True)
    launches = []
    for _ in range(40):
        module.zero_grad()
        out = step(torch.randn(4, 2, 5, 5).contiguous(memory_format=order))
        loss = out.square().sum()
        loss.backward()
        launches.append([lane.launches for lane in lanes if lane.captures])
    # Of pieces one for each kernel that makes gradients: a linear layer's are made by one or two.
    assert len(launches[-1]) in ((4, 5) if way is _pieces else (2,))
    assert max(launches[-1]) == 40 - WARM
    assert min(now - then for now, then in zip(launches[-1], launches[-13], strict=True)) >= 6


@pytest.mark.share(5)  # a seed each way
@pytest.mark.parametrize("way", [_step, _pieces, _compiled])
@pytest.mark.parametrize("seed", range(4))
def test_loops(way: Any, seed: int, lanes: list[Lane]) -> None:
    """A step whose parts are graphs does what one whose parts are not does, bit for bit."""
    runs = []
    for graphs in (True, False):
        torch.manual_seed(seed)
        torch._dynamo.reset()
        # PyTorch's compiled functions go back once.
        runs.append(_loop(way(Net(), graphs), seed, again=way is not _compiled))
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)
    assert sum(lane.launches for lane in lanes) > 12


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.norm(self.first(x))))


MOVES: list[Callable[[Square], Any]] = [
    lambda m: setattr(m.last.weight, "data", m.last.weight.data.clone()),
    lambda m: setattr(m.last.weight, "data", m.last.weight.data.t()),  # where it lies
    lambda m: setattr(m.first.weight, "data", torch._neg_view(m.first.weight.data)),
    lambda m: setattr(m.norm.running_var, "data", m.norm.running_var.data + 1),
    lambda m: setattr(m.norm, "running_mean", torch.ones(4)),
    lambda m: setattr(m.first, "weight", nn.Parameter(torch.ones(4, 4))),
    lambda m: setattr(m.norm.num_batches_tracked, "data", torch.tensor(7)),
]


@pytest.mark.share(2)
@pytest.mark.parametrize("watched", [True, False])
def test_what_lies_elsewhere_between_steps(
    watched: bool, lanes: list[Lane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters and buffers that are not looked at one by one in a usual step."""
    if not watched:
        monkeypatch.setattr(depends, "watch", lambda dictionaries: None)
    module, x = Square(), torch.randn(8, 4)
    step = rt.TrainingStep(module, x)
    for move in MOVES:
        for i in range(14):
            if i == 10:
                assert step.captured
                move(module)
            twin = copy.deepcopy(module)
            outs = []
            for model in (step, twin):
                model.zero_grad()
                outs.append(model(x))
                outs[-1].square().sum().backward()
            torch.testing.assert_close(*outs)
            torch.testing.assert_close(_grads(step), _grads(twin))
            torch.testing.assert_close([*module.buffers()], [*twin.buffers()])
    assert len(step._programs) == 1
    assert sum(lane.launches for lane in lanes) > 60


@pytest.mark.longer("hundreds of steps; on a GPU 2,000 are looked at")
@pytest.mark.parametrize("way", [_step, _pieces])
def test_many_steps_hold_no_more_than_few(way: Any, lanes: list[Lane]) -> None:
    """Tensors, and Python's memory, of graphs, and of calls that are none."""
    module, held = Net(), []
    step, kept = way(module, True), list[torch.Tensor]()
    for i in range(400):
        module.zero_grad()
        loss = step(torch.randn(4, 2, 5, 5)).square().mean()
        if i % 10 == 9:  # somebody has the forward pass before
            loss = loss + step(torch.randn(4, 2, 5, 5)).mean()
        loss.backward(retain_graph=i % 10 == 5)
        kept = [loss]
        if i % 100 == 99:
            gc.collect()
            tensors = sum(isinstance(x, torch.Tensor) for x in gc.get_objects())
            held.append((tensors, len(gc.get_objects())))
    assert step.captured
    assert kept
    assert held[3][0] <= held[1][0], held
    assert held[3][1] <= held[1][1] + 20, held


def test_without_a_lane() -> None:
    repeated = Replayed(plain, raw, None, lambda what: None)
    for _ in range(5):
        repeated([torch.ones(2, 3), torch.ones(2, 3), torch.tensor(1.0)])
    assert not repeated.is_graph
