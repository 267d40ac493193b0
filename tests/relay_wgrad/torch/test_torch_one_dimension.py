"""Convolutions of one dimension as PyTorch functions and modules, against PyTorch's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import relay_wgrad.torch as rt
from tests.support.torch.cases import error, quick_kernels


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_kernels():
        yield


def draw(seed: int, *shape: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=rng, requires_grad=True)


def both(ours: Any, theirs: Any, *operands: torch.Tensor) -> None:
    """Values, gradients, and gradients of what the gradients make."""
    found = []
    for function in (ours, theirs):
        out = function(*operands)
        first = torch.autograd.grad((out**3).sum(), operands, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), operands)
        found.append((out, *first, *second))
    for mine, want in zip(*found, strict=True):
        assert mine.shape == want.shape
        assert error(mine, want) < 1e-12


def test_conv1d() -> None:
    x, w, b = draw(0, 2, 4, 9), draw(1, 6, 2, 3), draw(2, 6)
    both(
        lambda *t: rt.conv1d(*t, 2, (2, 1), 2, 2),
        lambda x, w, b: F.conv1d(F.pad(x, (2, 1)), w, b, 2, 0, 2, 2), x, w, b,
    )  # fmt: skip
    both(lambda x, w: rt.conv1d(x, w, padding=1), lambda x, w: F.conv1d(x, w, padding=1),
         draw(0, 2, 9), draw(1, 6, 2, 3))  # fmt: skip


def test_conv_transpose1d() -> None:
    x, w, b = draw(0, 2, 4, 5), draw(1, 4, 3, 3), draw(2, 6)
    how = (3, 1, 2, 2, 2)  # of PyTorch's order: stride, padding, output padding, groups, dilation
    both(lambda *t: rt.conv_transpose1d(*t, *how), lambda *t: F.conv_transpose1d(*t, *how), x, w, b)
    extra = (1, 0, 1, 1, 2)  # output padding of a stride
    both(
        lambda x, w: rt.conv_transpose1d(x, w, None, *extra),
        lambda x, w: F.conv_transpose1d(x, w, None, *extra), x, w,
    )  # fmt: skip


def test_gradients_as_functions() -> None:
    x, w = draw(0, 2, 4, 9), draw(1, 6, 2, 3)
    y = F.conv1d(x, w, None, 2, 1, 1, 2)
    g = draw(3, *y.shape)
    want = torch.autograd.grad(y, (x, w), g)
    got = (
        rt.conv1d_backward_input(x.shape, w, g, 2, 1, 1, 2),
        rt.conv1d_backward_weight(x, w.shape, g, 2, 1, 1, 2),
    )
    assert max(error(a, b) for a, b in zip(got, want, strict=True)) < 1e-13


MODULES = [
    ("Conv1d", (4, 6, 3), {"padding": "same", "dilation": 2, "groups": 2}),
    ("Conv1d", (4, 6, 3), {"padding": 2, "padding_mode": "circular", "bias": False}),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
]


@pytest.mark.parametrize(("name", "args", "options"), MODULES)
def test_modules(name: str, args: Any, options: Any) -> None:
    """The parameters of `torch.nn`'s, and its numbers."""
    torch.manual_seed(0)
    theirs = getattr(nn, name)(*args, **options).double()
    ours = getattr(rt, name)(*args, **options).double()
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    x = draw(4, 2, 4, 9)
    found = []
    for module in (ours, theirs):
        grads = torch.autograd.grad((module(x) ** 2).sum(), (x, *module.parameters()))
        found.append((module(x), *grads))
    for mine, want in zip(*found, strict=True):
        assert error(mine, want) < 1e-12


def test_an_output_size() -> None:
    module = rt.ConvTranspose1d(2, 3, 3, stride=2)
    assert module(torch.zeros(1, 2, 4), output_size=[10]).shape == (1, 3, 10)


REFUSED = [
    (lambda x, w: rt.conv1d(x[None], w), ValueError, "conv1d: input must have 3 axes"),
    (lambda x, w: rt.conv1d(x, w[None]), ValueError, "conv1d: weight must have 3 axes"),
    (lambda x, w: rt.conv1d(x, None), TypeError, "conv1d: weight must be a tensor, got NoneType"),
    (lambda x, w: rt.conv1d(x, w, stride=(1, 2)), ValueError, "stride must have 1 values"),
    (lambda x, w: rt.conv1d(x, w, padding=(1, 2, 3)), ValueError, "padding must have 1 or 2"),
    (lambda x, w: rt.conv1d(x, w, padding=-1), ValueError, "padding must be at least 0"),
    (lambda x, w: rt.conv1d(x, w, padding="same"), TypeError, "Conv1d takes words"),
    (lambda x, w: rt.conv1d(x, w, groups=3), ValueError, "conv1d: channels of input must be"),
    (lambda x, w: rt.conv1d_backward_input(3, w, x), ValueError, "input_size must have 3 values"),
    (
        lambda x, w: rt.conv1d_backward_weight(x, (6, 4), x),
        ValueError,
        "conv1d_backward_weight: weight_size must have 3 values",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED)
def test_refused(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(draw(0, 2, 4, 9), draw(1, 6, 4, 3))
