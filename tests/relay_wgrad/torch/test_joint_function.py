"""Both passes of a compiled graph as one function of autograd, and what goes AOTAutograd's way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt
from relay_wgrad.torch import compiler, joint_function, replayed
from tests.support.torch.lane import borrowed, on_lanes

pytestmark = [
    pytest.mark.usefixtures("registered", "fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # Dynamo looks at it
]

F = nn.functional
OURS, THEIRS = "PassesBackward", "CompiledFunctionBackward"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(36, 5),
    ).double()  # fmt: skip


X = torch.randn(2, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def compiled(what: Any, **given: Any) -> Any:
    return torch.compile(what, backend=compiler.backend, fullgraph=True, **given)


def behind(result: torch.Tensor) -> list[Any]:
    """The functions of autograd behind a result that are one of the two."""
    found, stack = list[Any](), [result.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node.name() in (OURS, THEIRS):
            found.append(node)
        stack += [] if node is None else [before for before, _ in node.next_functions]
    return found


def gradients(module: nn.Module) -> list[torch.Tensor]:
    found = [p.grad for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return found


def same(ours: Any, theirs: Any) -> None:
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11), i


def test_autograd_gets_what_requires_a_gradient() -> None:
    module = net()
    module[3].bias.requires_grad_(False)
    (function,) = behind(compiled(module)(X))
    assert function.name() == OURS
    reached = {node.variable for node, _ in function.next_functions if node is not None}
    assert reached == {p for p in module.parameters() if p.requires_grad}


# ---- AOTAutograd's way ---------------------------------------------------------------------------


def a_view_as_well(x: Any, w: Any) -> Any:
    y = x @ w
    return y, y.t()


def an_operand_as_well(x: Any, w: Any) -> Any:
    return (x @ w).exp(), x.view(9)


def written(x: Any, w: Any) -> Any:
    x = x * 1  # of a graph's own
    w.mul_(2)
    return ((x @ w).exp(),)


def a_size(x: Any, w: Any) -> Any:
    return (x @ w).exp(), x.shape[0] + 1


@pytest.mark.parametrize(
    ("function", "dynamic"),
    [(a_view_as_well, False), (an_operand_as_well, False), (written, False), (a_size, True)],
)
def test_what_wants_more(function: Callable[..., Any], dynamic: bool) -> None:
    found = []
    for run in (function, compiled(function, dynamic=dynamic)):
        torch.manual_seed(0)
        x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        got = [y for y in run(x, w * 1) if isinstance(y, torch.Tensor)]
        assert {node.name() for node in behind(got[0])} == (set() if run is function else {THEIRS})
        sum(y.sin().sum() for y in got).backward()
        found.append([*(y.detach() for y in got), x.grad, w.grad])
    same(*found)


def test_operands_of_one_memory() -> None:
    found = []
    for run in (F.linear, compiled(F.linear)):
        torch.manual_seed(0)
        both = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
        y = run(both[0], both[1])
        assert [node.name() for node in behind(y)] == ([] if run is F.linear else [THEIRS])
        y.sin().sum().backward()
        found.append([y.detach(), both.grad])
    same(*found)


def test_records_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later PyTorch may have something to do that none of ours would do."""
    monkeypatch.setattr(joint_function, "KNOWN", joint_function.KNOWN - {"tokens"})
    module = net()
    twin = copy.deepcopy(module)
    y = compiled(module)(X)
    assert [node.name() for node in behind(y)] == [THEIRS]
    y.square().sum().backward()
    twin(X).square().sum().backward()
    same(gradients(module), gradients(twin))


def test_hooks_of_saved_tensors() -> None:
    """One after another in one program, and each hook sees tensors alone."""
    module = net()
    twin, step = copy.deepcopy(module), compiled(module)
    for hooked in (False, True, False):
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, hooked=hooked, seen=seen: seen.append(x) or x.clone() if hooked else x,
            lambda x: x,
        ):
            y = step(X)
        assert bool(seen) == hooked
        y.square().sum().backward()
        twin(X).square().sum().backward()
        same(gradients(module), gradients(twin))
    assert [node.name() for node in behind(step(X))] == [OURS]


