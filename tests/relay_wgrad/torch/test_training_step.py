"""`TrainingStep` beside the module that it compiles, in PyTorch's own loops."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt
from relay_wgrad.torch import training_step

pytestmark = pytest.mark.usefixtures("registered")

F = nn.functional
SHAPE = (4, 3, 6, 6)


class Net(nn.Module):
    """A residual block with batch statistics, a buffer that is a constant, a tied weight."""

    def __init__(self, width: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.inner = nn.Conv2d(width, width, 3, padding=1)
        self.again = nn.Conv2d(width, width, 3, padding=1)
        self.again.weight = self.inner.weight
        self.head = nn.Linear(width, classes)
        self.register_buffer("shift", torch.full((1, 3, 1, 1), 0.25))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.stem(x + self.shift)))
        x = x + torch.relu(self.again(self.inner(x)))
        return self.head(F.max_pool2d(x, 2).mean((2, 3)))


class Small(nn.Module):
    """What is compiled in a second."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 5)
        self.register_buffer("shift", torch.full((6,), 0.25))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.head(x + self.shift))


def small() -> Any:
    """(a step of a small module, the module, PyTorch's twin, an input)."""
    torch.manual_seed(4)
    module = Small().double()
    x = torch.randn(3, 6, dtype=torch.float64)
    return rt.TrainingStep(module, x), module, copy.deepcopy(module), x


def net(dtype: torch.dtype = torch.float64, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().to(dtype)


def data(seed: int = 1, shape: Any = SHAPE, dtype: torch.dtype = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, dtype=dtype, generator=generator)
    return x, torch.randint(0, 5, shape[:1], generator=generator)


_made: list[Any] = []


@pytest.fixture
def step() -> Any:
    """One step for many tests, compiled once, with the first parameters and PyTorch's twin."""
    if not _made:
        module = net()
        _made.append(rt.TrainingStep(module, data()[0]))
    one = _made[0]
    twin = net()
    one.load_state_dict(twin.state_dict())
    for parameter in one.parameters():
        parameter.grad = None
        parameter.requires_grad_()
    return one.train(), twin


def compare(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-12) -> None:
    mine, wanted = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(wanted)
    for name, value in wanted.items():
        difference = (mine[name] - value).double().norm()
        assert difference <= tolerance * value.double().norm() + tolerance, name


def compare_gradients(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if b.grad is not None:
            assert (a.grad - b.grad).norm() <= tolerance * b.grad.norm() + 1e-300, name


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
}


def loop(model: Any, optimizer: Any, scaler: Any = None) -> list[float]:
    """Four updates of two accumulated batches each, with clipped gradients."""
    losses = []
    for i in range(4):
        optimizer.zero_grad()
        for j in range(2):
            x, labels = data(10 * i + j)
            loss = F.cross_entropy(model(x), labels) / 2
            (loss if scaler is None else scaler.scale(loss)).backward()
            losses.append(loss.item())
        if scaler is not None:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return losses


@pytest.mark.share(3)  # an optimizer with a scaler, one without
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loops_equal_eager_ones(step: Any, name: str, scaled: bool) -> None:
    ours, twin = step
    losses = []
    for model in (ours, twin):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40) if scaled else None
        losses.append(loop(model, OPTIMIZERS[name](model.parameters()), scaler))
    assert losses[0] == pytest.approx(losses[1], rel=1e-11)
    compare(ours, twin, 1e-9)
    assert int(ours.norm.num_batches_tracked) == 8


def test_any_gradient_may_come_back(step: Any) -> None:
    """Of the output's shape and of any values, also twice."""
    ours, twin = step
    x, _ = data()
    weights = torch.randn(4, 5, dtype=torch.float64)
    for model in (ours, twin):
        out = model(x)
        out.backward(weights, retain_graph=True)
        out.mul(-3).backward(weights.T.contiguous().T)  # not dense
    compare_gradients(ours, twin)


def test_two_batches_wait_for_their_gradients(step: Any) -> None:
    """Forward, forward, backward, backward: each pass keeps its own."""
    ours, twin = step
    for model in (ours, twin):
        first, second = model(data(1)[0]), model(data(2)[0])
        first.square().sum().backward()
        second.sin().sum().backward()
    compare_gradients(ours, twin)
    compare(ours, twin)


def test_the_state_is_the_modules(step: Any) -> None:
    ours, twin = step
    assert list(ours.state_dict()) == list(Net().state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in twin.named_parameters()]
    module = ours._wrapped
    assert ours.stem is module.stem
    assert module.stem.weight is next(ours.parameters())
    ours.eval()
    assert not module.training
    assert not module.norm.training
    module.train()
    assert ours.training
    other = net(seed=5)
    other.load_state_dict(ours.state_dict())
    compare(other, module)


