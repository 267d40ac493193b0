"""A module that is changed after a step of it was compiled: what counts, and what is said."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt
from relay_wgrad.frontend import from_torch
from relay_wgrad.torch import training_step

pytestmark = pytest.mark.usefixtures("registered")
X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Scaled(nn.Module):
    """An attribute of each kind, of which `forward` reads some."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.alpha, self.shifts, self.steps = 1.0, [0.5], 0
        self.size = 0

    def forward(self, x: Any) -> Any:
        self.size = x.shape[0]
        return self.layer(x) * self.alpha * self.factor + self.shifts[0]


def scaled() -> Any:
    """(a step, its module, PyTorch's twin)."""
    torch.manual_seed(2)
    module = Scaled().double()
    return rt.TrainingStep(module, X), module, copy.deepcopy(module)


def compare(step: Any, twin: Any, x: torch.Tensor = X) -> None:
    for model in (step, twin):
        model.zero_grad()
        model(x).square().sum().backward()
    torch.testing.assert_close(step(x), twin(x))
    for a, b in zip(step.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


STRENGTH = {"all": 0.5}


def weakened(x: Any) -> Any:
    return x * STRENGTH["all"]


torch.fx.wrap("weakened")


class Wrapped(nn.Module):
    """Calls a function of `torch.fx.wrap`, as torchvision's StochasticDepth does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return weakened(self.layer(x))


def test_functions_that_a_trace_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    module = Wrapped().double()
    step, twin = rt.TrainingStep(module, X), copy.deepcopy(module)
    compare(step, twin)
    assert len(step._programs) == 1
    monkeypatch.setitem(STRENGTH, "all", 2.0)
    compare(step, twin)
    assert len(step._programs) == 2
    monkeypatch.setitem(globals(), "weakened", lambda x: x + 1)
    compare(step, twin)


def test_going_back_compiles_nothing() -> None:
    step, module, twin = scaled()
    for alpha in (0.1, 1.0, 0.1, 1.0):
        module.alpha = twin.alpha = alpha
        compare(step, twin)
        compare(step, twin, X[:2])
    assert len(step._programs) == 4


def test_what_forward_does_not_read_may_change() -> None:
    step, module, twin = scaled()
    kept = list(step._programs)
    for i in range(3):
        module.steps, module.other, module.alpha = i, [i], 2.0 / 2
        compare(step, twin)
    module.eval()  # nothing within is another one then
    compare(step, twin)
    assert step._programs == kept


def test_what_forward_sets_is_set() -> None:
    step, module, _ = scaled()
    step(X[:2])
    assert module.size == 2
    step(X)
    assert module.size == 3
    assert step._programs.made.total() == 2


def test_an_instance_hides_its_class() -> None:
    step, module, twin = scaled()
    module.factor = twin.factor = 3.0
    compare(step, twin)
    del module.factor, twin.factor
    compare(step, twin)
    module.forward = lambda x: module.layer(x) * 7
    twin.forward = lambda x: twin.layer(x) * 7
    compare(step, twin)


def test_what_changes_again_and_again_is_said() -> None:
    step, module, twin = scaled()
    training_step_again = training_step.AGAIN
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(training_step_again + 1):
            module.alpha = twin.alpha = 2.0 + i
            with torch.no_grad():
                torch.testing.assert_close(step(X), twin(X))
    (one,) = [str(w.message) for w in said if "programs were compiled" in str(w.message)]
    assert "'alpha' of the module has changed" in one


def test_what_cannot_be_compared_is_said() -> None:
    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.table = nn.Linear(4, 4), list(range(5000))

        def forward(self, x: Any) -> Any:
            return self.layer(x) * self.table[3]

    step = rt.TrainingStep(Opaque().double(), X)
    assert any("'table' of the module (list)" in note for note in step.notes)


def test_attributes_stay_the_same_objects() -> None:
    """`torch.export` leaves copies of lists, and tensors of its trace."""

    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scales, self.kept = nn.Linear(4, 4), SHARED, None

        def forward(self, x: Any) -> Any:
            return self.layer(x) * self.scales["a"][0]

    SHARED = {"a": [1.0]}
    module = Shares().double()
    graph = from_torch(module, (X,), loss="none")
    assert graph.name == "Shares"
    step = rt.TrainingStep(module, X)
    assert module.scales is SHARED
    twin = copy.deepcopy(module)
    SHARED["a"][0] = twin.scales["a"][0] = 5.0
    compare(step, twin)


def test_a_hook_that_records_is_refused_or_run() -> None:
    seen: list[Any] = []
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    twin = copy.deepcopy(layers)
    step = rt.TrainingStep(layers, X)
    handle = layers[0].register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    with pytest.warns(UserWarning, match="PyTorch runs this: forward changes a hook of '0'"):
        step(X)
    assert [type(x) for x in seen] == [torch.Tensor]
    count = step._programs.made.total()
    compare(step, twin)
    assert step._programs.made.total() == count
    assert len(seen) == 3
    with pytest.raises(ValueError, match="forward changes a hook of '0'"):
        rt.TrainingStep(layers, X)
    assert len(seen) == 3
    handle.remove()
    compare(step, twin)
    assert len(seen) == 3


def test_backward_hooks_added_later() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    twin = copy.deepcopy(layers)
    step = rt.TrainingStep(layers, X)
    of_loss = rt.TrainingStep(layers, X, loss="mse")
    for model in (layers, twin):
        model[1].register_full_backward_hook(lambda m, gi, go: tuple(2 * g for g in gi))
    with pytest.warns(UserWarning, match="backward hooks of '1' would be lost"):
        compare(step, twin)
    assert any("PyTorch runs this: backward hooks" in note for note in step.notes)
    with pytest.raises(ValueError, match="TrainingStep: backward hooks of '1' would be lost"):
        of_loss(X, torch.zeros(3, 2).double())
    with pytest.raises(ValueError, match="TrainingStep: backward hooks of '1' would be lost"):
        rt.TrainingStep(layers, X)
    with pytest.raises(ValueError, match="Sequential: backward hooks of '1' would be lost"):
        from_torch(layers, (X,), loss="none")


REFUSED: dict[str, tuple[Any, str]] = {
    "counts": (lambda self, x: setattr(self, "n", self.n + 1), "forward changes 'n' of the module"),
    "appends": (lambda self, x: self.log.append(1), "forward changes 'log' of the module"),
    "keeps": (
        lambda self, x: setattr(self, "kept", x * 2),
        "keeps a tensor as 'kept' of the module",
    ),
    "no parameter": (lambda self, x: self.loose * 2, "'loose' of the module is used as a tensor"),
    "argument": (lambda self, x: x.mul_(2), "Does changes its argument 'x' in place"),
    "part of it": (lambda self, x: x[1:].zero_(), "Does changes its argument 'x' in place"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_compiled_pass_would_not_do(name: str) -> None:
    does, words = REFUSED[name]

    class Does(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.n, self.log = nn.Linear(4, 4), 0, [0]
            self.loose = torch.ones(4, requires_grad=True)

        def forward(self, x: Any) -> Any:
            does(self, x)
            return self.layer(x)

    module = Does().double()
    before = X.clone()
    with pytest.raises(ValueError, match=words):
        rt.TrainingStep(module, X)
    assert torch.equal(X, before)
    assert (module.n, module.log, hasattr(module, "kept")) == (0, [0], False)


def test_tied_weights_that_part() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    layers[2].weight = layers[0].weight
    twin = copy.deepcopy(layers)
    step = rt.TrainingStep(layers, X)
    compare(step, twin)
    for model in (layers, twin):
        model[2].weight = nn.Parameter(model[0].weight.detach() * 2)
    compare(step, twin)


def test_numbers_of_one_value_are_of_one_type() -> None:
    step, module, twin = scaled()
    module.shifts, twin.shifts = [-0.0], [-0.0]  # the sum of it and a zero has the zero's sign
    for alpha in (1, True, -0.0, 0.0):
        module.alpha = twin.alpha = alpha
        compare(step, twin)
        assert torch.equal(torch.signbit(step(X * 0)), torch.signbit(twin(X * 0)))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return x * self.scale


def test_a_parameter_in_the_place_of_an_equal_one() -> None:
    """Of one number, which PyTorch calls equal: gradients are the new one's."""
    module = Scale()
    step, before = rt.TrainingStep(module, X), module.scale
    for _ in range(2):
        module.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        step(X).sum().backward()
        assert before.grad is None
        torch.testing.assert_close(module.scale.grad, X.sum().reshape(1))
    assert len(step._programs) == 1


@pytest.mark.longer("a bound of time")
def test_comparing_takes_little_of_the_host() -> None:
    """A bound for busy machines; `python -m benchmarks cpu host` has the time."""
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(12)]
    step = rt.TrainingStep(nn.Sequential(*blocks).double(), X)
    depends = step._programs[0][1].depends
    took = []
    for _ in range(200):
        began = time.perf_counter()
        assert depends.is_current()
        took.append(time.perf_counter() - began)
    assert min(took) < 200e-6


