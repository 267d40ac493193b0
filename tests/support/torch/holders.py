"""Layers that hold things, and things to hold; what changes of them name is found here."""

from __future__ import annotations

import enum
import functools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as fn
from torch.nn.utils import parametrizations, parametrize, prune

__all__ = ["OrderedDict", "deque", "functools", "np", "operator", "parametrizations",
           "parametrize", "prune"]  # fmt: skip

WIDTH = 6


class Holds(nn.Module):
    """A layer that multiplies by what `read` makes of its attribute."""

    def __init__(self, value: Any, read: Callable[[Any], Any] = lambda v: v) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.value, self.read = value, read

    def forward(self, x: Any) -> Any:
        return x * self.weight * self.read(self.value)


class Kind(enum.Enum):
    TWICE = 2.0
    THRICE = 3.0


@dataclass
class Settings:
    scale: float = 1.5
    inner: Any = field(default_factory=lambda: SimpleNamespace(more=[2.0, 3.0]))


class Constants:
    scale = 1.25


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.5

    def __call__(self, x: Any) -> Any:
        return x * self.scale


class Caller:
    def __init__(self) -> None:
        self.by = 1.5

    def method(self, x: Any) -> Any:
        return x * self.by


SCALE, TABLE = 1.5, {"a": [1.0, 2.0]}


def twice(x: Any) -> Any:
    return 2 * x


def thrice(x: Any) -> Any:
    return 3 * x


def by_global(x: Any) -> Any:
    return x * SCALE * TABLE["a"][1]


class Globals(nn.Module):
    """Values that are no attributes of its own."""

    factor = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    @property
    def both(self) -> Any:
        return self.factor * SCALE

    def forward(self, x: Any) -> Any:
        return by_global(x) * self.weight * self.both * Constants.scale


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.flag, self.mode, self.count, self.none = True, "relu", 2, None

    def forward(self, x: Any) -> Any:
        for _ in range(self.count):
            x = x * self.weight if self.flag else x + self.weight
        if self.none is not None:
            x = x - self.none
        return getattr(torch, self.mode)(x)


class Unread(nn.Module):
    """Attributes that `forward` does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.steps, self.log, self.note = 0, [1.0], torch.ones(3)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Any) -> Any:
        self.size = x.shape[-1]
        return x * self.weight


class Counts(nn.Module):
    """What its `forward` changes itself."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.weight, self.by = nn.Parameter(torch.ones(WIDTH)), by
        self.n, self.calls = 0, [0]

    def forward(self, x: Any) -> Any:
        if self.by == "number":
            self.n += 1
        elif self.by == "list":
            self.calls.append(len(self.calls))
        else:
            self.kept = x
        return x * self.weight * (1 + self.n + len(self.calls))


class Teacher(nn.Module):
    """A frozen network in a list, which hides it from `parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.held = [nn.Linear(WIDTH, WIDTH).double().requires_grad_(False)]

    def forward(self, x: Any) -> Any:
        return x * self.weight + self.held[0](x)


def closure() -> Any:
    factor = 1.5

    def scaled(x: Any) -> Any:
        return x * factor

    return scaled


SEEN: list[Any] = []
_HANDLES: list[Any] = []
register_module_forward_hook = nn.modules.module.register_module_forward_hook
register_module_forward_pre_hook = nn.modules.module.register_module_forward_pre_hook
register_module_full_backward_hook = nn.modules.module.register_module_full_backward_hook


def add(handle: Any) -> None:
    """Once for module and twin, which both get it."""
    _HANDLES.append(handle)
    if len(_HANDLES) % 2 == 0:
        _HANDLES.pop().remove()
        _HANDLES.append(SimpleNamespace(remove=lambda: None))


def remove() -> None:
    while _HANDLES:
        _HANDLES.pop().remove()


def triple(p: Any) -> None:
    p.grad.mul_(3)


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.full((WIDTH,), 1.5).double())

    def forward(self, x: Any) -> Any:
        return fn.relu(x * self.b)


def doubled(module: Any, grads: Any, of_results: Any) -> Any:
    return tuple(g if g is None else 2 * g for g in grads)


def only_tanh(module: Any, given: Any, out: Any) -> Any:
    return out * 3 if isinstance(module, nn.Tanh) else None


class Whole(nn.Module):
    """The layer between two others."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(5, WIDTH), layer, nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.layer(self.first(x).tanh()))
