"""Convolutions as people write them, through `torch.compile` beside eager mode in float64; and
threads that share a compiled module's first call."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.torch.compiler import backend
from relay_wgrad.torch.reports import compiled_graphs

pytestmark = pytest.mark.usefixtures("registered")

F = nn.functional
Function = Callable[[Any, Any], Any]
WEIGHT = torch.sin(torch.arange(4 * 2 * 3 * 3, dtype=torch.float64)).reshape(4, 2, 3, 3)

# Of images (2, 4, 7, 6) and a weight (4, 2, 3, 3) of two groups.
KINDS: dict[str, dict[str, Function]] = {
    "plain": {
        "bias": lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], groups=2),
        "same": lambda x, w: F.conv2d(x, w, padding="same", dilation=2, groups=2),
        "same of an even kernel": lambda x, w: F.conv2d(x, w[..., :2], padding="same", groups=2),
        "valid": lambda x, w: F.conv2d(x, w, padding="valid", stride=(2, 1), groups=2),
        "depthwise": lambda x, w: F.conv2d(x, w[:, :1], padding=1, groups=4),
        "one tap": lambda x, w: F.conv2d(x, w[:, :, :1, 1:2], groups=2),
        "a computed weight": lambda x, w: F.conv2d(x, w * w.mean() + 1, padding=(0, 2), groups=2),
        "no batch": lambda x, w: F.conv2d(x[0], w, padding=1, groups=2),
    },
    "others": {
        "transposed": lambda x, w: F.conv_transpose2d(
            x, w, w[0, :, 0, 0].repeat(2), stride=2, padding=1, output_padding=1, groups=2
        ),
        "transposed and dilated": lambda x, w: F.conv_transpose2d(x, w, dilation=(2, 1), groups=2),
        "of lines": lambda x, w: F.conv1d(x[..., 0], w[..., 1], stride=2, padding=1, groups=2),
        "of volumes": lambda x, w: F.conv3d(
            x[:, :, None], w[:, :, None], padding=(0, 1, 1), groups=2
        ),
        "around a border": lambda x, w: F.conv2d(
            F.pad(x, (1, 1, 0, 2), mode="circular"), w, groups=2
        ),
        "in place after it": lambda x, w: F.conv2d(x, w, groups=2).mul_(2.0).relu_(),
        "a slice of it": lambda x, w: F.conv2d(x, w, groups=2)[:, 1:, ::2].transpose(1, 2),
    },
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of PyTorch, about itself
        warnings.filterwarnings("ignore", "Using padding='same' with even kernel lengths")
        yield


def images(last: bool = False) -> torch.Tensor:
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x.to(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("group", KINDS)
def test_values_and_gradients(group: str) -> None:
    """All of a group in one graph: each result, and both gradients of a sum of their squares."""

    def function(x: Any, w: Any) -> list[Any]:
        return [kind(x, w) for kind in KINDS[group].values()]

    found = []
    for each in (torch.compile(function, backend=backend, fullgraph=True), function):
        x, w = images(group == "others").requires_grad_(), WEIGHT.clone().requires_grad_()
        results = each(x, w)
        total = sum((y**2).sum() * (i + 1) for i, y in enumerate(results))
        found.append([*results, *torch.autograd.grad(total, (x, w))])
    for name, got, want in zip([*KINDS[group], "dx", "dw"], *found, strict=True):
        assert got.shape == want.shape, name
        assert (got - want).norm() < 1e-11 * want.norm(), name
    forward, backward = compiled_graphs()[-2:]
    assert (forward.reason, backward.reason) == ("", "")
    assert len(forward.convolutions) == len(KINDS[group])
    assert len(backward.convolutions) == 2 * len(KINDS[group])


def test_without_gradients() -> None:
    """`no_grad`, `inference_mode`, and only the weight's gradient where only that is wanted."""
    module = nn.Conv2d(4, 2, 3, padding="same", groups=2).double()
    model = torch.compile(module, backend=backend, fullgraph=True)
    want = module(images())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert (model(images()) - want).norm() < 1e-12 * want.norm()
        assert compiled_graphs()[-1].name.endswith("inference")
    module.bias.requires_grad_(False)  # type: ignore[union-attr]
    model(images()).sum().backward()
    gradient = torch.autograd.grad(module(images()).sum(), module.weight)[0]
    assert (module.weight.grad - gradient).norm() < 1e-12 * gradient.norm()
    (line,) = compiled_graphs()[-1].convolutions
    assert line.startswith("conv2d_backward_weight ")


def test_threads_in_the_first_call() -> None:
    """Each gets its own result and gradient: no thread's tracing is another's, and what the
    backward pass reads is not changed by another's forward pass."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2)).double()
    twin = copy.deepcopy(module)
    model = torch.compile(module, backend=backend)
    begin = threading.Barrier(3)
    found: dict[int, Any] = {}

    def call(i: int) -> None:
        x = (images() * (i + 1)).requires_grad_()
        begin.wait()
        try:
            y = model(x)
            found[i] = y, torch.autograd.grad((y**3).sum(), x)[0]
        except Exception as error:  # an assertion needs its text
            found[i] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(3):
        assert isinstance(found[i], tuple), found[i]
        x = (images() * (i + 1)).requires_grad_()
        y = twin(x)
        for got, want in zip(found[i], (y, torch.autograd.grad((y**3).sum(), x)[0]), strict=True):
            assert (got - want).norm() < 1e-9 * want.norm()