scale = nn.Parameter(torch.full((1,), 3.0, dtype=torch.float64))
"""A global variable named as an attribute of the module below."""


class ByName(nn.Module):
    """Reads attributes that may not be there, and one that a global variable is named as."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.scale, self.read = nn.Linear(4, 4), 1.5, read

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.scale * self.read(self)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "read",
    [
        lambda m: m.__dict__.get("q", 1),
        lambda m: vars(m).get("q", 1),
        lambda m: 2 if "q" in m.__dict__ else 1,
        lambda m: getattr(m, "q", 1),
    ],
    ids=["__dict__", "vars", "in", "getattr"],
)
def test_attributes_that_come_later(read: Any) -> None:
    module = ByName(read).double()
    step, twin = rt.TrainingStep(module, X), copy.deepcopy(module)
    compare(step, twin)
    for value in (5.0, 7.0):
        module.q = twin.q = value
        compare(step, twin)
    del module.q, twin.q
    compare(step, twin)


@pytest.mark.longer("programs of four sizes; threads of first calls stay")
def test_threads_share_a_step() -> None:
    """Each call of many threads, which change sizes in turns, is right."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    twin = copy.deepcopy(net)  # an export has stand-ins in the module, which PyTorch would run
    step = rt.TrainingStep(net, torch.zeros(1, 4).double())

    def work(seed: int) -> float:
        far = 0.0
        for i in range(12):
            x = torch.randn(1 + (seed + i) % 4, 4, dtype=torch.float64)
            far = max(far, float((step(x) - twin(x)).detach().abs().max()))
        return far

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(4))) < 1e-12