@pytest.mark.longer
def test_evaluation_runs_forward_alone(step: Any) -> None:
    ours, twin = step
    x, _ = data()
    for model in (ours, twin):
        model(x)
        model.eval()
    with torch.no_grad():
        got, want = ours(x), twin(x)
    assert not got.requires_grad
    torch.testing.assert_close(got, want)
    compare(ours, twin)  # statistics stay
    for model in (ours, twin):  # frozen statistics, trained parameters
        model(x).square().sum().backward()
    compare_gradients(ours, twin)


@pytest.mark.longer
def test_batch_statistics_without_gradients(step: Any) -> None:
    """As when statistics are estimated anew: they are updated under no_grad too."""
    ours, twin = step
    with torch.no_grad():
        for model in (ours, twin):
            model(data(3)[0])
    compare(ours, twin)


def test_frozen_parameters_and_wanted_inputs(step: Any) -> None:
    """Other places of gradients are another program."""
    ours, twin = step
    grads = []
    for model in (ours, twin):
        model.stem.weight.requires_grad_(False)
        model.norm.eval()  # one layer's mode
        x = data()[0].requires_grad_()
        model(x * 2).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    compare_gradients(ours, twin)
    assert ours.stem.weight.grad is None
    compare(ours, twin)


def test_another_shape_is_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, module, twin, x = small()
    monkeypatch.setattr(training_step, "PROGRAMS", 2)
    for _ in range(2):
        for model in (ours, twin):
            model(x[:2]).square().sum().backward()
    compare_gradients(module, twin)
    first, second = ours._programs
    ours(x)
    assert ours._programs == [second, first]
    with torch.no_grad():  # the least recently called one goes
        ours(x)
    assert len(ours._programs) == 2
    assert first in ours._programs


def test_changed_parameters_are_seen(step: Any) -> None:
    """In place, by their data, another tensor in their place."""
    ours, twin = step
    x, _ = data()
    with torch.no_grad():
        for model in (ours, twin):
            model.head.bias.add_(3)
            model.stem.weight.data = model.stem.weight.data.clone() * 2
            model.norm.weight = nn.Parameter(model.norm.weight * -1)
    for model in (ours, twin):
        model(x).sum().backward()
    compare_gradients(ours, twin)
    torch.testing.assert_close(ours(x), twin(x))


def test_changed_constants_and_layers_are_compiled_anew() -> None:
    ours, module, twin, x = small()
    kept = list(ours._programs)
    ours.load_state_dict(twin.state_dict())  # the same values
    ours(x)
    assert ours._programs == kept
    for model in (module, twin):
        model.shift.fill_(-2.0)
    torch.testing.assert_close(ours(x), twin(x))
    for model in (module, twin):
        torch.manual_seed(9)
        model.head = nn.Linear(6, 5).double()
    torch.testing.assert_close(ours(x), twin(x))
    assert ours.head is module.head


def test_a_copy_has_tensors_of_its_own() -> None:
    ours, module, twin, x = small()
    clone = copy.deepcopy(ours)
    assert clone.head is clone._wrapped.head
    assert clone.head is not module.head
    with torch.no_grad():
        clone.head.bias.add_(100)
        torch.testing.assert_close(clone(x) - 100, module.head(x + 0.25))
    torch.testing.assert_close(ours(x), twin(x))


@pytest.mark.longer
def test_two_steps_side_by_side(step: Any) -> None:
    """Two modules in one loss, one with the loss inside."""
    ours, twin = step
    inner, inner_twin = net(seed=3), net(seed=3)
    second = rt.TrainingStep(inner, (data()[0],), loss="cross_entropy", checkpoint="auto")
    x, labels = data()
    loss = ours(x).square().mean() + 0.5 * second(x, labels)
    want = twin(x).square().mean() + 0.5 * F.cross_entropy(inner_twin(x), labels)
    assert loss.item() == pytest.approx(want.item(), rel=1e-12)
    loss.backward()
    want.backward()
    compare_gradients(ours, twin)
    compare_gradients(inner, inner_twin)
    compare(inner, inner_twin)


def test_what_is_changed_in_place_is_noticed(step: Any) -> None:
    ours, _ = step
    x, _ = data()
    out = ours(x)
    with torch.no_grad():
        ours.inner.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(ours(x).sum(), [ours.head.bias], create_graph=True)


def test_hooks_of_parameters_run() -> None:
    """Also those that were there when the program was compiled, which export would lose."""
    _, module, twin, x = small()
    for model in (module, twin):
        model.head.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    for model in (rt.TrainingStep(module, x), twin):
        model(x).square().sum().backward()
    compare_gradients(module, twin)
    assert module.head.weight.grad.abs().max() == 0.01
    assert module.head.weight._backward_hooks


