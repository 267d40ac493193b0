"""Channels that are filled up: values and gradients stay, and what cannot be filled stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from relay_wgrad.frontend import from_torch
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import grad
from relay_wgrad.transform.filled_channels import filled_channels
from relay_wgrad.transform.raise_norm import raise_batch_norm
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")

F = nn.functional
SIDE = 6


class Unit(nn.Module):
    """A convolution, a normalization, and an activation."""

    def __init__(self, c: int, k: int, taps: int = 3, stride: int = 1, norm: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, k, taps, stride, taps // 2, bias=not norm)
        self.norm = nn.BatchNorm2d(k) if norm else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.conv(x)))


class Drawn(nn.Module):
    """A network at random: pieces of a tensor, each with steps of its own, added and joined."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        self.width, self.count = int(rng.choice([13, 18, 20, 26, 27])), int(rng.integers(1, 4))
        whole = self.width * self.count
        self.first = Unit(3, whole, 1)
        self.kinds = [
            str(rng.choice(["unit", "pool", "max", "silu", "gate", "mean", "one", "up", "none"]))
            for _ in range(self.count)
        ]
        self.units = nn.ModuleList(Unit(self.width, self.width) for _ in self.kinds)
        self.gates = nn.ModuleList(Unit(self.width, self.width, 1) for _ in self.kinds)
        self.add, self.residual = bool(rng.integers(2)), bool(rng.integers(2))
        self.last = Unit(whole, 16, 1)
        self.head = nn.Linear(16, 4)

    def piece(self, i: int, x: Any, before: Any) -> Any:
        x = x + before if self.add and before is not None else x
        kind = self.kinds[i]
        if kind == "unit":
            return self.units[i](x) + x if self.residual else self.units[i](x)
        if kind == "gate":
            return x * torch.sigmoid(self.gates[i](self.units[i](x)))
        steps: dict[str, Callable[[Any], Any]] = {
            "pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
            "max": lambda x: F.max_pool2d(x, 3, 1, 1),
            "silu": F.silu,
            "mean": lambda x: x * x.mean((2, 3), keepdim=True),
            "one": lambda x: x * F.adaptive_avg_pool2d(x, 1),
            "up": lambda x: F.avg_pool2d(F.interpolate(x, scale_factor=2, mode="bilinear"), 2),
            "none": lambda x: x,
        }
        return steps[kind](x)

    def forward(self, x: Any) -> Any:
        y, done = self.first(x), []
        for i, part in enumerate(torch.split(y, self.width, 1)):
            done.append(self.piece(i, part, done[-1] if done else None))
        y = torch.cat(done, 1) if self.count > 1 else done[0]
        return self.head(self.last(y).mean((2, 3)))


def module_of(network: nn.Module, batch: int = 2) -> tuple[tvm.IRModule, Any]:
    x = torch.zeros(batch, 3, SIDE, SIDE, dtype=torch.float64)
    graph = from_torch(network.double().train(), (x,))
    return raise_batch_norm(graph.module, "main")[0], graph


def results(mod: tvm.IRModule, graph: Any, x: np.ndarray) -> list[np.ndarray]:
    """The outputs, running statistics among them, and the gradients of all parameters."""
    made = grad(mod, "main", wrt=list(graph.trainable))
    values = dict(graph.params.items())
    values |= {"x": x, "labels": np.arange(len(x), dtype="int64") % 4}
    args = [values[str(param.name)] for param in made["main_adjoint"].params]
    out = virtual_machine(made)["main_adjoint"](*map(tvm.runtime.tensor, args))
    return [leaf.numpy() for leaf in leaves(out)]


def leaves(out: Any) -> list[Any]:
    return [out] if hasattr(out, "numpy") else [leaf for part in out for leaf in leaves(part)]


def image(seed: int, batch: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3, SIDE, SIDE))


def conv_channels(mod: tvm.IRModule) -> list[int]:
    """Of all convolutions the channels of data and result."""
    calls = [b for b in bindings_of(mod["main"]) if op_name(b.value) == "relax.nn.conv2d"]
    tensors = [t for b in calls for t in (b.value.args[0], b.var)]
    return [int(t.ty.shape.values[1]) for t in tensors]


@pytest.mark.share(7)
@pytest.mark.parametrize("seed", range(12))
def test_networks_at_random(seed: int) -> None:
    """Loss, logits, running statistics and all gradients, in float64, as they were."""
    network = Drawn(seed)
    mod, graph = module_of(network)
    made = filled_channels(mod, "main")
    relax.analysis.well_formed(made)
    assert not made.same_as(mod)
    assert all(n % 8 == 0 for n in conv_channels(made) if n != 3)
    before, after = (results(m, graph, image(seed)) for m in (mod, made))
    assert len(before) == len(after)
    for want, got in zip(before, after, strict=True):
        assert want.shape == got.shape
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11, err_msg=str(network.kinds))


