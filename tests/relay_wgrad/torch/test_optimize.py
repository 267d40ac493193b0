"""`optimize`: which layers become ours, that nothing else changes, and what the report says."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import relay_wgrad.torch as rt
from relay_wgrad.torch import optimizing
from relay_wgrad.torch.choosing import Took


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.same = nn.ModuleList(nn.Conv2d(8, 8, 3, padding="same") for _ in range(2))
        self.norm, self.drop = nn.BatchNorm2d(8), nn.Dropout(0.5)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.unused = nn.Conv2d(1, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.same:
            x = layer(x)
        return self.up(self.drop(self.norm(x)))


def times(ours: float, theirs: float, host: float = math.nan) -> Any:
    """`host`: of a call of ours on a device, where PyTorch's take 0.5 of it."""

    def of(calls: Any, on: Any) -> dict[str, Took]:
        if math.isnan(host):
            return {"ours": Took(ours, ours), "theirs": Took(theirs, theirs)}
        return {"ours": Took(ours, host), "theirs": Took(theirs, 0.5)}

    return of


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours take half of PyTorch's time."""
    monkeypatch.setattr(optimizing, "times_of", times(1.0, 2.0))


@pytest.mark.usefixtures("fast")
def test_the_same_results_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    net = Net()
    plain, x = copy.deepcopy(net), torch.randn(2, 3, 9, 10)
    names, parameters = list(net.state_dict()), list(net.parameters())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    numbers = torch.get_rng_state()
    report = rt.optimize(net, x)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert report.replaced == ("first", "same.0", "same.1", "up")
    assert report.waiting == ("unused",)
    assert isinstance(net.first, rt.Conv2d)
    assert isinstance(net.up, rt.ConvTranspose2d)
    assert type(net.unused) is nn.Conv2d
    assert list(net.state_dict()) == names
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    assert all(torch.equal(v, before[n]) for n, v in net.state_dict().items())
    assert all(p.grad is None for p in parameters)
    torch.manual_seed(1)
    y = net(x)
    y.square().sum().backward()
    torch.manual_seed(1)
    want = plain(x)
    want.square().sum().backward()
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
    pairs = zip(net.parameters(), plain.parameters(), strict=True)
    grads = [(p.grad, q.grad) for p, q in pairs if q.grad is not None]
    # A bias before batch normalization has a gradient of 0, found as the rounding of large sums.
    rounding = 1e-6 * torch.stack([right.norm() for _, right in grads]).norm()
    for got, right in grads:
        assert (got - right).norm() <= 1e-5 * right.norm() + rounding
    text = str(report)
    assert "4 of 4 layers are ours: 8.000 ms before, 4.000 after; 1 not called yet" in text
    assert "float32 2x8x9x10" in text
    report.undo()
    assert [type(m) for m in net.modules()] == [type(m) for m in plain.modules()]
    assert not any(m._forward_pre_hooks for m in net.modules())
    assert report.replaced == report.waiting == ()


@pytest.mark.usefixtures("fast")
def test_by_the_first_call() -> None:
    """Each layer is measured by its own; equal ones once; a pass without gradients is forward."""
    net = Net().eval()
    report = rt.optimize(net)
    assert len(report.waiting) == 5
    assert report.layers == []
    with torch.no_grad():
        net(torch.randn(2, 3, 9, 10))
    assert [row.passes for row in report.layers] == ["forward"] * 4
    assert [type(m) for m in (net.first, *net.same, net.up)] == [rt.Conv2d] * 3 + [
        rt.ConvTranspose2d
    ]
    report.stop()
    net.unused(torch.randn(1, 1, 2, 2))
    assert type(net.unused) is nn.Conv2d


def test_equal_layers_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def measure(module: Any, inputs: Any, gradients: bool) -> tuple[Took, Took, str, str]:
        found.append((type(module), gradients))
        return Took(1.0, 1.0), Took(2.0, 2.0), "", ""

    monkeypatch.setattr(optimizing, "compared_times", measure)
    rt.optimize(Net(), torch.randn(2, 3, 9, 10))
    assert found == [(nn.Conv2d, True), (nn.Conv2d, True), (nn.ConvTranspose2d, True)]


@pytest.mark.parametrize(("ours", "why"), [(3.0, "faster"), (1.95, "within 5%")])
def test_what_is_not_faster_stays(monkeypatch: pytest.MonkeyPatch, ours: float, why: str) -> None:
    monkeypatch.setattr(optimizing, "times_of", times(ours, 2.0))
    net = nn.Conv2d(3, 4, 3)
    report = rt.optimize(net, torch.randn(1, 3, 5, 5))
    assert type(net) is nn.Conv2d
    assert [(row.replaced, row.reason) for row in report.layers] == [(False, why)]
    assert f"torch: {why}" in str(report)


