"""Training of some parameters: beside PyTorch with the others frozen, and what is left out."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.frontend import from_onnx, from_torch
from relay_wgrad.inspection.partial_training import left_out
from relay_wgrad.training import state
from relay_wgrad.training.step import ADJOINT, step_module
from relay_wgrad.training.stored_layout import kept_in_layout
from relay_wgrad.training.trainer import Trainer
from relay_wgrad.training.update import Update
from tests.support.fast import FAST
from tests.support.onnx.models import relative
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")

X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Net(nn.Module):
    """Three convolutions, each with a norm, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.fc = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


def trained(names: list[str]) -> list[str]:
    return [n for n in names if n.startswith(("layer2", "fc"))]


@pytest.mark.longer_cases("module")
@pytest.mark.parametrize("bn", ["module", "frozen"])
def test_steps_are_pytorchs_with_the_others_frozen(bn: str) -> None:
    """In training mode running statistics of what is frozen go on, as PyTorch's do."""
    graph = from_torch(Net().double(), (X,), trainable="layer2,fc", bn=bn)
    trainer = Trainer(graph, FAST, optimizer="momentum", lr=0.1)
    twin = Net().double()
    for name, parameter in twin.named_parameters():
        parameter.requires_grad_(name.startswith(("layer2", "fc")))
    if bn == "frozen":
        twin.bn1.eval()
        twin.layer1.eval()
    rule = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], 0.1, momentum=0.9)
    for step in range(3):
        batch = graph.random_batch(step)
        loss = trainer.step(batch)
        want = fn.cross_entropy(twin(torch.tensor(batch["x"])), torch.tensor(batch["labels"]))
        rule.zero_grad()
        want.backward()
        rule.step()
        assert abs(loss - float(want.detach())) < 1e-12
    theirs = {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    for name, value in trainer.params.items():
        assert relative(value, theirs[graph.onnx_names[name]].detach().numpy()) < 1e-10, name
    assert len(trainer.state) == 1 + 6


def test_patterns() -> None:
    """Of parameters and layers, in the model's names and in the graph's."""
    whole = from_torch(Net().double(), (X,))

    def names(trainable: Any = None, freeze: Any = None) -> list[str]:
        graph = whole.partial(trainable, freeze)
        assert {*graph.trainable} | {*graph.frozen} == {*whole.trainable}
        return [graph.onnx_names[name] for name in graph.trainable]

    everything = [whole.onnx_names[name] for name in whole.trainable]
    assert names("layer2.*,fc") == trained(everything) == names(["layer2", "fc.*"])
    assert names(freeze="conv1,bn1,layer1") == trained(everything)
    assert names("*.bias", "fc") == ["conv1.bias", "bn1.bias", "layer1.0.bias", "layer1.1.bias",
                                     "layer2.0.bias", "layer2.1.bias"]  # fmt: skip
    assert names("fc_weight") == ["fc.weight"]
    again = whole.partial("layer*").partial("layer2")
    assert set(again.frozen) | set(again.trainable) == set(whole.trainable)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable": "layer3"}, "trainable='layer3' matches no parameter; near it: layer"),
        ({"freeze": "fc,bn1.running_mean"}, "freeze='bn1.running_mean' matches no parameter; near"),
        (
            {"trainable": "zzz"},
            "matches no parameter; there are conv1, conv1.weight, conv1.b",
        ),
        (
            {"trainable": "fc", "freeze": "fc"},
            "no parameter is left to train: trainable='fc', freeze='fc'",
        ),
        ({"trainable": " , "}, "trainable: expected patterns of parameters' names, got ' , '"),
    ],
)
def test_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_torch(Net().double(), (X,), **options)  # type: ignore[arg-type]


def test_patterns_that_are_no_text() -> None:
    with pytest.raises(TypeError, match="expected patterns of parameters' names, got 3"):
        from_torch(Net().double(), (X,), trainable=3)  # type: ignore[arg-type]