def test_attributes_through_the_step() -> None:
    """A loop sets them on what it calls, as it did on the module."""

    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.heat = nn.Linear(4, 2), 1.0

        def forward(self, x: Any) -> Any:
            return self.layer(x) / self.heat

        def cool(self) -> float:
            self.heat /= 2
            return self.heat

    module = Tempered().double()
    step, twin = rt.TrainingStep(module, X), copy.deepcopy(module)
    assert step.heat == 1.0
    step.heat = twin.heat = 4.0
    assert module.heat == 4.0
    compare(step, twin)
    assert step.cool() == twin.cool() == 2.0
    compare(step, twin)
    step.layer = twin.layer = nn.Linear(4, 3).double()
    assert step(X).shape == (3, 3)
    step.note = "mine"
    assert not hasattr(module, "note")
    with pytest.raises(AttributeError, match="'Tempered' object has no attribute 'missing'"):
        _ = step.missing
    assert copy.deepcopy(step).heat == 2.0


def test_a_copy_has_programs_of_its_own() -> None:
    step = rt.TrainingStep(nn.Linear(4, 3), torch.zeros(2, 4))
    other = copy.deepcopy(step)
    with torch.no_grad():
        other.weight.zero_()
    with torch.no_grad():
        assert float(other(torch.ones(2, 4)).sub(other.bias).abs().max()) == 0
        assert float(step(torch.ones(2, 4)).sub(step.bias).abs().max()) > 0
