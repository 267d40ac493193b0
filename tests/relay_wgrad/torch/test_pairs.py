"""Forward and backward graphs that are compiled as a whole, beside PyTorch as it runs them."""

from __future__ import annotations

import contextlib
import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from relay_wgrad.torch import compiler, joint_program, pairs, replayed
from relay_wgrad.torch.reports import CompiledGraph, compiled_graphs
from tests.support.memory_plans import memory_is_kept
from tests.support.torch.lane import Lane, borrowed, on_lanes
from tests.support.torch.pair_uses import USES, at_once, gradients

pytestmark = [
    pytest.mark.usefixtures("registered", "fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # Dynamo looks at it
]

F = nn.functional
APART = "the two passes are compiled apart"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 5),
    ).double()  # fmt: skip


def images(count: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 6, 6, dtype=torch.float64, generator=generator)


def seeded(seed: int) -> torch.Tensor:
    return images(seed=seed)


def compiled(what: Any, **given: Any) -> Any:
    return torch.compile(what, backend=compiler.backend, fullgraph=True, **given)


def graphs() -> list[CompiledGraph]:
    return compiled_graphs()[-2:]


def notes() -> list[str]:
    return [note for graph in graphs() for note in graph.notes]


def same(ours: Any, theirs: Any) -> None:
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11), i


