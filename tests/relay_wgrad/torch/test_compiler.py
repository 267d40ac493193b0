"""`torch.compile(backend=…)`: training steps beside eager's, sizes that change, what falls back."""

from __future__ import annotations

import copy
import importlib
import operator
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import library as torch_library
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from relay_wgrad.torch import allow_winograd, compiler
from relay_wgrad.torch.compiler import backend
from relay_wgrad.torch.reports import CompiledGraph, compiled_graphs

pytestmark = pytest.mark.usefixtures("registered", "fresh_dynamo")

F = nn.functional
WIDTH = nn.LayerNorm(6)
ROOT = Path(__file__).parents[3]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 5),
    ).double()  # fmt: skip


def data(count: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, 8, 8, dtype=torch.float64, generator=generator)
    return x, torch.arange(count) % 5


def trained(model: Any, module: nn.Module, counts: Any, last: bool = False) -> list[float]:
    """The losses of steps of SGD with momentum on batches of these sizes."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for seed, count in enumerate(counts):
        x, labels = data(count, seed)
        x = x.to(memory_format=torch.channels_last) if last else x
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def same(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12), name


def graphs() -> list[CompiledGraph]:
    """Those of this test: the last forward and backward parts."""
    return compiled_graphs()[-2:]


def test_a_step() -> None:
    """A layer's value, gradients and statistics, in one compilation of each pass."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)).double()
    twin, x = copy.deepcopy(module), data(2)[0]
    y = torch.compile(module, backend=backend, fullgraph=True)(x)
    (y**3).sum().backward()
    (twin(x) ** 3).sum().backward()
    same(module, twin)
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.longer
def test_steps_are_eager_ones() -> None:
    """Losses, parameters and running statistics; nothing breaks the graph."""
    module = net()
    twin = copy.deepcopy(module)
    step = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    assert trained(step, module, (4, 4, 4)) == pytest.approx(trained(twin, twin, (4, 4, 4)))
    same(module, twin)
    forward, backward = graphs()
    assert (forward.sizes, backward.sizes, forward.reason, backward.reason) == (1, 1, "", "")
    found = [line.split()[0] for line in forward.convolutions + backward.convolutions]
    wgrad, dgrad = "conv2d_backward_weight", "conv2d_backward_data"
    assert sorted(found) == sorted(["conv2d", "conv2d", wgrad, wgrad, dgrad])


@pytest.mark.longer
def test_batches_of_other_sizes() -> None:
    """The second size makes Dynamo's batch symbolic; each size is compiled for by itself."""
    module = net()
    twin = copy.deepcopy(module)
    step = torch.compile(module, backend=backend, fullgraph=True)
    counts = (4, 2, 3, 2)
    assert trained(step, module, counts) == pytest.approx(trained(twin, twin, counts))
    same(module, twin)
    assert [graph.sizes for graph in graphs()] == [2, 2]


@pytest.mark.longer
def test_channels_last_is_kept() -> None:
    module = net()[:3].to(memory_format=torch.channels_last)
    twin = copy.deepcopy(module)
    x = data(2)[0].to(memory_format=torch.channels_last)
    y = torch.compile(module, backend=backend, fullgraph=True)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y.is_contiguous()
    y.square().sum().backward()
    want = twin(x)
    want.square().sum().backward()
    assert torch.allclose(y, want, rtol=1e-10)
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-8, atol=1e-10)
        assert a.grad.stride() == b.grad.stride()


def test_winograd_is_asked_for() -> None:
    """Sums of transformed values, and other gradients of ReLU at zero, where they are allowed."""
    torch.manual_seed(1)
    module = nn.Conv2d(64, 64, 3, padding=1)
    x = torch.randn(4, 64, 28, 28)
    model = torch.compile(module, backend=backend, fullgraph=True)
    want = copy.deepcopy(module).double()(x.double())
    for allow, word in ((False, "direct"), (True, "Winograd")):
        with allow_winograd(allow), torch.no_grad():
            assert (model(x) - want).norm() < 1e-5 * want.norm()
        assert compiled_graphs()[-1].convolutions == [f"conv2d llvm {word}"]
    assert compiled_graphs()[-1].sizes == 2


