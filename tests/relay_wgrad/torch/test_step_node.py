"""A backward pass as a node of autograd in C++ does what `torch.autograd.Function` does."""

from __future__ import annotations

import gc
import random
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt
from relay_wgrad.torch import host_library, step_node
from relay_wgrad.torch.several import Copies
from relay_wgrad.torch.step_node import Backward, Cuts, is_recorded

MODIFIED = "modified by an inplace operation"
TWICE = "backward through the graph a second time"
Function = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[Any]]


def product(saved: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> list[Any]:
    """Of sum(x·x·w), twice as second output."""
    x, w = saved
    scale = gradients[0] + 2 * gradients[1]
    return [2 * x * w * scale, x * x * scale]


def by_library(x: Any, w: Any, backward: Function = product) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        first = (x * x * w).sum()
        second = first * 2
    function = lambda saved, *given: (tuple(backward(saved, given)), None)  # noqa: E731
    assert is_recorded(Backward("ProductBackward", function, 1), (x, w), (x, w), (first, second))
    return first, second


def by_pytorch(x: Any, w: Any, backward: Function = product) -> tuple[torch.Tensor, torch.Tensor]:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            first = (x * x * w).sum()
            return first, first * 2

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            return tuple(backward(ctx.saved_tensors, given))

    found: tuple[torch.Tensor, torch.Tensor] = Product.apply(x, w)
    return found


WAYS = (by_library, by_pytorch)


def _use(way: Any, seed: int) -> list[Any]:
    """What callers do, and what they see of it."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    leaves = [torch.randn(3, dtype=torch.float64, generator=generator) for _ in range(2)]
    for leaf in leaves:
        leaf.requires_grad_(draw.random() < 0.8)
    seen: list[Any] = []
    hooked = draw.random() < 0.3

    def threefold(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(gradient.clone())
        return gradient * 3

    for turn in range(12):
        operands = [x * 2 if draw.random() < 0.3 else x for x in leaves]
        for x in operands:
            if hooked and x.requires_grad:
                x.register_hook(threefold)
        what = draw.choice(["usual", "twice", "one", "grad", "changed", "no_grad", "kept", "add"])
        with torch.no_grad() if what == "no_grad" else torch.enable_grad():
            first, second = way(*operands)
        seen += [first.detach(), first.requires_grad, second.is_leaf]
        if not first.requires_grad:
            continue
        seen += [len(first.grad_fn.next_functions), first.grad_fn is not None]
        if what == "changed":
            with torch.no_grad():
                operands[0].add_(1)
        total = first * 3 if what == "one" else first + second * (turn + 1)
        again = what in ("twice", "kept")
        try:
            if what == "grad":
                seen += torch.autograd.grad(total, [x for x in leaves if x.requires_grad][:1])
            else:
                total.backward(retain_graph=again)
            if what == "twice":
                total.backward()
            if what == "add":
                total.backward()
        except RuntimeError as error:
            seen.append([word in str(error) for word in (MODIFIED, TWICE)])
        seen += [None if x.grad is None else x.grad.clone() for x in leaves]
        if draw.random() < 0.5:
            for x in leaves:
                x.grad = None
    return seen


@pytest.mark.parametrize("seed", range(30))
def test_any_use(seed: int) -> None:
    ours, theirs = (_use(way, seed) for way in WAYS)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
        else:
            assert one == other


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    x, w = (torch.arange(1.0, 4, dtype=torch.float64) + i for i in range(2))
    return x.requires_grad_(), w.requires_grad_()


class OwnError(Exception):
    """Of a user's."""


@pytest.mark.parametrize("way", WAYS)
def test_an_error_keeps_its_class(way: Any) -> None:
    def fails(*_: Any) -> Any:
        raise OwnError("of mine")

    first, _ = way(*operands(), fails)
    with pytest.raises(OwnError, match="of mine"):
        first.backward()


@pytest.mark.parametrize("way", WAYS)
def test_wrong_gradients_are_refused(way: Any) -> None:
    for wrong in ([torch.ones(3)], [torch.ones(3)] * 3, [torch.ones(2, 2)] * 2):
        first, _ = way(*operands(), lambda *_, wrong=wrong: wrong)
        with pytest.raises(RuntimeError):
            first.backward()


def test_what_is_no_tensor_is_refused() -> None:
    x, w = operands()
    backward = Backward("Own", lambda *_: None, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected tensors, got int"):
        is_recorded(backward, (x, 3), (w,), (torch.zeros(()),))
    out = torch.zeros(())
    assert is_recorded(backward, (x,), (w,), (out,))
    with pytest.raises(RuntimeError, match="Own: no pair"):
        out.backward()


def test_tensors_of_inference_mode_are_refused() -> None:
    _, w = operands()
    with torch.inference_mode():
        x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        by_library(x, w)


def test_hooks_of_saved_tensors_are_pytorchs() -> None:
    x, w = operands()
    backward = Backward("Own", lambda *_: None, 1)  # type: ignore[arg-type]
    out = torch.zeros(())
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert not is_recorded(backward, (x,), (w,), (out,))
    assert not out.requires_grad


def test_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_node, "functions", lambda: None)
    x, w = operands()
    assert not is_recorded(Backward("Own", lambda *_: None, 1), (x,), (w,), ())  # type: ignore[arg-type]


@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_saved_is_given_up(backwards: bool) -> None:
    x, w = operands()
    saved, held = torch.ones(3), torch.ones(2)

    def backward(saved: Any, gradient: Any, held: Any = held) -> Any:
        return (torch.ones(3, dtype=torch.float64),), None

    out = torch.zeros((), dtype=torch.float64)
    assert is_recorded(Backward("Own", backward, 1), (saved, w), (x,), (out,))
    kept = [weakref.ref(each) for each in (saved, held, backward)]
    del saved, held, backward
    assert all(ref() is not None for ref in kept)
    if backwards:
        out.backward()
    else:
        del out
    assert [ref() for ref in kept] == [None] * 3


def test_anomalies_name_the_function() -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("here")

    with torch.autograd.set_detect_anomaly(True):
        first, _ = by_library(*operands(), fails)
    with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="here"):
            first.backward()
    assert any("Error detected in ProductBackward" in str(each.message) for each in said)