@pytest.fixture(params=["kernels", "graphs", "one block"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Kernel by kernel, and as graphs of a lane without a device, also where both passes have one
    block of memory as on a GPU."""
    with contextlib.ExitStack() as stack:
        if request.param != "kernels":
            on_lanes(monkeypatch)
            monkeypatch.setattr(replayed, "tvm_tensor", borrowed)
        if request.param == "one block":
            monkeypatch.setattr(Lane, "kept", stack.enter_context(memory_is_kept(monkeypatch)))
        yield request.param


@pytest.mark.share(3)
def test_uses(both: str) -> None:
    """One compiled model, used in each way in turn, more than once."""
    module = net()
    twin = copy.deepcopy(module)
    before = len(compiled_graphs())
    step = compiled(module)
    for turn in range(4):
        for use in USES:
            ours, theirs = use(module, step, seeded), use(twin, twin, seeded)
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                assert torch.allclose(a, b, rtol=1e-9, atol=1e-10), (turn, use.__name__, i)
    same(module.state_dict().values(), twin.state_dict().values())
    assert not any(APART in note for graph in compiled_graphs()[-6:] for note in graph.notes)
    for _ in range(30):
        at_once(module, step, seeded)
    pair = compiled_graphs()[before : before + 2]  # others are for images that need a gradient
    assert [graph.captured for graph in pair] == [both != "kernels"] * 2


@pytest.mark.share(3)
def test_sizes_that_vary(both: str) -> None:
    """Each size has a program; a backward pass has that of its own forward pass."""
    module = net()[:2]
    twin = copy.deepcopy(module)
    step = compiled(module, dynamic=True)
    results: list[list[torch.Tensor]] = []
    for of, run in ((module, step), (twin, twin)):
        found = []
        for _ in range(4):
            losses = [run(images(count, count)).square().sum() for count in (2, 3, 5)]
            for i in (2, 0, 1):
                losses[i].backward()
                found += gradients(of)
            with saved_tensors_hooks(torch.clone, torch.clone):
                losses = [run(images(count, count)).square().sum() for count in (3, 2)]
            (losses[1] * losses[0]).backward()
            found += gradients(of)
        results.append(found)
    same(*results)
    assert [graph.sizes for graph in graphs()] == [3, 3]
    assert notes() == []


# ---- what is changed in place between the passes -------------------------------------------------


def scaled(x: Any, w: Any) -> Any:
    return (x @ w).exp(), (x @ w).sum(1)


@pytest.mark.parametrize("what", ["operand", "result"])
def test_what_the_backward_pass_reads_may_not_change(what: str) -> None:
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    first, _ = compiled(scaled)(x, w)
    with torch.no_grad():
        (w if what == "operand" else first.detach()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


def test_what_it_does_not_read_may_change() -> None:
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    first, second = compiled(scaled)(x, w)
    (want,) = torch.autograd.grad((scaled(x, w)[0].sum() + scaled(x, w)[1].sum()), x)
    with torch.no_grad():
        second.detach().add_(1)
        x.add_(1)
    (first.sum() + second.sum()).backward()
    assert torch.allclose(x.grad, want, rtol=1e-4)


def test_results_are_the_callers() -> None:
    """What is given may be changed, by which nothing that is kept changes."""

    def function(x: Any) -> Any:
        y = x.sin()
        return y, y.cos(), y.clone()

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    first, second, third = compiled(function)(x)
    with torch.no_grad():
        second.detach().zero_()
        third.detach().zero_()
    want = function(x)
    (dx,) = torch.autograd.grad(first.sum() + second.sum(), x)
    assert torch.allclose(dx, torch.autograd.grad(want[0].sum() + want[1].sum(), x)[0])


def test_what_is_kept_is_given_up() -> None:
    """With the result, and behind the backward pass."""
    step = compiled(net())
    gc.collect()
    for backwards in (False, True):
        loss = step(images()).sum()
        (carrier,) = (
            x for x in gc.get_objects() if type(x) is torch.Tensor and hasattr(x, pairs.ATTRIBUTE)
        )
        kept = [weakref.ref(x) for x in getattr(carrier, pairs.ATTRIBUTE).hidden]
        assert kept
        del carrier
        if backwards:
            loss.backward()
        else:
            del loss
        gc.collect()
        assert all(ref() is None for ref in kept)


# ---- PyTorch's parts of a graph ------------------------------------------------------------------


class OwnBackward(torch.autograd.Function):
    """A gradient by an operator that is not taken."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.sin()
        ctx.save_for_backward(x, y)
        return y * 2

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, y = ctx.saved_tensors
        return torch.special.bessel_j0(x) * dy * y


class Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy * torch.rand_like(dy)


def test_a_backward_pass_that_is_not_taken() -> None:
    """The forward pass is ours all the same, whoever keeps what PyTorch's backward pass reads."""
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def function(x: Any) -> Any:
        return OwnBackward.apply(x.cos()) * len(x)

    step = compiled(function, dynamic=True)
    (want,) = torch.autograd.grad(function(x).sum(), x)
    with pytest.warns(UserWarning, match="PyTorch runs this: .*bessel_j0"):
        found = [torch.autograd.grad(step(x).sum(), x)[0]]
    with saved_tensors_hooks(torch.clone, torch.clone):
        y = step(x)
    found += torch.autograd.grad(y.sum(), x, retain_graph=True)
    found += torch.autograd.grad(y.sum(), x)
    for dx in found:
        assert torch.allclose(dx, want)
    forward, backward = graphs()
    assert (forward.reason, "bessel_j0" in backward.reason) == ("", True)
    assert all(graph.notes[0].startswith(APART) for graph in (forward, backward))


def drawing(x: Any) -> Any:
    return Drawn.apply(x)


def recomputing(x: Any) -> Any:
    return checkpoint(lambda x: (x.sin() * 2).exp(), x, use_reentrant=False)


@pytest.mark.parametrize(
    ("function", "word"), [(drawing, "random numbers"), (recomputing, "recomputed|within it")]
)
def test_what_is_compiled_apart(function: Callable[..., Any], word: str) -> None:
    import re

    x = torch.randn(64, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (function, compiled(function)):
        torch.manual_seed(0)
        y = run(x)
        torch.manual_seed(1)
        found.append([y, *torch.autograd.grad(y.sum(), x)])
    same(*found)
    assert all(re.search(f"{APART}: .*({word})", " ".join(graph.notes)) for graph in graphs())


def test_a_memory_budget_is_pytorchs() -> None:
    module = net()[:3]
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        compiled(module)(images()).sum().backward()
    assert all("activation_memory_budget" in " ".join(graph.notes) for graph in graphs())


def test_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **given: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(joint_program, "one_device", fails)
    module = net()
    twin = copy.deepcopy(module)
    same(at_once(module, compiled(module), seeded), at_once(twin, twin, seeded))
    assert notes() == [f"{APART}: RuntimeError: no such kernel"] * 2
    assert [graph.sizes for graph in graphs()] == [1, 1]


def test_a_gradient_of_a_gradient_is_refused() -> None:
    x = images().requires_grad_()
    (dx,) = torch.autograd.grad(compiled(net())(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        dx.sum().backward()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_autograd(dynamic: bool) -> None:
    """Which has the backward graph itself, in a graph of its own."""
    import torch._dynamo.compiled_autograd as theirs

    module = net()
    twin = copy.deepcopy(module)
    step = compiled(module, dynamic=dynamic)
    context: Any = theirs._enable(torch.compile(backend="eager"))
    loss = step(images(4)).square().sum()
    if dynamic:
        with pytest.raises(RuntimeError, match="sizes that vary"), context:
            loss.backward()
        return
    with context:
        loss.backward()
    twin(images(4)).square().sum().backward()
    same(gradients(module), gradients(twin))


def test_a_copy_of_the_carrier_is_an_error() -> None:
    """Not wrong gradients."""
    pair = next(iter(pairs._pairs.values()), None)
    step = compiled(net())
    loss = step(images()).sum()
    pair = max(pairs._pairs.items())[1]
    given = [torch.ones(1)] * (pair.slots + 2)
    with pytest.raises(RuntimeError, match="has been lost"):
        pair.backward(*given, torch.ones(2, 5, dtype=torch.float64))
    loss.backward()


# ---- kinds of results ----------------------------------------------------------------------------


def views(x: Any, w: Any) -> Any:
    y = x @ w
    return y, y.t(), y[0], x


def twice(x: Any, w: Any) -> Any:
    y = (x @ w).relu()
    return y, y, y * 2


def of_one(x: Any, w: Any) -> Any:
    return (x * w.detach()).sum(), w.detach() * 2


def a_gradient_as_it_came(x: Any, w: Any) -> Any:
    return x + w, (x + 1) @ w


def numbers(x: Any, w: Any) -> Any:
    return x.shape[0] * 2, x @ w


def unused(x: Any, w: Any) -> Any:
    return (x * 2).exp(), w.detach().sum(0)


@pytest.mark.parametrize(
    "function", [views, twice, of_one, a_gradient_as_it_came, numbers, unused],
    ids=lambda f: f.__name__,
)  # fmt: skip
@pytest.mark.parametrize("dynamic", [False, True])
def test_results(function: Any, dynamic: bool) -> None:
    found = []
    for run in (function, compiled(function, dynamic=dynamic)):
        torch.manual_seed(0)
        x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        got = [y for y in run(x, w) if isinstance(y, torch.Tensor)]
        sum(y.sin().sum() for y in got if y.requires_grad).backward()
        found.append([*(y.detach() for y in got), x.grad, *([] if w.grad is None else [w.grad])])
    same(*found)


def test_frozen_parameters() -> None:
    module = net()
    module[0].weight.requires_grad_(False)
    module[5].bias.requires_grad_(False)
    twin = copy.deepcopy(module)
    same(at_once(module, compiled(module), seeded), at_once(twin, twin, seeded))
    assert notes() == []


def test_several_graphs() -> None:
    """Breaks between them; each has its two passes."""
    module = net()
    twin = copy.deepcopy(module)

    def broken(x: Any, of: nn.Module = module) -> Any:
        x = of[:3](x)
        torch._dynamo.graph_break()
        return of[3:](x)

    before = len(compiled_graphs())
    step = torch.compile(broken, backend=compiler.backend)
    same(at_once(module, step, seeded), at_once(twin, lambda x: broken(x, twin), seeded))
    made = compiled_graphs()[before:]
    assert [graph.sizes for graph in made] == [1] * 4
    assert [note for graph in made for note in graph.notes] == []


def test_autocast_and_channels_last() -> None:
    """A step in bfloat16, no further from float64 than twice eager mode's."""
    exact = net()[:4]
    x = images(4)
    found = []
    for kind in ("ours", "theirs"):
        module = copy.deepcopy(exact).float().to(memory_format=torch.channels_last)
        run = compiled(module) if kind == "ours" else module
        given = x.float().to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            y = run(given)
        y.float().square().sum().backward()
        assert y.is_contiguous(memory_format=torch.channels_last)
        found.append([y.detach(), *gradients(module)])
    y = exact(x)
    y.square().sum().backward()
    for ours, theirs, right in zip(*found, [y.detach(), *gradients(exact)], strict=True):
        far, usual = ((t.double() - right).norm() for t in (ours, theirs))
        assert far <= 2 * usual + 1e-2 * right.norm()
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
    assert notes() == []


class Gate(nn.Module):
    """What MobileNetV3 has: activations in place, and global pooling of what lies channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.gate = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.conv(x)), inplace=True)
        return torch.sigmoid(self.gate(F.adaptive_avg_pool2d(y, 1))) * y


@pytest.mark.longer_cases("True", why="numbers in float64 tell more")
@pytest.mark.parametrize("half", [False, True])
def test_a_gate(half: bool) -> None:
    """By views and without copies in the joint graph, so that what is taken together is found."""
    torch.manual_seed(0)
    exact = Gate().double()
    x = images(4)
    found = []
    for kind in ("ours", "theirs"):
        module = copy.deepcopy(exact).to(memory_format=torch.channels_last)
        module = module.float() if half else module
        run = compiled(module) if kind == "ours" else module
        given = x.to(dtype=module.conv.weight.dtype, memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = run(given)
        y.double().square().sum().backward()
        found.append([y.detach(), *gradients(module)])
    y = exact(x)
    y.square().sum().backward()
    right = [y.detach(), *gradients(exact)]
    for ours, theirs, wanted in zip(*found, right, strict=True):
        far, usual = ((t.double() - wanted).norm() for t in (ours, theirs))
        assert far <= (2 * usual + 1e-2 * wanted.norm() if half else 1e-9 * wanted.norm() + 1e-9)
    assert notes() == []
    joint = max(pairs._pairs.items())[1]._joint
    nodes = list(joint.graph.nodes)
    assert not [node for node in nodes if "as_strided" in str(node.target)]
    copies = [node for node in nodes if node.target is torch.ops.aten.clone.default]
    assert all(node.kwargs for node in copies)  # in another order
