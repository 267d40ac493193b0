"""Normalizations in joint graphs: one op with what follows, in numbers what eager mode gives."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import library as torch_library
from torch import nn
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional as F

from relay_wgrad.torch import compiler, norms
from relay_wgrad.torch.reports import compiled_graphs

pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture
def found(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """As where there are kernels for them: the activations of each graph's ops, forward first.

    PyTorch runs what is made of them, but for one test.
    """
    graphs: list[list[str]] = []

    def noted(graph: Any) -> int:
        count = norms.whole_norms(graph)
        ours = [node for node in graph.nodes if "norm_train" in str(node.target)]
        graphs.append([f"{node.target.__name__[10:-8]}{node.args[-2]}" for node in ours])
        return count

    def by_pytorch(name: str, calls: Any, graph: Any, example: Any) -> Any:
        return make_boxed_func(graph)

    monkeypatch.setattr(compiler, "has_norms", lambda values: True)
    monkeypatch.setattr(compiler, "whole_norms", noted)
    if not request.function.__name__.startswith("test_compiled_here"):
        monkeypatch.setattr(compiler, "compiled", by_pytorch)
        monkeypatch.setattr(compiler, "why_apart", lambda *_: "they are run here")
    torch._dynamo.reset()
    yield graphs
    torch._dynamo.reset()


class Layer(nn.Module):
    """A convolution and its normalization."""

    def __init__(self, k: int = 6, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, k, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(k)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Net(nn.Module):
    """One way to use three layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b, self.c = Layer(), Layer(), Layer()

    def forward(self, x: Any) -> Any:
        a, b, c = self.a, self.b, self.c
        y: Any = {
            "plain": lambda: c(b(a(x)).tanh()),
            "relu": lambda: F.relu(b(F.relu(a(x)))),
            "relu6": lambda: b(F.relu6(a(x))),
            "silu": lambda: b(F.silu(a(x))),
            "residual": lambda: F.relu(b(F.relu(a(x))) + x),
            "projected": lambda: F.relu(b(F.relu(a(x))) + c(x)),
            "twice": lambda: F.relu(a(F.relu(a(x)))),
            "in place": lambda: F.relu(b(x).add_(x), inplace=True),
            "both": lambda: torch.cat([F.relu(y := a(x)), y], 1),
            "shared sum": lambda: (lambda z: F.relu(z) + z.square())(a(x) + x),
            "scaled": lambda: F.relu(torch.add(a(x), x, alpha=2)),
            "result twice": lambda: (lambda y: b(y) + y)(F.relu(a(x))),
            "statistics": lambda: F.relu(a(x)) + a.norm.running_mean.sum(),
            "frozen": lambda: F.relu(a(x.detach())),
            "all": lambda: F.silu(c(F.relu6(b(F.relu(a(F.relu(c(x))) + x))))),
            "sigmoid": lambda: F.hardtanh(a(x), -1.0, 1.0),
            "leaky": lambda: F.leaky_relu(b(F.leaky_relu(a(x), 0.2)) + x, 0.1),
            "curves": lambda: F.elu(c(F.gelu(b(F.hardswish(a(x))), approximate="tanh")), 0.7),
            "written over": lambda: F.elu(b(F.leaky_relu(a(x), 0.2, True)), 0.7, True),
            "upwards": lambda: F.leaky_relu(a(x), -0.2),
            "selu": lambda: F.selu(F.gelu(a(x))),
        }[self.kind]()
        fixed = torch.cos(torch.arange(y.numel(), dtype=torch.float32)).view(y.shape)
        return (y * fixed).sum() + (y * y).mean()


ACTIVATIONS = {
    "plain": ["", "", ""],
    "relu": ["relu", "relu"],
    "relu6": ["", "relu6"],
    "silu": ["", "silu"],
    "residual": ["relu", "relu"],
    "projected": ["", "relu", "relu"],  # the other's is without
    "twice": ["relu", "relu"],
    "in place": ["relu"],
    "both": [""],
    "shared sum": [""],
    "scaled": [""],
    "result twice": ["", "relu"],
    "statistics": ["relu"],
    "frozen": ["relu"],
    "sigmoid": [""],
    "leaky": ["leaky_relu", "leaky_relu"],
    "curves": ["hardswish", "gelu_tanh", "elu"],
    "written over": ["leaky_relu", "elu"],
    "upwards": [""],  # of a negative slope the result would not tell
    "selu": ["gelu"],
}
MIXED = {"residual": ["relu", ""], "in place": [""], "leaky": ["leaky_relu", ""]}