def test_without_gradients_and_evaluated() -> None:
    module = net()[:3].eval()
    x = data(2)[0]
    with torch.no_grad():
        y = torch.compile(module, backend=backend, fullgraph=True)(x)
    assert torch.allclose(y, module(x), rtol=1e-10)
    assert compiled_graphs()[-1].name.endswith("inference")


def test_tensors_made_of_numbers() -> None:
    """Labels or weights that the compiled code itself writes down."""

    def function(x: Any) -> Any:
        return F.cross_entropy(x, torch.tensor([1, 2])) * torch.tensor(2.0)

    x = data(2)[0].flatten(1).requires_grad_()
    got = torch.compile(function, backend=backend, fullgraph=True)(x)
    (dx,) = torch.autograd.grad(got, x)
    want = function(x)
    assert torch.allclose(got, want, rtol=1e-10)
    assert torch.allclose(dx, torch.autograd.grad(want, x)[0], rtol=1e-8, atol=1e-12)


def test_dropout_is_pytorchs_generator() -> None:
    """Kept elements are doubled, the gradient has the same mask, a seed gives the same."""
    module = torch.compile(nn.Dropout(0.5), backend=backend, fullgraph=True)
    x = torch.ones(64, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    y = module(x)
    y.sum().backward()
    assert set(y.detach().tolist()) == {0.0, 2.0}
    assert torch.equal(x.grad, y)
    torch.manual_seed(3)
    assert torch.equal(module(x), y)


def test_random_numbers_that_the_backward_pass_reads() -> None:
    """Images left out, as by stochastic depth: their numbers, which eager mode draws too."""

    def function(x: Any) -> Any:
        return x * torch.empty(len(x), 1).bernoulli_(0.5).div_(0.5)

    x = torch.ones(64, 2, requires_grad=True)
    torch.manual_seed(3)
    y = torch.compile(function, backend=backend, fullgraph=True)(x)
    y.sum().backward()
    assert [graph.reason for graph in graphs()] == ["", ""]
    torch.manual_seed(3)
    assert torch.equal(y, function(x))
    assert torch.equal(x.grad, y)


def test_what_is_refused_falls_back() -> None:
    """A graph with an op that is not taken is run by PyTorch, and that is said."""

    def function(x: Any) -> Any:
        return torch.special.bessel_j0(x) * 2

    x = torch.ones(3, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"PyTorch runs this: .*bessel_j0"):
        y = torch.compile(function, backend=backend, fullgraph=True)(x)
    assert torch.equal(y, function(x))
    assert "bessel_j0" in compiled_graphs()[-1].reason


def test_what_cannot_be_compiled_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong on the way to a program, the step is PyTorch's."""

    def fails(*args: Any, **given: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("relay_wgrad.frontend.from_aot", fails)
    with pytest.warns(UserWarning, match="PyTorch runs this: RuntimeError: no such kernel"):
        y = torch.compile(torch.neg, backend=backend)(torch.ones(2))
    assert torch.equal(y, -torch.ones(2))
    assert compiled_graphs()[-1].reason == "RuntimeError: no such kernel"


def test_what_cannot_be_rewritten_is_compiled_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a joint graph that a search through it fails on, the passes are compiled apart."""

    def fails(graph: Any) -> None:
        graph.erase_node(graph.output_node())
        raise RuntimeError("a graph\nof another kind")

    monkeypatch.setattr("relay_wgrad.torch.compiler.divided_first", fails)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    torch.compile(torch.sin, backend=backend)(x).sum().backward()
    assert torch.allclose(x.grad, x.cos(), rtol=1e-12)
    assert [graph.reason for graph in graphs()] == ["", ""]
    why = "the two passes are compiled apart: RuntimeError: a graph of another kind"
    assert all(why in graph.notes for graph in graphs())


def test_means_over_sizes_that_vary() -> None:
    """The divisor of a mean's gradient is a product of symbolic sizes, and no number."""

    def function(x: Any) -> Any:
        return (x * x).mean((2, 3)) / x.shape[2]

    step = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for size in (3, 5):
        x = torch.randn(2, 4, size, 6, dtype=torch.float64, requires_grad=True)
        found = [torch.autograd.grad(f(x).sin().sum(), x)[0] for f in (step, function)]
        assert torch.allclose(*found, rtol=1e-12)
    assert [(graph.reason, graph.sizes) for graph in graphs()] == [("", 2), ("", 2)]
    assert not any("apart" in note for graph in graphs() for note in graph.notes)


OVERLAPPING: dict[str, Any] = {
    "windows": lambda x: x.unfold(1, 3, 2),
    "windows beside another": lambda x: (x.unfold(2, 2, 1), x * 2),
    "by strides": lambda x: x.contiguous().as_strided((3, 4), (1, 1)),
    "one row for all": lambda x: x[:, :1].expand(-1, 3, -1),
    "windows apart": lambda x: x.unfold(1, 2, 3),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_gradients_of_results_that_overlap(name: str) -> None:
    """Each element of such a result has a gradient of its own, which `aot_eager` loses."""

    def function(x: Any) -> Any:
        found = OVERLAPPING[name](x.sin())
        return found if isinstance(found, tuple) else (found,)

    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    step = torch.compile(function, backend=backend, fullgraph=True)
    found = []
    for results in (step(x), function(x)):
        total = sum((y * torch.arange(y.numel()).reshape(y.shape)).sum() for y in results)
        found.append(torch.autograd.grad(total, x)[0])
    assert torch.allclose(*found, rtol=1e-12)
    assert [graph.reason for graph in graphs()] == ["", ""]


def test_results_have_memory_of_their_own() -> None:
    """What eager copies is a copy: changed in place, it leaves the operand as it was."""

    def function(x: Any) -> Any:
        return x.clone(), x.clone().reshape(6), x + 1

    x = torch.zeros(2, 3, dtype=torch.float64)
    first, second, third = torch.compile(function, backend=backend, fullgraph=True)(x)
    for y in (first, second, third):
        y.add_(5)
    assert torch.equal(x, torch.zeros_like(x))
    assert (first.sum(), second.sum(), third.sum()) == (30, 30, 36)


def test_the_pool_keeps_no_places() -> None:
    """The joint graph's pooling has our backward op, which PyTorch runs as well."""
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)
    y = F.max_pool2d(x, 3, 2, 1, ceil_mode=True)
    dy = torch.randn_like(y)
    (want,) = torch.autograd.grad(y, x, dy)
    op = torch.ops.relay_wgrad.max_pool2d_backward
    assert torch.equal(op(dy, x.detach(), [3, 3], [2, 2], [1, 1], [1, 1], True), want)
    torch_library.opcheck(op.default, (dy, x.detach(), [3, 3], [2, 2], [1, 1], [1, 1], True))


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"options": {"fast": True}}, "unknown option fast"),
        ({"options": {"only": "pools"}}, "only must be 'convolutions', got 'pools'"),
        ({"mode": "max-autotune"}, "mode must be one of .*, got 'max-autotune'"),
        (
            {"mode": "reduce-overhead", "options": {"only": "convolutions"}},
            "takes no mode, got 'reduce-overhead'",
        ),
        ({"options": {"only": "convolutions", "graphs": True}}, "takes no graphs"),
        ({"options": {"graphs": "no"}}, "graphs must be a bool, got 'no'"),
    ],
)
def test_options(given: Any, rule: str) -> None:
    graph = make_fx(operator.neg)(torch.zeros(2))
    with pytest.raises(ValueError, match=rule):
        backend(graph, [torch.zeros(2)], **given)