def test_what_is_left_out() -> None:
    graph = from_torch(Net().double(), (X,), trainable="layer2,fc")
    found = left_out(graph)
    assert (found.whole.wgrads, found.whole.dgrads) == (3, 2)
    assert (found.part.wgrads, found.part.dgrads) == (1, 0)
    assert (found.whole.tensors, found.part.tensors) == (14, 6)
    assert found.part.kept < 0.6 * found.whole.kept
    biases = left_out(from_torch(Net().double().eval(), (X,), trainable="*.bias"))
    assert (biases.part.wgrads, biases.part.dgrads) == (0, 2)
    # The masks of three ReLUs, a byte each, and what the loss keeps.
    assert 3 * 4 * 4 * 36 <= biases.part.kept < 3 * 4 * 4 * 36 + 1000


def test_frozen_weights_are_kept_as_kernels_read_them() -> None:
    """On a GPU a frozen convolution's weight is not turned in each step either."""
    graph = from_torch(Net(), (X.float(),), trainable="layer2,fc")
    module, axes = kept_in_layout(step_module(graph), "NHWC", graph)
    assert set(axes) == {"conv1_weight", "layer1_0_weight", "layer2_0_weight"}
    text = module[ADJOINT].script()
    assert not re.search(r"permute_dims\((conv1|layer)\w*weight", text)


def test_a_state_goes_on(tmp_path: Any) -> None:
    """With the same parameters bit for bit; what is frozen stays."""
    whole = from_onnx(residual_net(blocks=0, size=6))
    part = Trainer(whole.partial("fc_*"), FAST, optimizer="momentum")
    part.step(whole.random_batch(0))
    path = tmp_path / "s.safetensors"
    state.save(part, path)
    before = {name: value.numpy() for name, value in part.params.items()}
    other = Trainer(whole.partial("fc_*"), FAST, optimizer="momentum")
    state.restore(other, path)
    batch = whole.random_batch(1)
    assert other.step(batch) == part.step(batch)
    after = {name: value.numpy() for name, value in part.params.items()}
    changed = {name for name in after if (after[name] != before[name]).any()}
    assert changed == {"fc_w", "fc_b", "stem_mean", "stem_var"}


@pytest.mark.longer("three trainings")
def test_other_parameters_are_trained_from_a_state(tmp_path: Any) -> None:
    """As PyTorch's optimizer with a further group: momentum of what was trained goes on, with that
    parameter's name, whatever the shapes; what was not has none."""
    net = Net().double()
    whole = from_torch(net, (X,))
    twin = Net().double()
    groups = {part: [p for n, p in twin.named_parameters() if n.startswith(part)]
              for part in ("layer1", "layer2")}  # fmt: skip
    rule = torch.optim.SGD(groups["layer1"], 0.1, momentum=0.9)
    update = Update(ema=0.5)
    first = Trainer(whole.partial("layer1"), FAST, optimizer="momentum", lr=0.1, update=update)
    path = tmp_path / "s.safetensors"

    averages: dict[str, Any] = {}

    def both(trainer: Trainer, step: int) -> None:
        batch = whole.random_batch(step)
        names = {trainer.graph.onnx_names[name] for name in trainer.graph.trainable}
        before = {n: p.detach().clone() for n, p in twin.named_parameters() if n in names}
        twin.zero_grad()
        want = fn.cross_entropy(twin(torch.tensor(batch["x"])), torch.tensor(batch["labels"]))
        want.backward()
        rule.step()
        assert abs(trainer.step(batch) - float(want.detach())) < 1e-12
        now = {n: p.detach() for n, p in twin.named_parameters() if n in names}
        start = {n: averages.get(n, before[n]) for n in names}
        averages.clear()
        averages.update({n: 0.5 * (start[n] + now[n]) for n in names})

    both(first, 0)
    both(first, 1)
    state.save(first, path)
    # As many tensors of the same shapes: what tells them apart are names.
    second = Trainer(whole.partial("layer2"), FAST, optimizer="momentum", lr=0.1, update=update)
    state.restore(second, path)
    rule = torch.optim.SGD(groups["layer2"], 0.1, momentum=0.9)
    both(second, 2)
    third = Trainer(whole.partial("layer?"), FAST, optimizer="momentum", lr=0.1, update=update)
    state.save(second, path)
    state.restore(third, path)
    rule.add_param_group({"params": groups["layer1"]})
    both(third, 3)
    both(third, 4)
    theirs = dict(twin.named_parameters())
    made = third.state[-len(third.graph.trainable) :]
    for name, average in zip(third.graph.trainable, made, strict=True):
        known = third.graph.onnx_names[name]
        assert relative(third.params[name], theirs[known].detach().numpy()) < 1e-12
        assert relative(average, averages[known].numpy()) < 1e-12


