"""Dictionaries whose changes Python tells of, and modules whose dictionaries those are."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import relay_wgrad.torch as rt
from relay_wgrad.building.programs import SWITCH
from relay_wgrad.torch import dict_watch, host_library
from relay_wgrad.torch.depends import Depends
from relay_wgrad.torch.dict_watch import hears_all, tagged, watch

here = pytest.mark.skipif(
    watch([{}]) is None, reason="this Python does not tell of changes, or others listen"
)


class Thing:
    def __setattr__(self, name: str, value: Any) -> None:  # as a module's, in Python
        object.__setattr__(self, name, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "set": lambda t: setattr(t, "a", 2), "new": lambda t: setattr(t, "c", 2),
    "deleted": lambda t: delattr(t, "a"), "item": lambda t: t.__dict__.update(a=3),
    "popped": lambda t: vars(t).pop("a"), "cleared": lambda t: vars(t).clear(),
    "hook": lambda t: t.hooks.update({1: 2}), "hook's item": lambda t: t.hooks.__setitem__(0, 1),
    "hooks": lambda t: setattr(t, "hooks", OrderedDict()),
}  # fmt: skip


@here
@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_told(name: str) -> None:
    things = [Thing() for _ in range(3)]
    for thing in things:
        thing.a, thing.b, thing.hooks = 1, 1, OrderedDict[int, int]()
    one, other = (watch([t.__dict__, t.hooks]) for t in things[:2])
    assert one is not None
    assert other is not None
    both = watch([things[0].__dict__, things[0].hooks, things[1].__dict__])
    assert both is not None
    one.changed = other.changed = both.changed = False
    CHANGES[name](things[2])
    assert not any(each.changed for each in (one, other, both))
    CHANGES[name](things[0])
    assert one.changed
    assert both.changed
    assert not other.changed
    one.close()
    both.changed = False
    things[0].b = 7
    assert both.changed
    for each in (one, other, both):
        each.close()
    assert not any(id(t.__dict__) in dict_watch._ears.watches for t in things)


@here
def test_what_is_watched_lives() -> None:
    """Else another dictionary would be at its address."""
    made = watch([{"a": i} for i in range(100)])
    gc.collect()
    assert made is not None
    made.changed = False
    [{"b": i} for i in range(1000)]
    assert not made.changed
    made.close()
    assert not made.is_open


def test_other_kinds_are_not_watched() -> None:
    assert watch([MappingProxyType({})]) is None
    assert watch([type("Own", (dict,), {})()]) is None


@pytest.mark.parametrize("how", ["older", "none left", "not told"])
def test_without(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python says nothing there is no watch, and what others watch is taken to be changed."""
    ears = dict_watch.Ears()
    if how == "older":
        monkeypatch.setattr(dict_watch, "SINCE", (9, 9))
    elif how == "none left":
        monkeypatch.setattr(ears, "begin", lambda: 1 // 0)
    else:
        monkeypatch.setattr(dict_watch, "hears_all", lambda ears: False)
    assert ears.watch([{}]) is None


def test_numbers_of_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked for where the library is there, up to Python 3.11."""
    if sys.version_info < dict_watch.SINCE and host_library.functions() is not None:
        tags = tagged([{}])
        assert tags is not None
        seen = [tags.changed]
        tags.changed = False
        seen.append(tags.changed)
        tags.close()
        assert [*seen, tags.changed, tags.is_open] == [True, False, True, False]
    else:
        assert tagged([{}]) is None
    monkeypatch.setattr(dict_watch, "functions", lambda: None)
    assert tagged([{}]) is None


@pytest.mark.parametrize("changed", [True, False])
def test_who_always_says_the_same_does_not_hear(changed: bool) -> None:
    class Same(mock.Mock):
        changed = property(lambda self: not_read, lambda self, value: None)

    not_read = changed
    assert not hears_all(lambda dictionaries: Same())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("shift", torch.ones(4))
        self.norm, self.scale = nn.BatchNorm1d(4), 2.0

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x) * self.scale + self.shift


OF_MODULES: dict[str, Callable[[Any], Any]] = {
    "hook": lambda m: m.layers[1].register_forward_hook(lambda *_: None),
    "parameter": lambda m: setattr(m.layers[0], "weight", nn.Parameter(torch.ones(4, 4))),
    "parameter's item": lambda m: m.layers[0]._parameters.update(
        weight=nn.Parameter(torch.ones(4, 4))
    ),
    "buffer": lambda m: setattr(m, "shift", torch.zeros(4)),
    "mode": lambda m: m.norm.eval(),
    "layer": lambda m: m.layers.__setitem__(1, nn.Linear(4, 4)),
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "deleted": lambda m: delattr(m, "scale"),
    "__dict__'s item": lambda m: m.__dict__.update(scale=1.0),
    "another __dict__": lambda m: setattr(m, "__dict__", {**m.__dict__, "scale": 1.0}),
    "class": lambda m: setattr(m, "__class__", type("Other", (Net,), {})),
    "requires_grad": lambda m: m.layers[0].weight.requires_grad_(False),
    "moved": lambda m: setattr(m.layers[0].weight, "data", m.layers[0].weight.data.clone()),
    "dtype": lambda m: m.double(),
    "parametrized": lambda m: parametrize.register_parametrization(
        m.layers[0], "weight", nn.Tanh()
    ),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs: the one network's is compiled once."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize("told", [True, False], ids=["told", "compared"])
@pytest.mark.parametrize("name", OF_MODULES)
def test_a_changed_module_is_seen(
    name: str, told: bool, registered: None, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told and watch([{}]) is None:
        pytest.skip("this Python does not tell of changes")
    if not told:
        monkeypatch.setattr("relay_wgrad.torch.depends.watch", lambda dictionaries: None)
        monkeypatch.setattr("relay_wgrad.torch.depends.functions", lambda: None)
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(kept))
    module = Net()
    step = rt.TrainingStep(module, torch.ones(2, 4))
    depends = step._programs[0][1].depends
    assert depends._is_untouched()
    OF_MODULES[name](module)
    assert not depends._is_untouched()


@here
def test_what_is_as_it_was_is_not_read(registered: None) -> None:
    module = Net()
    step = rt.TrainingStep(module, torch.ones(2, 4))
    with mock.patch.object(
        Depends, "are_dictionaries_same", side_effect=Depends.are_dictionaries_same, autospec=True
    ) as m:
        for i in range(12):
            if i % 4 == 3:
                module.scale = module.scale * 1.0  # another object of the same value
            step(torch.ones(2, 4)).sum().backward()
    assert m.call_count == 3
    assert len(step._programs) == 1
