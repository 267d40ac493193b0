"""Dropout means what it means in PyTorch: masks where a layer is in training, of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer, state
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.torch.op_cases import Given

pytestmark = pytest.mark.usefixtures("registered")

X = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0)).double()


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).transpose(1, 2)


class Net(nn.Module):
    """A function of a convolution's result, which may have a layer of its own."""

    def __init__(self, function: Callable[..., Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.layer = nn.Conv2d(2, 4, 3, padding=1), layer
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.function(y, self.layer or self).square().sum()


def _attention(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
    q = rows(x)[:, None]
    return fn.scaled_dot_product_attention(q, q, q, dropout_p=0.3 if net.training else 0.0)


def _heads(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    made: torch.Tensor = layer(rows(x), rows(x), rows(x), need_weights=False)[0]
    return made


KINDS: dict[str, tuple[Callable[..., Any], Callable[[], nn.Module] | None]] = {
    "layer": (lambda x, f: f(x), lambda: nn.Dropout(0.3)),
    "in place": (lambda x, f: f(x * 2), lambda: nn.Dropout(0.3, inplace=True)),
    "1d": (lambda x, f: f(x.flatten(2)), lambda: nn.Dropout1d(0.3)),
    "2d": (lambda x, f: f(x), lambda: nn.Dropout2d(0.3)),
    "3d": (lambda x, f: f(x[..., None]), lambda: nn.Dropout3d(0.3)),
    "alpha": (lambda x, f: f(x), lambda: nn.AlphaDropout(0.3)),
    "feature alpha": (lambda x, f: f(x), lambda: nn.FeatureAlphaDropout(0.3)),
    "function": (lambda x, f: fn.dropout(x, 0.3, f.training), None),
    "function 2d": (lambda x, f: fn.dropout2d(x, 0.3, f.training), None),
    "function alpha": (lambda x, f: fn.alpha_dropout(x, 0.3, f.training), None),
    "function feature alpha": (lambda x, f: fn.feature_alpha_dropout(x, 0.3, f.training), None),
    "attention": (_attention, None),
    "heads": (_heads, lambda: nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)),
    "encoder": (
        lambda x, f: f(rows(x)),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True),
    ),
    "lstm": (
        lambda x, f: f(rows(x))[0], lambda: nn.LSTM(4, 3, 2, dropout=0.3, batch_first=True)
    ),
    "gru": (lambda x, f: f(rows(x))[0], lambda: nn.GRU(4, 3, 2, dropout=0.3, batch_first=True)),
    "all": (lambda x, f: f(x) + x, lambda: nn.Dropout(1.0)),
}  # fmt: skip


def loss(graph: Any, batch: dict[str, Any]) -> float:
    vm = virtual_machine(graph.module, FAST)
    given = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in graph.arguments(batch)]
    return float(vm["main"](*given)[0].numpy())


@pytest.mark.longer_cases(
    "1d", "2d", "3d", "feature", "function 2d", "function alpha", "heads", "encoder", "gru", "lstm"
)
@pytest.mark.parametrize(("function", "layer"), KINDS.values(), ids=KINDS)
def test_every_kind(function: Any, layer: Any) -> None:
    """Drawn where it trains; with dropout="off" what eval() gives, and the notes say so."""
    net = Net(function, layer and layer()).double()
    graph = from_torch(net, (X,), loss="own")
    drawn = [s for s in graph.inputs if s.kind in ("mask", "random")]
    rates = [getattr(part, "p", 0) for part in net.modules()]
    assert bool(drawn) == (1.0 not in rates)
    assert graph.notes == ()
    batch = graph.random_batch(1)
    with Given([(s, batch[s.name]) for s in drawn]):
        wanted = float(net(torch.tensor(batch["x"])).detach())
    assert loss(graph, batch) == pytest.approx(wanted, rel=1e-10)

    off = from_torch(net, (X,), loss="own", dropout="off")
    evaluated = from_torch(net.eval(), (X,), loss="own")
    assert [s.kind for s in off.inputs] == [s.kind for s in evaluated.inputs] == ["data"]
    assert evaluated.notes == ()
    assert len(off.notes) == 1
    assert off.notes[0].startswith("switched off: dropout of ")
    batch = off.random_batch(1)
    wanted = float(net(torch.tensor(batch["x"])).detach())
    assert loss(off, batch) == pytest.approx(wanted, rel=1e-10)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.2), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(16, 8), nn.Dropout(0.25), nn.Linear(8, 3),
    )  # fmt: skip


class Stopped(nn.Module):
    """A network with a part without gradients; its argument has the name of Python's function."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        made: torch.Tensor = self.net(input)
        with torch.no_grad():
            shift = made.mean()
        return made - shift


EXAMPLE = (torch.zeros(2, 2, 4, 4),)


def test_layer_by_layer_and_by_option() -> None:
    """A layer in eval() stays off, bn="eval" evaluates, exported programs are as they were."""
    net = network()
    assert len(from_torch(net, EXAMPLE).inputs) == 5
    net[4].eval()
    graph = from_torch(net, EXAMPLE)
    assert [(s.kind, s.shape) for s in graph.inputs[2:]] == [
        ("random", (2, 4, 1, 1)), ("mask", (2, 8))
    ]  # fmt: skip
    off = "switched off: dropout of 2 nodes (feature_dropout, dropout_1)"
    for options in ({"dropout": "off"}, {"bn": "eval"}):
        plain = from_torch(net, EXAMPLE, **options)
        assert (len(plain.inputs), plain.notes) == (2, (off,))
    assert len(from_torch(net, EXAMPLE, bn="eval", dropout="mask").inputs) == 4
    program = torch.export.export(net, EXAMPLE)
    before = str(program.graph)
    assert len(from_torch(program).inputs) == 4
    assert len(from_torch(program, dropout="off").inputs) == 2
    assert str(program.graph) == before
    stopped = torch.export.export(Stopped(net), EXAMPLE)  # a region, which is taken out of a copy
    assert len(from_torch(stopped).inputs) == 4
    assert len(from_torch(net.eval(), EXAMPLE).inputs) == 2
    with pytest.raises(ValueError, match="dropout='on': expected mask or off"):
        from_torch(net, EXAMPLE, dropout="on")


@pytest.mark.longer("a program of its own; masks by seed are the trainer's as well")
def test_masks_by_seed_go_on_as_they_were(tmp_path: Path) -> None:
    """A training that is interrupted draws what it would have drawn."""
    graph = from_torch(network(), EXAMPLE)
    fixed = {n: v for n, v in graph.random_batch(0).items() if n in ("input", "labels")}
    whole, part, again = (Trainer(graph, FAST, lr=0.1, seed=s) for s in (5, 5, 5))
    losses = [whole.step(fixed) for _ in range(4)]
    assert [part.step(fixed) for _ in range(2)] == losses[:2]
    state.save(part, tmp_path / "s.safetensors")
    state.restore(again, tmp_path / "s.safetensors")
    assert [again.step(fixed) for _ in range(2)] == losses[2:]
    for name, value in whole.params.items():
        np.testing.assert_array_equal(value.numpy(), again.params[name].numpy())
    other = Trainer(graph, FAST, lr=0.1, seed=6)
    assert [other.step(fixed) for _ in range(2)] != losses[:2]