def test_what_is_not_finite_stays_so() -> None:
    network = Drawn(1)
    mod, graph = module_of(network)
    for value in (np.inf, np.nan):
        x = image(0)
        x[0, 1, 2, 3] = value
        before, after = (results(m, graph, x) for m in (mod, filled_channels(mod, "main")))
        for want, got in zip(before, after, strict=True):
            assert (np.isfinite(want) == np.isfinite(got)).all()


class Left(nn.Module):
    """One way in which a tensor of 26 channels is needed as it is."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first = Unit(3, 26, 1, norm=how != "no norm")
        self.grouped = nn.Conv2d(26, 26, 3, padding=1, groups=26, bias=False)
        self.last = Unit(26, 16, 1)
        self.head = nn.Linear(26 if how == "a product" else 16, 4)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        if self.how == "a product":
            return self.head(y.mean((2, 3)))
        if self.how == "groups":
            y = self.grouped(y)
        if self.how == "moved":
            y = y.flip(1)
        if self.how == "divided":
            y = y / (y + 1)
        if self.how == "summed over channels":
            y = y - y.mean(1, keepdim=True)
        return self.head(self.last(y).mean((2, 3)))


@pytest.mark.parametrize(
    "how", ["a product", "groups", "moved", "divided", "summed over channels", "no norm"]
)
def test_what_something_else_needs_stays(how: str) -> None:
    mod, _ = module_of(Left(how))
    assert filled_channels(mod, "main").same_as(mod)


@pytest.mark.parametrize("width", [9, 10, 16, 24])
def test_widths_that_are_left(width: int) -> None:
    """Whole packs, and what would grow by more than it gains."""
    network = nn.Sequential(Unit(3, width), Unit(width, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                            nn.Linear(16, 4))  # fmt: skip
    mod, _ = module_of(network)
    assert filled_channels(mod, "main").same_as(mod)


def test_a_tensor_that_is_kept_stays() -> None:
    mod, _ = module_of(Left(""))
    names = [
        str(b.var.name) for b in bindings_of(mod["main"]) if op_name(b.value) == "relax.nn.conv2d"
    ]
    assert filled_channels(mod, "main", names[:1]).same_as(mod)
    assert not filled_channels(mod, "main", names[1:]).same_as(mod)


def test_constant_images_stay() -> None:
    mod, _ = module_of(Left(""))
    bound = relax.transform.BindParams("main", {"x": tvm.runtime.tensor(image(0))})(mod)
    assert filled_channels(bound, "main").same_as(bound)


def test_a_step_in_half_precision() -> None:
    """Channels last, the first layer on blocks of pixels; all gradients beside autograd's."""
    network = Drawn(0)
    x = torch.from_numpy(image(3, 4))
    graph = from_torch(network.float().train(), (x.float(),))
    step = step_module(graph, dtype="float16", raise_norms=True, wide_weight_gradients=False)
    step = converted(step, "NHWC", blocks=True)
    calls = [b for b in bindings_of(step[ADJOINT]) if op_name(b.value) == "relax.nn.conv2d"]
    assert all(int(t.ty.shape.values[-1]) % 8 == 0 for b in calls for t in (b.value.args[0], b.var))
    labels = np.arange(4, dtype="int64")
    values = dict(graph.params.items()) | {"x": x.float().numpy(), "labels": labels}
    args = [tvm.runtime.tensor(values[str(param.name)]) for param in step[ADJOINT].params]
    got = [leaf.numpy() for leaf in leaves(virtual_machine(step)[ADJOINT](*args)[1])]
    exact = network.double().train()
    F.cross_entropy(exact(x), torch.from_numpy(labels)).backward()
    want = [p.grad.numpy() for p in exact.parameters() if p.grad is not None]
    norm = np.sqrt(sum((w**2).sum() for w in want))
    assert len(got) == len(graph.trainable)
    found = [g for g in got if np.abs(g).sum() > 0]
    assert sorted(g.shape for g in found) == sorted(w.shape for w in want)
    error = np.sqrt(sum(((g - w) ** 2).sum() for g, w in zip(found, want, strict=True)))
    # Normalizations of few pixels amplify half's rounding: 3 % here.
    assert error < 0.1 * norm