def test_entry_points() -> None:
    """The names that `torch.compile` finds once the package is installed."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch_dynamo_backends"]
    found = {}
    for name, path in points.items():
        module, _, attribute = path.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    assert found == {
        "relay_wgrad": compiler.backend,
        "relay_wgrad_convolutions": compiler.convolutions_backend,
    }


# ---- half precision ------------------------------------------------------------------------------


def stepped(model: Any, of: nn.Module, x: Any, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Output, gradients and buffers of a step, under autocast to a type if there is one."""
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        y = model(x)
        loss = F.cross_entropy(y.float(), torch.arange(len(x)) % 5)
    loss.backward()
    return [y.detach(), *(p.grad for p in of.parameters()), *of.buffers()]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.bfloat16, True), (torch.float16, True), (torch.float16, False)]
)
def test_half(dtype: torch.dtype, autocast: bool) -> None:
    """A step in half precision, of its types, no further from float64 than eager's."""
    exact = net()
    module = copy.deepcopy(exact).to(torch.float32 if autocast else dtype)
    twin, x = copy.deepcopy(module), data(4)[0]
    model = torch.compile(module, backend=backend, fullgraph=True)
    near = x.to(torch.float32 if autocast else dtype)
    ours, theirs = (
        stepped(m, of, near, dtype if autocast else None)
        for m, of in ((model, module), (twin, twin))
    )
    assert [graph.reason for graph in graphs()] == ["", ""]
    assert sum(len(graph.convolutions) for graph in graphs()) == 5
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    for i, (a, b, c) in enumerate(zip(ours, theirs, stepped(exact, exact, x, None), strict=True)):
        off, eager = ((t.double() - c).norm() for t in (a, b))
        assert off <= 2 * eager + 2 * torch.finfo(dtype).eps * c.double().norm(), i


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda c: nn.GroupNorm(2, c), lambda _: WIDTH])
def test_statistics_are_not_rounded(norm: Any) -> None:
    """Beside parameters in float32 a batch's mean and deviation go to the backward pass in float32,
    as PyTorch's kernels have them and its shape functions have not."""
    torch.manual_seed(1)
    module = nn.Sequential(norm(4))
    x = torch.randn(3, 4, 5, 6).bfloat16() * 3 + 2
    found = []
    for of, given in ((module, x), (copy.deepcopy(module).double(), x.double())):
        model = of if of is not module else torch.compile(of, backend=backend, fullgraph=True)
        y = model(given)
        y.backward(torch.sin(torch.arange(y.numel())).reshape(y.shape).bfloat16().to(y.dtype))
        found.append([p.grad for p in of.parameters()])
    assert [graph.reason for graph in graphs()] == ["", ""]
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() < 3e-6 * exact.norm()


