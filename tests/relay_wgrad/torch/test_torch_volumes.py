"""Convolutions of three dimensions as PyTorch functions and modules, against PyTorch's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import relay_wgrad.torch as rt
from tests.support.torch.cases import Config, error, gradients, quick_kernels, random_config

# PyTorch's own, of forward mode.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LAST = torch.channels_last_3d
# Groups, a stride, a dilation and lopsided padding.
LOPSIDED = Config(
    False, (2, 4, 5, 6, 4), (6, 2, 3, 2, 2), (2, 1, 1), (1, 0, 1, 0, 1, 1), (0, 0, 0), (1, 2, 1),
    2, True,
)  # fmt: skip
SMALL = Config(
    False, (2, 2, 3, 4, 3), (4, 2, 2, 3, 1), (1, 2, 1), (1, 1, 0), (0,) * 3, (1,) * 3, 1, True
)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_kernels():
        yield


def compare(config: Config, seed: int = 0) -> None:
    operands = config.operands(seed)
    got, want = (gradients(f, operands, seed) for f in (config.ours, config.theirs))
    assert max(map(error, got, want)) < 1e-12, config


@pytest.mark.parametrize("seed", range(3))
def test_random_configurations(seed: int) -> None:
    config = random_config(np.random.default_rng((seed, 31)), rank=3)
    for one in (config, config.transpose()):
        compare(one, seed)


@pytest.mark.parametrize("config", [LOPSIDED, LOPSIDED.transpose()], ids=["conv", "transpose"])
def test_two_orders(config: Config) -> None:
    operands = config.operands(1)
    found = []
    for function in (config.ours, config.theirs):
        out = function(*operands)
        first = torch.autograd.grad((out**3).sum(), operands, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), operands)
        found.append((out, *first, *second))
    assert max(map(error, *found)) < 1e-12


def test_an_output_padding_of_a_stride() -> None:
    compare(Config(True, (1, 2, 3, 2, 2), (2, 3, 2, 2, 1), (1, 2, 1), (0,) * 3, (1, 0, 2),
                   (2, 1, 3), 1, True))  # fmt: skip


def test_gradients_as_functions() -> None:
    x, w, _ = LOPSIDED.operands(2)
    y = LOPSIDED.theirs(x, w, None)
    g = torch.randn_like(y)
    how = (LOPSIDED.stride, LOPSIDED.padding, LOPSIDED.dilation, LOPSIDED.groups)
    got = (
        rt.conv3d_backward_input(x.shape, w, g, *how),
        rt.conv3d_backward_weight(x, w.shape, g, *how),
    )
    want = torch.autograd.grad(y, (x, w), g)
    assert max(map(error, got, want)) < 1e-12


def test_channels_last_and_no_batch() -> None:
    """The result and its gradients are channels last if an operand is."""
    x, w, b = (t.detach() for t in SMALL.operands(3))
    want = SMALL.theirs(x, w, b)
    last = x.contiguous(memory_format=LAST).requires_grad_()
    y = SMALL.ours(last, w, b)
    assert y.is_contiguous(memory_format=LAST)
    assert error(y, want) < 1e-12
    (dx,) = torch.autograd.grad(y.sum(), last)
    assert dx.is_contiguous(memory_format=LAST)
    wide = torch.randn(2, 5, *SMALL.input[2:], dtype=x.dtype).contiguous(memory_format=LAST)
    assert error(SMALL.ours(wide[:, 1:3], w, b), SMALL.theirs(wide[:, 1:3], w, b)) < 1e-12
    assert error(SMALL.ours(x[0], w, b), want[0]) < 1e-12


def test_mostly_padding() -> None:
    """Kernels of the part where taps meet data."""
    config = Config(
        False, (1, 1, 2, 3, 2), (1, 1, 1, 2, 1), (1, 9000, 1), (0, 9000, 1), (0,) * 3, (1,) * 3, 1,
        False,
    )  # fmt: skip
    compare(config)


MODULES = [
    ("Conv3d", (4, 6, (3, 1, 3)), {"padding": "same", "dilation": (1, 2, 1), "groups": 2}),
    ("Conv3d", (4, 6, (1, 3, 3)), {"padding": (0, 1, 2), "padding_mode": "replicate"}),
    ("ConvTranspose3d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
]


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "args", "options"), MODULES)
def test_modules(name: str, args: Any, options: Any) -> None:
    """The parameters of `torch.nn`'s, and its numbers."""
    torch.manual_seed(0)
    theirs = getattr(nn, name)(*args, **options).double()
    ours = getattr(rt, name)(*args, **options).double()
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    x = torch.randn(2, 4, 3, 4, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for module in (ours, theirs):
        grads = torch.autograd.grad((module(x) ** 2).sum(), (x, *module.parameters()))
        found.append((module(x), *grads))
    assert max(map(error, *found)) < 1e-12


def test_an_output_size() -> None:
    module = rt.ConvTranspose3d(2, 3, 3, stride=2)
    assert module(torch.zeros(1, 2, 4, 2, 3), output_size=[10, 5, 8]).shape == (1, 3, 10, 5, 8)


def _vmapped(f: Callable[..., Any]) -> Callable[..., Any]:
    """Of a batch of data with one weight, of weights, and of all three."""

    def call(x: Any, w: Any, b: Any) -> Any:
        many = [torch.stack([t, 2 * t, -t]) for t in (x, w, b)]
        dims = [(0, None, None), (None, 0, None), (0, 0, 0)]
        return sum(
            torch.vmap(f, in_dims=d)(
                *(t if i is None else m for t, m, i in zip((x, w, b), many, d, strict=True))
            ) for d in dims
        )  # fmt: skip

    return call


def _tangent(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *t: torch.func.jvp(f, t, tuple(v.sin() for v in t))[1]


def _compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(f, backend="aot_eager", fullgraph=True)


TRANSFORMS = {
    "vmap": _vmapped,
    "jvp": _tangent,
    "compile": _compiled,
    "hessian": lambda f: lambda *t: torch.func.hessian(lambda x: f(x, *t[1:]).sin().sum())(t[0]),
    "vmap of grad": lambda f: (
        lambda *t: torch.vmap(torch.func.grad(lambda x, w: f(x, w, t[2]).sin().sum(), (0, 1)))(
            *(torch.stack([v, v.cos()]) for v in t[:2])
        )[1]
    ),
    "jvp of grad": lambda f: _tangent(torch.func.grad(lambda *t: f(*t).sin().sum())),
}


@pytest.mark.share(5)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    operands = [t.detach() for t in SMALL.operands(4)]
    got, want = (TRANSFORMS[name](f)(*operands) for f in (SMALL.ours, SMALL.theirs))
    assert error(got, want) < 1e-12


def test_a_transposed_one_transformed() -> None:
    config = SMALL.transpose()
    operands = [t.detach() for t in config.operands(5)]
    for transform in (_vmapped, _tangent, _compiled):
        got, want = (transform(f)(*operands) for f in (config.ours, config.theirs))
        assert error(got, want) < 1e-12


def test_autocast_and_meta() -> None:
    x, w, b = (t.detach().float() for t in SMALL.operands(6))
    with torch.autocast("cpu", torch.bfloat16):
        got, want = SMALL.ours(x, w, b), SMALL.theirs(x, w, b)
    assert got.dtype == want.dtype == torch.bfloat16
    assert error(got, want) < 2e-2
    meta = SMALL.ours(*(t.to("meta") for t in (x, w, b)))
    assert meta.shape == want.shape


def test_operators_and_their_flop() -> None:
    x, w, b = SMALL.operands(7)
    counts = []
    for function in (SMALL.ours, SMALL.theirs):
        with FlopCounterMode(display=False) as counter:
            function(x, w, b).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]


GEOMETRY = ([1] * 2, [0] * 4, [1] * 2, 1, None, None, None)
REFUSED = [
    (lambda x, w: rt.conv3d(x[0, 0], w), ValueError, "conv3d: input must have 5 axes"),
    (lambda x, w: rt.conv3d(x, w[0]), ValueError, "conv3d: weight must have 5 axes"),
    (lambda x, w: rt.conv3d(x, w, stride=(1, 2)), ValueError, "stride must have 3 values"),
    (lambda x, w: rt.conv3d(x, w, padding=(1,) * 4), ValueError, "padding must have 3 or 6"),
    (lambda x, w: rt.conv3d(x, w, padding="same"), TypeError, "Conv3d takes words"),
    (lambda x, w: rt.conv3d(x, w, dilation=4), ValueError, "padded depth must be at least the"),
    (lambda x, w: rt.conv3d(x, w, groups=3), ValueError, "groups"),
    (lambda x, w: rt.conv3d_backward_weight(x, (6, 2), x), ValueError, "weight_size must have 5"),
    (lambda x, w: rt.convolution(x, w), ValueError, "convolution: input must have 4 axes"),
    (lambda x, w: torch.ops.relay_wgrad.conv2d(x, w, None, *GEOMETRY), ValueError,
     "conv2d: data must have 4 axes"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED)
def test_refused(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(torch.zeros(1, 2, 3, 4, 3), torch.zeros(4, 2, 2, 3, 1))