def run(model: Any, module: nn.Module, x: Any, half: Any) -> list[torch.Tensor]:
    """Loss, gradients, statistics."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", half, enabled=half is not None):
        loss = model(x)
    loss.backward()
    grads = [x.grad, *(p.grad for p in module.parameters())]
    return [loss.detach(), *(g for g in grads if g is not None), *module.buffers()]


def check(kind: str, half: Any) -> None:
    """Beside eager mode, both beside float64."""
    torch.manual_seed(0)
    module = Net(kind).to(memory_format=torch.channels_last)
    x = torch.randn(3, 6, 7, 5).to(memory_format=torch.channels_last)
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    want = run(exact, exact, x.double(), None)
    theirs = run(eager, eager, x, half)
    ours = run(torch.compile(module, backend=compiler.backend, fullgraph=True), module, x, half)
    for one, other, exactly in zip(ours, theirs, want, strict=True):
        size = float(exactly.double().norm()) + 1e-3
        error, usual = (float((a.double() - exactly).norm()) / size for a in (one, other))
        assert error <= max(2 * usual, 2e-2 if half else 1e-5), (kind, error, usual)


@pytest.mark.share(5)
@pytest.mark.longer_cases(
    "plain-half1",
    "relu-half1",
    "projected-half1",
    "twice-half1",
    "in place-half1",
    "both-half1",
    "shared sum-half1",
    "scaled-half1",
    "result twice-half1",
    "statistics-half1",
    "frozen-half1",
    "sigmoid-half1",
    "leaky-half1",
    "curves-half1",
    "written over-half1",
    "upwards-half1",
    "selu-half1",
)
@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_numbers_and_what_is_found(kind: str, half: Any, found: list[list[str]]) -> None:
    """Each normalization is an op, with an activation where nobody else reads its operand.

    Images are float32 under autocast: where they are added, types are mixed.
    """
    check(kind, half)
    ((*ops,),) = found
    want = Counter(ACTIVATIONS[kind] if half is None else MIXED.get(kind, ACTIVATIONS[kind]))
    assert Counter(ops) == want + Counter({f"_backward{name}": n for name, n in want.items()})


@pytest.mark.longer
@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.usefixtures("found")
def test_compiled_here(half: Any) -> None:
    """The rows of both ops: every activation, with a residual and without."""
    check("all", half)
    assert not [graph.reason for graph in compiled_graphs()[-2:] if graph.reason]


class Volumes(nn.Module):
    """A convolution of volumes, and what nnU-Net's blocks have behind it, in one way."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b = (nn.Conv3d(6, 6, 3, padding=1) for _ in range(2))
        self.norm = nn.InstanceNorm3d(6, affine=True)
        self.grouped = nn.GroupNorm(3, 6)
        self.bare, self.running = (
            nn.InstanceNorm3d(6),
            nn.InstanceNorm3d(6, track_running_stats=True),
        )
        for norm in (self.norm, self.grouped):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)

    def forward(self, x: Any) -> Any:
        norm, grouped, bare = self.norm, self.grouped, self.bare
        a, b = self.a, self.b
        y: Any = {
            "instance": lambda: F.leaky_relu(norm(b(F.leaky_relu(norm(a(x)), 0.1))), 0.01, True),
            "residual": lambda: F.leaky_relu(norm(b(F.leaky_relu(norm(a(x)), 0.1))).add_(x), 0.01),
            "groups": lambda: F.silu(grouped(b(F.gelu(grouped(a(x)))))),
            "bare": lambda: F.relu(bare(b(F.elu(bare(a(x)), inplace=True)))),
            "alone": lambda: grouped(b(norm(a(x)))),
            "running": lambda: F.relu(self.running(a(x))) + norm(x),
            "rows": lambda: norm(a(x)).view(x.shape[0], -1),
        }[self.kind]()
        fixed = torch.cos(torch.arange(y.numel(), dtype=torch.float32)).view(y.shape)
        return (y * fixed).sum() + (y * y).mean()


GROUPED = {
    "instance": ["leaky_relu", "leaky_relu"],
    "residual": ["leaky_relu", "leaky_relu"],
    "groups": ["gelu", "silu"],
    "bare": ["elu", "relu"],
    "alone": ["", ""],
    "running": [""],  # the other is left to PyTorch, and reported
    "rows": [],  # a view that wants them contiguous, where they would lie channels last
}