def test_what_would_keep_the_host_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than PyTorch's takes on either."""
    for host, replaced, sums in ((1.9, ("",), "0.500 and 1.900"), (2.1, (), "0.500 and 0.500")):
        monkeypatch.setattr(optimizing, "times_of", times(1.0, 2.0, host))
        report = rt.optimize(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5))
        assert report.replaced == replaced
        assert f"after (of the host {sums})" in str(report)
    assert "torch: ours would keep the host for 2.100 ms" in str(report)
    assert rt.optimize(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5), host=False).replaced == ("",)
    with pytest.raises(TypeError, match="optimize: host must be a bool, got 1"):
        rt.optimize(nn.Conv2d(3, 4, 3), host=1)  # type: ignore[arg-type]


def test_times_of_a_host() -> None:
    took = optimizing.times_of({"a": lambda: None, "b": lambda: None}, torch.zeros(1))
    assert all(0 <= one.ms == one.host < 1 for one in took.values())


@pytest.mark.usefixtures("fast")
def test_what_differs_or_fails_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> torch.Tensor:
        return torch.nn.functional.conv2d(*args[:3]) + 1

    x = torch.randn(1, 3, 5, 5)
    monkeypatch.setattr("relay_wgrad.torch.modules.convolution", wrong)
    net = nn.Conv2d(3, 4, 3)
    (row,) = rt.optimize(net, x).layers
    assert type(net) is nn.Conv2d
    assert row.reason.startswith("results differ by ")
    assert math.isnan(row.ours)

    def fails(*args: Any) -> torch.Tensor:
        raise ValueError("no such kernel")

    monkeypatch.setattr("relay_wgrad.torch.modules.convolution", fails)
    (row,) = rt.optimize(net, x).layers
    assert row.reason == "ValueError: no such kernel"


@pytest.mark.usefixtures("fast")
def test_subclasses_stay() -> None:
    class Own(nn.Conv2d):
        pass

    net = nn.Sequential(Own(3, 4, 1), nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)))
    report = rt.optimize(net, torch.randn(1, 3, 5, 5))
    assert report.replaced == ()
    assert [row.name for row in report.layers] == ["0", "1"]
    assert "a Own, which may do something else" in str(report)
    again = rt.optimize(nn.Sequential(rt.Conv2d(3, 4, 1)), torch.randn(1, 3, 5, 5))
    assert again.layers == []


@pytest.mark.usefixtures("fast")
def test_tensors_of_a_subclass() -> None:
    class Own(torch.Tensor):
        pass

    net, x = nn.Conv2d(3, 4, 1), torch.randn(1, 3, 5, 5)
    report = rt.optimize(net)
    net(x.as_subclass(Own))
    assert [row.reason for row in report.layers] == ["changed, or a subclass"]
    assert type(net) is nn.Conv2d


@pytest.mark.usefixtures("fast")
def test_a_model_that_fails_is_as_it_was() -> None:
    net = Net()
    with pytest.raises(RuntimeError):
        rt.optimize(net, torch.randn(2, 5, 9, 10))
    assert not any(m._forward_pre_hooks for m in net.modules())
    assert type(net.first) is nn.Conv2d


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("mode", ["reflect", "circular"])
def test_other_paddings_frozen_weights_and_autocast(mode: str) -> None:
    net = nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode).requires_grad_(False)
    plain, x = copy.deepcopy(net), torch.randn(2, 3, 6, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = rt.optimize(net, x)
        assert report.replaced == ("",)
        torch.testing.assert_close(net(x), plain(x), rtol=2e-2, atol=2e-2)
    assert report.layers[0].passes == "forward"


def test_times_are_of_both_sides() -> None:
    net = nn.Conv2d(3, 4, 3)
    (row,) = rt.optimize(net, torch.randn(1, 3, 5, 5), margin=0).layers
    assert row.ours > 0
    assert row.theirs > 0
    assert row.replaced == (type(net) is rt.Conv2d) == (row.ours <= row.theirs)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"optimize: model must be a torch.nn.Module, got int"):
        rt.optimize(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"optimize: margin must be a share in \[0, 1\), got 2"):
        rt.optimize(nn.ReLU(), margin=2)


class Odd(nn.Module):
    """Its layer is called with a keyword; then it fails, if it is to."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.norm, self.conv, self.fails = nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if self.fails:
            raise RuntimeError("the model's own")
        return self.conv(input=x)


def test_buffers_are_put_back_where_the_model_fails() -> None:
    net = Odd(fails=True)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(RuntimeError, match="the model's own"):
        rt.optimize(net, torch.randn(2, 2, 3, 3))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_layer_that_is_called_with_keywords_stays() -> None:
    (row,) = rt.optimize(Odd(fails=False), torch.randn(2, 2, 3, 3)).layers
    assert (row.name, row.replaced, row.reason) == ("conv", False, "called with keywords alone")