@pytest.mark.longer
def test_adam_goes_on_with_fewer_parameters(tmp_path: Any) -> None:
    graph = from_onnx(residual_net(blocks=0, size=6))
    path, few = tmp_path / "s.safetensors", graph.partial("fc_*")
    trainer = Trainer(graph, FAST, optimizer="adam")
    trainer.step(graph.random_batch(0))
    state.save(trainer, path)
    less = Trainer(few, FAST, optimizer="adam")
    state.restore(less, path)
    assert less.step(graph.random_batch(1)) == trainer.step(graph.random_batch(1))
    for name in few.trainable:
        assert (less.params[name].numpy() == trainer.params[name].numpy()).all()
    state.save(less, path)
    with pytest.raises(ValueError, match=r"did not train \w+ and \d more: adam counts updates"):
        state.check(path, graph, "adam")


def test_a_state_that_cannot_go_on(tmp_path: Any) -> None:
    graph = from_onnx(residual_net(blocks=0, size=6))
    path, update = tmp_path / "s.safetensors", Update(accumulate=2)
    trainer = Trainer(graph.partial("fc_*"), FAST, optimizer="sgd", update=update)
    trainer.step(graph.random_batch(0))
    state.save(trainer, path)
    with pytest.raises(ValueError, match="has gradients of 1 of accumulate=2 batches without it"):
        state.check(path, graph, "sgd", update)
    state.check(path, graph.partial("fc_w"), "sgd", update)
    found, tensors = state.read(path)
    for names, words in (
        ("fc_w", "trained is 'fc_w', not names"),
        ('["no"]', "it trained no, whi"),
    ):
        state.write(path, tensors, {**found, "trained": names})
        with pytest.raises(ValueError, match=words):
            state.check(path, graph, "sgd", update)


def test_frozen_norms_of_a_file() -> None:
    graph = from_onnx(residual_net(blocks=1, size=6), bn="frozen", freeze="stem*,b0?_scale")
    assert {*graph.updates.values()} == {"b01_mean", "b01_var", "b02_mean", "b02_var"}
    graph = from_onnx(residual_net(blocks=1, size=6), freeze="stem*")
    assert len(graph.updates) == 6
    assert isinstance(graph.module, tvm.IRModule)


@pytest.mark.share(2)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_max_pooling_keeps_a_byte_for_each_window(layout: str) -> None:
    """What it pools, and ReLU before it, are not alive in the backward part."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 4, 3, stride=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(4 * 49, 3),
    ).eval()  # fmt: skip
    graph = from_torch(net, (torch.zeros(4, 3, 32, 32),), trainable="*.bias")
    pooled = 4 * 16 * 32 * 32
    assert left_out(graph).part.kept < pooled  # of 4 pooled bytes, were they kept
    trainer = Trainer(graph, FAST, optimizer="sgd", layout=layout)
    # A convolution and its ReLU: no more in the backward part, where the pooled is not any more.
    assert trainer.compiled.planned_bytes < 8.5 * pooled
