"""Modes of PyTorch's do not reach what is compiled within them, one by one."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import relay_wgrad.torch as rt
from relay_wgrad.ambient import default_device, hooks_of_all, outside
from relay_wgrad.frontend import from_torch
from tests.support.torch.modes import MODES, left

# Of the modes, as of anomaly detection, and of a step that PyTorch runs.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
X = torch.ones(2, 3)
STAYS = ("default dtype", "hooks of all modules")  # for other threads, which have the same


@pytest.mark.parametrize("name", MODES)
def test_outside(name: str) -> None:
    """Within `outside` none is left; after it and after the mode all is as it was."""
    seen: list[Any] = []

    def first_call(x: Any) -> Any:
        before = left()
        with outside():
            assert not hooks_of_all()
            seen.append([mode for mode in left() if mode not in STAYS])
            torch.export.export(nn.Linear(3, 2), (torch.ones(2, 3),))
        assert left() == before
        return x.sum()

    if name == "reentrant":
        MODES[name](first_call, X.clone().requires_grad_())
    else:
        MODES[name](first_call, X)
    assert seen
    assert not any(seen)
    assert not left()


_made: list[Any] = []


@pytest.fixture
def step(registered: None) -> Any:
    """A copy of one step, which compiles when it is called."""
    if not _made:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        _made.append(rt.TrainingStep(net, torch.ones(1, 3)))
    return copy.deepcopy(_made[0])


@pytest.mark.share(5)
@pytest.mark.parametrize("name", [name for name in MODES if name not in ("tangent", "vmap_x")])
def test_a_new_shape(step: Any, name: str) -> None:
    """Of a step, whose numbers are the module's in the same mode; by PyTorch where those are."""
    want, got = (MODES[name](model, X) for model in (step._wrapped, step))
    assert got.requires_grad == want.requires_grad
    far = 2e-2 if name == "autocast" else 1e-6
    torch.testing.assert_close(got, want.to(got.dtype), rtol=far, atol=far)
    assert not left()


def test_default_devices_are_for_the_users_code() -> None:
    with torch.device("meta"):
        with outside():
            assert torch.ones(1).device.type == "cpu"
            with default_device():
                assert torch.ones(1).device.type == "meta"
        assert torch.ones(1).device.type == "meta"


@pytest.mark.usefixtures("registered")
def test_default_dtypes_are_another_program() -> None:
    """What `forward` makes is of the default dtype of the call."""

    class Thirds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            return x * self.weight * (torch.ones(3) / 3)

    net, x = Thirds(), torch.ones(2, 3, dtype=torch.float64)
    step = rt.TrainingStep(net, x)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert torch.equal(step(x), net(x))
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("registered")
def test_hooks_of_all_modules_are_refused() -> None:
    register = nn.modules.module.register_module_forward_hook
    handle = register(lambda module, given, out: out * 2)
    try:
        assert hooks_of_all()
        with pytest.raises(ValueError, match="hooks of all modules"):
            from_torch(nn.Linear(2, 2), (torch.ones(1, 2),), loss="none")
        with pytest.raises(ValueError, match="hooks of all modules"):
            rt.TrainingStep(nn.Linear(2, 2), torch.ones(1, 2))
    finally:
        handle.remove()
    assert not hooks_of_all()


def test_two_threads() -> None:
    """What belongs to the process is put back, in whichever order threads leave."""
    parametrize: Any = nn.utils.parametrize
    with FlopCounterMode(display=False) as counter, parametrize.cached():
        inside, leave = threading.Event(), threading.Event()

        def other() -> None:
            with outside():
                inside.set()
                leave.wait(60)

        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(60)
        with outside():
            leave.set()
            thread.join(60)
            nn.Linear(3, 2)(X)
            assert parametrize._cache_enabled == 0
            assert not counter.get_flop_counts().get("Linear")
        assert parametrize._cache_enabled == 1
        nn.Linear(3, 2)(X)
        assert counter.get_flop_counts()["Linear"]
    assert not left()