def check_volumes(kind: str, half: Any) -> None:
    """As `check`."""
    torch.manual_seed(0)
    module = Volumes(kind).to(memory_format=torch.channels_last_3d)
    x = torch.randn(3, 6, 4, 5, 3).to(memory_format=torch.channels_last_3d)
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    want = run(exact, exact, x.double(), None)
    theirs = run(eager, eager, x, half)
    ours = run(torch.compile(module, backend=compiler.backend, fullgraph=True), module, x, half)
    sizes = [float(v.double().norm()) for v in want]
    for one, other, exactly in zip(ours, theirs, want, strict=True):
        # Of a bias in front of a normalization the gradient is 0: what is left is rounding.
        size = float(exactly.double().norm()) + 1e-2 * max(sizes)
        error, usual = (float((a.double() - exactly).norm()) / size for a in (one, other))
        assert error <= max(2 * usual, 3e-2 if half else 1e-5), (kind, error, usual)


@pytest.mark.share(3)
@pytest.mark.parametrize("half", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", GROUPED)
def test_groups(kind: str, half: Any, found: list[list[str]]) -> None:
    """Group and instance normalizations, which are no view of a batch's by then; under autocast a
    residual of float32 is of another type than what it is added to, and volumes lie in order where
    the CPU has no instructions for halves."""
    check_volumes(kind, half)
    ops = found[-1]
    mixed = {"residual": ["leaky_relu", ""]} if half else {}
    if half and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        mixed["rows"] = [""]
    want = Counter(mixed.get(kind, GROUPED[kind]))
    assert Counter(ops) == want + Counter({f"_backward{name}": n for name, n in want.items()})


@pytest.mark.longer_cases("residual", "bare", why="numbers are test_groups'")
@pytest.mark.parametrize("kind", ["instance", "residual", "groups", "bare"])
@pytest.mark.usefixtures("found")
def test_compiled_here_groups(kind: str) -> None:
    """The rows of both ops, volumes that lie channels last, and what is said of the others."""
    check_volumes(kind, None)
    assert not [graph.reason for graph in compiled_graphs()[-2:] if graph.reason]


@pytest.mark.usefixtures("found")
def test_compiled_here_is_reported() -> None:
    check_volumes("running", None)
    notes = [note for graph in compiled_graphs()[-2:] for note in graph.notes]
    assert any("instance_norm is not one operator: it has running statistics" in n for n in notes)


@pytest.mark.share(11)
@pytest.mark.parametrize("groups", [0, 2, 4])
@pytest.mark.parametrize(
    "activation",
    ["", "relu", "relu6", "leaky_relu", "silu", "gelu", "gelu_tanh", "hardswish", "elu"],
)
@pytest.mark.parametrize("added", [False, True])
def test_ops(groups: int, activation: str, added: bool) -> None:
    """PyTorch runs them as well: where a graph is refused."""
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, 2, 4, 3, 5, dtype=torch.float64)
    weight, bias, mean = (torch.randn(4, dtype=torch.float64) for _ in range(3))
    more, alpha = residual if added else None, 0.3 if activation in ("leaky_relu", "elu") else 0.0
    ops = torch.ops.relay_wgrad
    running = (None, None) if groups else (mean, mean.abs())
    given = (x, weight, bias, more, *running, groups, 0.1, 1e-5, activation, alpha)
    y, center, rstd, *_ = ops.norm_train(*given)
    torch_library.opcheck(ops.norm_train.default, given)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias, residual)]
    if groups:
        z = F.group_norm(leaves[0], groups, leaves[1], leaves[2])
    else:
        z = F.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True)
    z = z + leaves[3] if added else z
    act: Any = {
        "": lambda v: v,
        "relu": F.relu,
        "relu6": F.relu6,
        "leaky_relu": lambda v: F.leaky_relu(v, alpha),
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
        "hardswish": F.hardswish,
        "elu": lambda v: F.elu(v, alpha),
    }[activation]
    want = act(z)
    assert torch.allclose(y, want, rtol=1e-12)
    by_result = added and activation in ("relu", "relu6", "leaky_relu")
    if added and not by_result:
        return  # such a one is never made
    kept = y if by_result else None
    given = (dy, x, weight, bias, center, rstd, kept, groups, 1e-5, activation, alpha)
    torch_library.opcheck(ops.norm_train_backward.default, given)
    made = ops.norm_train_backward(*given)
    wanted = torch.autograd.grad(want, leaves[: 3 + by_result], dy)
    for one, other in zip(made, wanted, strict=False):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