def test_threads() -> None:
    """Each with backward passes of its own, and of one graph."""
    x, w = operands()
    shared, _ = by_library(x, w)
    errors = []

    def run() -> None:
        try:
            for _ in range(50):
                first, _ = by_library(x, w)
                torch.autograd.grad(first, (x, w))
                torch.autograd.grad(shared, (x, w), retain_graph=True)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# ---- gradients that are cut out of few tensors ---------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_cuts(seed: int) -> None:
    """Each is a tensor of its own, of sizes, strides and numbers of what was copied."""
    draw = random.Random(seed)
    given = {}
    for i in range(draw.randrange(1, 9)):
        sizes = [draw.choice((0, 1, 2, 3)) for _ in range(draw.randrange(5))]
        made = torch.randn(sizes, dtype=draw.choice((torch.float32, torch.float64)))
        given[i] = made.movedim(0, -1) if made.dim() > 1 and draw.random() < 0.4 else made
    copies = Copies(given)
    copies.gather()
    order = [*given]
    draw.shuffle(order)
    turned = [i for i in order if given[i].dim() > 2 and draw.random() < 0.5]
    first, parameters, wanted = torch.ones(2), [torch.zeros(2, requires_grad=True)], []
    for i in order:
        wanted.append(given[i].movedim(-1, 1) if i in turned else given[i])
        parameters.append(torch.zeros_like(wanted[-1]).requires_grad_())
    cuts = Cuts(order, 1, turned)

    def backward(saved: Any, gradient: Any) -> Any:
        return (first, *copies.blocks()), cuts.of(copies)

    out = torch.zeros(())
    assert is_recorded(Backward("Own", backward, 1), (), parameters, (out,))
    found = torch.autograd.grad(out, parameters)
    assert torch.equal(found[0], first)
    for one, want in zip(found[1:], wanted, strict=True):
        assert torch.equal(one, want)
        assert one.stride() == want.stride() or 1 in want.shape or not want.numel()
        assert not one._is_view()
    for one in found[1:]:
        before = [x.clone() for x in found]
        versions = [x._version for x in found]
        one.fill_(7)
        for a, b, version in zip(found, before, versions, strict=True):
            assert torch.equal(a, b) or a is one
            assert a._version == version + (a is one)


# ---- steps ---------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.loss: Any = None

    def forward(self, x: Any) -> Any:
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


@pytest.mark.parametrize("pieces", [0, (1, 1)])
def test_a_module_that_holds_its_loss_is_given_up(registered: None, pieces: Any) -> None:
    """No collector of garbage looks into a node, which therefore holds nothing of the module."""
    module = Net()
    step = rt.TrainingStep(module, torch.zeros(2, 2, 5, 5), piece_bytes=pieces)
    module.loss = step(torch.randn(2, 2, 5, 5)).sum()
    assert module.loss.grad_fn.next_functions[0][0].name() == "TrainingStepBackward"
    kept = weakref.ref(module)
    del module, step
    gc.collect()
    assert kept() is None


# ---- the library ---------------------------------------------------------------------------------


def _wait(done: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    return done()


def test_who_looks_often_gets_a_library() -> None:
    library = host_library.Library()
    for _ in range(host_library.LOOKS):
        library.wanted()
    assert library._thread is None
    library.wanted()
    assert _wait(lambda: library.found is not None)
    assert isinstance(library.found, host_library.Functions)


def test_what_cannot_be_built_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_library, "source", lambda: "no C++")
    library = host_library.Library()
    library.begin()
    assert _wait(lambda: library.found is not None)
    assert "the compiler failed" in str(library.found)
    monkeypatch.setattr(host_library.shared, "found", library.found)
    assert host_library.functions() is None
    assert "the compiler failed" in host_library.reason()


def test_headers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(host_library, "folders", lambda: (tmp_path, tmp_path))
    assert "Python.h: not there" in str(host_library.Library().built())


def test_a_build_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_library, "source", lambda: '#include "/dev/zero"\n')  # forever
    library = host_library.Library()
    library.begin()
    assert _wait(lambda: library._compiler is not None)
    assert library._thread is not None
    library._stop(library._thread)
    assert not library._thread.is_alive()
    assert isinstance(library.found, str)
