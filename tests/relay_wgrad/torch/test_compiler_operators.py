"""`torch.compile(backend=…)`: operators that it gives back to PyTorch, right all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.torch.compiler import backend
from relay_wgrad.torch.reports import compiled_graphs

pytestmark = pytest.mark.usefixtures("registered", "fresh_dynamo")

F = nn.functional


WRITING: dict[str, Any] = {
    # Whose windows share elements, in a backward pass that PyTorch runs.
    "unfold": lambda c, w: c.unfold(2, 3, 2),
    "unfold twice": lambda c, w: c.unfold(2, 3, 2).exp().unfold(3, 2, 1),
    "qr": lambda c, w: torch.linalg.qr(w.flatten(1).T)[0].sum() + c.mean(),
    "diagonal_scatter": lambda c, w: torch.diagonal_scatter(c, c[:, :, 0, :6] * 0, 0, 2, 3),
    "diagonal_copy": lambda c, w: torch.diagonal_copy(c, 0, 2, 3) * 2,
    "complex": lambda c, w: torch.complex(c, c * 2).abs(),
    "polar": lambda c, w: torch.polar(c.exp(), c).real,
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", WRITING)
@pytest.mark.filterwarnings("ignore:relay_wgrad. PyTorch runs this")
def test_decompositions_write_nothing_in_place(name: str) -> None:
    """AOTAutograd asserts that its graphs are functional, which some of PyTorch's rules are not."""
    w = torch.randn(4, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)

    def function(x: torch.Tensor) -> Any:
        return WRITING[name](F.conv2d(x, w), w).square().mean()

    found = []
    for one in ("aot_eager", backend):
        torch._dynamo.reset()
        loss = torch.compile(function, backend=one)(x)
        found.append([loss.detach(), *torch.autograd.grad(loss, w)])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-13)


def test_images_without_a_batch() -> None:
    """Pools and their backward ops of three axes."""

    def function(x: Any) -> Any:
        pooled = F.max_pool2d(x * 2, 2) + F.adaptive_avg_pool2d(x, 3).sin()
        return pooled.sum() + F.max_pool3d(x[None], (1, 2, 2)).square().sum()

    x = torch.randn(2, 6, 6, dtype=torch.float64, requires_grad=True)
    step = torch.compile(function, backend=backend, fullgraph=True)
    got, want = (torch.autograd.grad(f(x), x)[0] for f in (step, function))
    assert torch.allclose(got, want, rtol=1e-12)
    assert [graph.reason for graph in compiled_graphs()[-2:]] == ["", ""]


def test_running_sums_and_products() -> None:
    """PyTorch's rules of them end in primitives, which have a namespace of their own."""

    def function(x: Any) -> Any:
        return (x.cumsum(1) * x.cumprod(-1)).square().sum() + (x.prod(2) * x.prod()).sum()

    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    step = torch.compile(function, backend=backend, fullgraph=True)
    got, want = (torch.autograd.grad(f(x), x)[0] for f in (step, function))
    assert torch.allclose(got, want, rtol=1e-12)
    assert [graph.reason for graph in compiled_graphs()[-2:]] == ["", ""]


def test_tensors_without_elements() -> None:
    """By any strides that PyTorch gives them."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2 + y.sum(), y * 3

    y = torch.arange(3.0)
    for x in (torch.empty(5, 0), torch.empty(0, 5)[:, ::2], torch.empty(0, 5, 4).permute(2, 0, 1)):
        torch._dynamo.reset()
        a, b = torch.compile(function, backend=backend)(x, y)
        assert a.shape == x.shape
        assert torch.equal(b, y * 3)


def test_an_empty_image_is_refused_in_pytorchs_words() -> None:
    conv = nn.Conv2d(3, 4, 3)
    with pytest.warns(UserWarning, match=r"PyTorch op convolution.*input has no elements"):
        assert torch.compile(conv, backend=backend)(torch.empty(0, 3, 5, 5)).shape == (0, 4, 3, 3)
