"""Convolutions as people write them, through `torch.compile` beside eager mode in float64; and
threads that share a compiled module's first call."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.torch.compiler import backend
from relay_wgrad.torch.reports import compiled_graphs

pytestmark = pytest.mark.usefixtures("registered")

F = nn.functional
aten = torch.ops.aten
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
STATISTICS = (
    torch.tensor([0.1, -0.2, 0.3, 0.0]).double(),
    torch.tensor([1.0, 2.0, 0.5, 1.5]).double(),
)


def _norm(y: Any) -> Any:
    return F.batch_norm(y, *STATISTICS, STATISTICS[1], STATISTICS[0])


def _gradients(x: Any, w: Any, mask: Any = (True, True, False)) -> Any:
    """By the op itself, in a graph that is no backward pass; the results as one line."""
    rank = x.dim() - 2
    geometry = ([1] * rank, [0], [1] * rank, False, [0], 2)
    dy = aten.convolution(x, w, None, *geometry).detach().sin()
    made = aten.convolution_backward(dy, x.detach(), w.detach(), [4], *geometry, mask)
    return torch.cat([t.flatten() for t in made if t is not None])


def _last(t: Any) -> Any:
    return t.contiguous(memory_format=torch.channels_last)


# As PyTorch's test_torchinductor.py, test_layout_optim.py and test_cpu_repro.py name them.
KINDS["of PyTorch's tests"] = {
    "convolution1": lambda x, w: F.relu(F.conv2d(x, w, groups=2)),
    "alexnet_prefix": lambda x, w: F.max_pool2d(
        F.relu(F.conv2d(x, w, padding=1, groups=2)), 3, 2
    ),
    "convolution2": lambda x, w: aten.convolution(
        x[..., 0], w[..., 0], None, [4], [0], [1], True, [0], 2
    ),
    "convolution3": lambda x, w: aten.convolution(x, w, None, [2], [1], [1], False, [0], 2),
    "conv1d_with_permute": lambda x, w: F.conv1d(
        x[:, 0].permute(0, 2, 1)[:, :4], w[..., 0], groups=2
    ),
    "conv1d_depthwise": lambda x, w: F.conv1d(x[..., 0], w[:, :1, 0], padding=1, groups=4),
    "conv2d_channels_last, the weight": lambda x, w: F.conv2d(x, _last(w), groups=2),
    "conv2d_channels_last, the data": lambda x, w: F.conv2d(_last(x), w, groups=2),
    "conv3d_channels_last": lambda x, w: F.conv3d(
        x[:, :, None].contiguous(memory_format=torch.channels_last_3d), w[:, :, None], groups=2
    ),
    "conv_backward, lines": lambda x, w: _gradients(x[..., 0], w[..., 0], (True, True, True)),
    "conv_backward, images": lambda x, w: _gradients(x, w, (True, False, True)),
    "conv_backward, volumes": lambda x, w: _gradients(x[:, :, None], w[:, :, None]),
    "conv2d_backward_channels_last": lambda x, w: _gradients(_last(x), w),
    "conv_bn_fuse, lines": lambda x, w: _norm(F.conv1d(x[..., 0], w[..., 0], dilation=2, groups=2)),
    "conv_bn_fuse, images": lambda x, w: _norm(F.conv2d(x, w, dilation=2, groups=2)),
    "conv_bn_fuse, volumes": lambda x, w: _norm(F.conv3d(x[:, :, None], w[:, :, None], groups=2)),
    "upsample_cat_conv": lambda x, w: F.conv2d(
        torch.cat([F.interpolate(x[:, :2], scale_factor=2), x[:, 2:].repeat(1, 1, 2, 2)], 1), w,
        groups=2,
    ),
    "weight_norm_conv2d": lambda x, w: F.conv2d(
        x, torch._weight_norm(w, w[:, :1, :1, :1].cos(), 0), groups=2
    ),
    "conv_with_as_strided": lambda x, w: F.pad(F.conv2d(_last(x), w, groups=2), (2, 2)).as_strided(
        (2, 3, 4), (160, 7, 1), 3
    ),
    "mutate_base_for_conv_output": lambda x, w: F.conv2d(x, w, groups=2)[0].mul_(2.0).sin(),
    "conv_used_from_multiple_places": lambda x, w: (
        F.conv2d(F.conv2d(x, w, padding=1, groups=2).relu(), w, groups=2)
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet(fresh_dynamo: None) -> None:
    warnings.filterwarnings("ignore", "Using padding='same' with even kernel lengths")


def images(last: bool = False) -> torch.Tensor:
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x.to(memory_format=torch.channels_last) if last else x


@pytest.mark.longer
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
    if group in ("plain", "others"):
        both = [*forward.convolutions, *backward.convolutions]  # of a whole the first has them all
        assert len(both) == 3 * len(KINDS[group])


SYMBOLIC: dict[str, Function] = {
    "convolution4": lambda x, w: F.conv2d(x, w[:, :1], groups=w.shape[0]).sum(),
    "convolution5": lambda x, w: F.conv2d(x, w, dilation=[x.size(0)], groups=2).sum(),
}


@pytest.mark.longer
@pytest.mark.parametrize("name", SYMBOLIC)
def test_numbers_that_are_sizes(name: str) -> None:
    """Groups and dilations by a tensor's symbolic size, of which each has its own program."""
    function = torch.compile(SYMBOLIC[name], backend=backend, fullgraph=True, dynamic=True)
    for count in (2, 3):
        x = images()[:1].repeat(count, 1, 2, 2).sin().requires_grad_()
        w = WEIGHT.clone().requires_grad_()
        got, want = (torch.autograd.grad(f(x, w), (x, w)) for f in (function, SYMBOLIC[name]))
        for ours, theirs in zip(got, want, strict=True):
            assert (ours - theirs).norm() < 1e-11 * theirs.norm()
    assert [graph.reason for graph in compiled_graphs()[-2:]] == ["", ""]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.conv2d(x, WEIGHT[:, :1]),  # conv_shape_check
        lambda x: F.conv2d(x[:0, :, :1], WEIGHT, groups=2),
        lambda x: F.conv2d(x, WEIGHT, stride=0, groups=2),
        lambda x: F.conv2d(x.float(), WEIGHT, groups=2),
    ],
)
def test_what_eager_refuses(call: Any) -> None:
    """It is refused with PyTorch's words, not computed."""
    with pytest.raises(RuntimeError):
        call(images())
    with pytest.raises((RuntimeError, torch._dynamo.exc.TorchDynamoException)):
        torch.compile(call, backend=backend)(images())


def test_integers() -> None:
    """Which PyTorch's CPU kernels take: conv_errors_with_uint, as it was."""
    x, w = (images() * 9).byte(), (WEIGHT * 9).byte()
    got = torch.compile(F.conv2d, backend=backend)(x, w, groups=2)
    assert torch.equal(got, F.conv2d(x, w, groups=2))


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
    forward, backward = compiled_graphs()[-2:]
    assert [line.split()[0] for line in forward.convolutions] == [
        "conv2d",
        "conv2d_backward_weight",
    ]
    assert not backward.convolutions


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
