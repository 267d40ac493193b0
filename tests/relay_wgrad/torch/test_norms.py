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
        graphs.append([f"{node.target.__name__[10:-8]}{node.args[-1]}" for node in ours])
        return count

    def by_pytorch(name: str, calls: Any, graph: Any, example: Any) -> Any:
        return make_boxed_func(graph)

    monkeypatch.setattr(compiler, "has_norms", lambda graph: True)
    monkeypatch.setattr(compiler, "whole_norms", noted)
    if request.function is not test_compiled_here:
        monkeypatch.setattr(compiler, "compiled", by_pytorch)
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
}
MIXED = {"residual": ["relu", ""], "in place": [""]}


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


@pytest.mark.share(3)
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


@pytest.mark.share(3)
@pytest.mark.parametrize("activation", ["", "relu", "relu6", "silu"])
@pytest.mark.parametrize("added", [False, True])
def test_ops(activation: str, added: bool) -> None:
    """PyTorch runs them as well: where a graph is refused."""
    torch.manual_seed(0)
    x, residual, dy = torch.randn(3, 2, 4, 3, 5, dtype=torch.float64)
    weight, bias, mean = (torch.randn(4, dtype=torch.float64) for _ in range(3))
    more = residual if added else None
    ops = torch.ops.relay_wgrad
    given = (x, weight, bias, more, mean, mean.abs(), 0.1, 1e-5, activation)
    y, center, rstd, *_ = ops.norm_train(*given)
    torch_library.opcheck(ops.norm_train.default, given)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias, residual)]
    z = F.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True)
    z = z + leaves[3] if added else z
    act: Any = {"": lambda v: v, "relu": F.relu, "relu6": F.relu6, "silu": F.silu}[activation]
    want = act(z)
    assert torch.allclose(y, want, rtol=1e-12)
    by_result = added and activation == "relu"
    if added and not by_result:
        return  # such a one is never made
    given = (dy, x, weight, bias, center, rstd, y if by_result else None, 1e-5, activation)
    torch_library.opcheck(ops.norm_train_backward.default, given)
    made = ops.norm_train_backward(*given)
    wanted = torch.autograd.grad(want, leaves[: 3 + by_result], dy)
    for one, other in zip(made, wanted, strict=False):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