@pytest.mark.longer("compiles C++ by Inductor")
def test_autocast_with_inductor() -> None:
    """Convolutions that autocast casts are measured as such, and no cache has their place."""
    module = net().float()
    twin, x = copy.deepcopy(module), data(4)[0].float()
    theirs = stepped(twin, twin, x, torch.bfloat16)
    for _ in range(2):
        torch._dynamo.reset()
        module.load_state_dict(net().state_dict())
        model = torch.compile(module, backend=compiler.convolutions_backend, fullgraph=True)
        ours = stepped(model, module, x, torch.bfloat16)
        assert (ours[0] - theirs[0]).float().norm() < 0.05 * theirs[0].float().norm()
        forward, backward = graphs()
        lines = forward.convolutions + backward.convolutions
        assert len(lines) == 5
        assert all("ms, torch" in line for line in lines), lines
        forward.convolutions.clear()


# ---- convolutions alone --------------------------------------------------------------------------


@pytest.mark.longer("compiles C++ by Inductor")
def test_steps_with_inductor() -> None:
    module = net().float()
    twin = copy.deepcopy(module)
    step = torch.compile(module, backend=compiler.convolutions_backend, fullgraph=True)
    losses = []
    for model, of in ((step, module), (twin, twin)):
        x, labels = data(4)
        loss = F.cross_entropy(model(x.float()), labels)
        loss.backward()
        losses.append(float(loss.detach()))
        assert all(p.grad is not None for p in of.parameters())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5)


class Attending(nn.Module):
    """Axes are exchanged before what is kept for the backward pass, whose views want them so."""

    def __init__(self, first: bool, pooled: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=first)
        self.last, self.pooled = nn.Linear(8, 5), pooled

    def forward(self, x: Any) -> Any:
        y = self.conv(x).reshape(x.shape[0], 8, -1).permute(0, 2, 1)
        z = self.norm(y)
        y = y + self.attention(z, z, z, need_weights=False)[0]
        if self.pooled:  # whose gradient PyTorch runs
            y = F.adaptive_max_pool2d(y[None], (2, 8))[0]
        return self.last(y[:, 0]).square().sum()


@pytest.mark.longer_cases("False", "True-False", why="with what PyTorch runs stays")
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.filterwarnings("ignore:relay_wgrad. PyTorch runs this")
def test_exchanged_axes(first: bool, pooled: bool) -> None:
    torch.manual_seed(0)
    module = Attending(first, pooled)
    twin = copy.deepcopy(module)
    model = torch.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(3, 3, 16, 16)
    for call in (model, twin):
        call(x).backward()
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-5)
    assert not compiled_graphs()[-2].reason