def test_gradients_are_tensors_of_their_own() -> None:
    """Two parameters with one gradient, an output that is a view of its input."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2, 3))
            self.b = nn.Parameter(torch.ones(3, 2))

        def forward(self, x: Any) -> Any:
            return x + self.a.reshape(3, 2) + self.b

    ours = rt.TrainingStep(Sum(), torch.zeros(3, 2))
    ours(torch.ones(3, 2)).sum().backward()
    ours.a.grad.mul_(5)
    assert torch.equal(ours.b.grad, torch.ones(3, 2))

    class View(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Any) -> Any:
            return self.a.reshape(6)

    ours = rt.TrainingStep(View(), torch.zeros(1))
    out = ours(torch.zeros(1))
    with torch.no_grad():
        out.add_(1)
    assert torch.equal(ours.a, torch.ones(2, 3))


def test_autocast_is_half_inside() -> None:
    """Gradients are scaled where they are half: what float16 would lose alone comes through."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4, 5))
    twin = copy.deepcopy(module).double()
    x, labels = data(dtype=torch.float32)
    F.cross_entropy(twin(x.double()), labels).backward()
    with torch.autocast("cpu", dtype=torch.float16):
        ours = rt.TrainingStep(module, x)
    little = 2.0**-24  # of the loss, as accumulation or a mean over many would have it
    want = twin[0].weight.grad
    errors = {}
    for scale in (1.0, 2.0**20):
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(ours(x), labels)
        (loss * little * scale).backward()
        got = module[0].weight.grad.double() / (little * scale)
        errors[scale] = (got - want).norm() / want.norm()
    assert errors[2.0**20] < 0.02
    assert errors[1.0] > 0.2
    assert len(ours._programs) == 1


def test_dropout_is_drawn_anew() -> None:
    module = nn.Sequential(nn.Linear(1000, 2, bias=False), nn.Dropout(0.25), nn.Flatten())
    nn.init.constant_(module[0].weight, 1e-3)
    ours = rt.TrainingStep(module, torch.ones(500, 1000))
    torch.manual_seed(0)
    first, second = ours(torch.ones(500, 1000)), ours(torch.ones(500, 1000))
    assert not torch.equal(first, second)
    assert first.detach().mean() == pytest.approx(1.0, abs=0.08)
    assert sorted({round(v, 3) for v in first.flatten().tolist()}) == [0.0, 1.333]
    first.sum().backward()
    torch.testing.assert_close(
        module[0].weight.grad[:, 0], first.detach().sum(0), rtol=1e-4, atol=0
    )
    torch.manual_seed(0)
    assert torch.equal(ours(torch.ones(500, 1000)), first)
    torch.testing.assert_close(ours.eval()(torch.ones(2, 1000)), torch.full((2, 2), 1.0))


def test_wrong_arguments(step: Any) -> None:
    ours, _ = step
    x, labels = data()
    with pytest.raises(TypeError, match="takes x float64"):
        ours(x, labels)
    with pytest.raises(TypeError, match="must be tensors, got int"):
        ours(3)
    with pytest.raises(ValueError, match=r"torch\.export refuses"):
        ours(x[:, :2])


class Wrapped(torch.nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.conv, self.wrap = torch.nn.Conv2d(2, 3, 1).double(), wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.conv(x))


@pytest.mark.parametrize(
    "wrap",
    [lambda y: (y,), lambda y: [y], lambda y: {"out": y}, lambda y: {"all": [(y,)]}],
    ids=["tuple", "list", "dictionary", "nested"],
)
def test_one_output_comes_back_as_the_module_returns_it(wrap: Any) -> None:
    module, x = Wrapped(wrap), torch.randn(1, 2, 3, 3, dtype=torch.float64)
    step = rt.TrainingStep(module, x)
    expected, got = module(x), step(x)
    assert type(got) is type(expected)
    (right,), (ours,) = (torch.utils._pytree.tree_leaves(each) for each in (expected, got))
    torch.testing.assert_close(ours, right)
    ours.sum().backward()
    assert module.conv.weight.grad is not None
    loss = rt.TrainingStep(module, x, loss="mse")(x, torch.zeros(1, 3, 3, 3, dtype=torch.float64))
    torch.testing.assert_close(loss, (right**2).mean())


def test_a_number_is_no_output() -> None:
    with pytest.raises(ValueError, match=r"Wrapped: output 0 is 3\.0, and no tensor"):
        rt.TrainingStep(Wrapped(lambda y: 3.0), torch.randn(1, 2, 3, 3).double())