# ---- results and what comes back -----------------------------------------------------------------


def two(x: Any, w: Any) -> Any:
    y = (x @ w).tanh()
    return y.sum(1), y.exp(), y.detach().argmax(1)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_results_of_which_some_are_used(used: tuple[int, ...]) -> None:
    """The others' gradients are zeros; an integer has none."""
    found = []
    for run in (two, compiled(two)):
        torch.manual_seed(0)
        x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        got = run(x, w)
        assert [y.requires_grad for y in got] == [True, True, False]
        if run is not two:
            assert [node.name() for node in behind(got[1])] == [OURS]
        sum(got[i].sin().sum() for i in used).backward()
        found.append([got[2], x.grad, w.grad])
    same(*found)


@pytest.mark.parametrize("how", ["expanded", "channels last", "transposed"])
def test_gradients_that_lie_in_any_way(how: str) -> None:
    module = nn.Sequential(*net()[:4])
    twin = copy.deepcopy(module)
    d = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    given = {
        "expanded": torch.ones((), dtype=d.dtype).expand(2, 4, 3, 3),
        "channels last": d.contiguous(memory_format=torch.channels_last),
        "transposed": d.transpose(2, 3),
    }[how]
    step = compiled(module)
    for before in (d, given):
        step(X).backward(before)
        twin(X).backward(before)
        same(gradients(module), gradients(twin))


def test_gradients_are_the_memory_that_they_came_in() -> None:
    """A copy of each would be made where someone else holds them."""
    module = net()
    seen = []
    for p in module.parameters():
        p.register_hook(lambda grad, seen=seen: seen.append(grad.data_ptr()))
    compiled(module)(X).square().sum().backward()
    assert sorted(p.grad.data_ptr() for p in module.parameters()) == sorted(seen)


def test_deterministic_algorithms_that_are_asked_for_late() -> None:
    loss = compiled(net())(X).sum()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_batches_of_gradients_are_refused() -> None:
    x = X.clone().requires_grad_()
    y = compiled(net())(x)
    with pytest.raises(RuntimeError, match=r"torch\.func do not look into|Batching rule"):
        torch.autograd.grad(y, x, torch.ones(3, *y.shape), is_grads_batched=True)


def test_a_backward_pass_twice() -> None:
    loss = compiled(net())(X).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_caller_that_is_compiled() -> None:
    """What a user compiles around a backward pass has nothing of ours in it."""
    module = net()
    twin, step = copy.deepcopy(module), compiled(module)

    def whole(x: Any) -> Any:
        loss = step(x).square().sum()
        loss.backward()
        return loss.detach()

    run = torch.compile(whole, backend="eager")
    for _ in range(2):
        loss = twin(X).square().sum()
        loss.backward()
        same([run(X)], [loss.detach()])
        same(gradients(module), gradients(twin))


# ---- parameters between the passes ---------------------------------------------------------------


@pytest.fixture(params=["kernels", "graphs"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "graphs":
        on_lanes(monkeypatch)
        monkeypatch.setattr(replayed, "tvm_tensor", borrowed)
    return str(request.param)


WAYS: list[Callable[[nn.Module], Any]] = [lambda m: rt.TrainingStep(m, X), compiled]


@pytest.mark.share(3)
@pytest.mark.parametrize("way", WAYS, ids=["TrainingStep", "compile"])
def test_parameters_between_the_passes(both: str, way: Any) -> None:
    """They may not be changed, and are read where they are, once there is a graph."""
    module = net()
    twin, step = copy.deepcopy(module), way(module)
    weight, bias = module[3].weight, module[3].bias
    for i in range(14):
        if i < 10 or both == "kernels":
            loss = step(X).square().sum()
            twin(X)
            with torch.no_grad():
                weight.mul_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        loss = step(X).square().sum()
        twin(X).square().sum().backward()
        with torch.no_grad():
            bias.mul_(1)  # of which no gradient is made
        if i == 10 and both == "graphs":
            old = weight.data
            weight.data = old.clone()
            old.fill_(float("nan"))
        loss.backward()
        same(gradients(module), gradients(twin))
