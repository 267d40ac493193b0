"""What an eager call of the PyTorch functions on plain tensors skips, and that others do not.

Checks run once for each signature, calls are prepared once for each memory order, and a call that
nobody records has no autograd node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _python_dispatch

import relay_wgrad.torch as rt
from relay_wgrad.torch import arguments, cache, ops
from tests.support.torch.cases import Config, error, gradients, random_config

F = torch.nn.functional
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No signature is known and no call prepared, kernels are."""
    arguments._checked.clear()
    monkeypatch.setattr(cache.kept, "prepared", {})


class Wrapped(torch.Tensor):
    """Takes the general path, as any subclass does: the custom operators."""


def general(operands: list[Any]) -> list[Any]:
    made = [t if t is None else t.detach().as_subclass(Wrapped) for t in operands]
    return [t if t is None else t.requires_grad_() for t in made]


def seen_operators(function: Callable[[], Any]) -> list[str]:
    names = []

    class Mode(_python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(f))
            return f(*args, **(kwargs or {}))

    with Mode():
        function()
    return names


@pytest.mark.share(4)
@pytest.mark.parametrize("part", range(4))
def test_same_results_as_the_operators(part: int) -> None:
    """Bit for bit, forward and gradients, in both memory orders, first and later calls."""
    rng = np.random.default_rng((part, 11))
    for seed in range(3):
        config = random_config(rng)
        for one in (config, config.transpose()):
            operands = one.operands(seed, torch.float32)
            for last in (False, True):
                if last:
                    x = operands[0].detach().contiguous(memory_format=LAST)
                    operands[0] = x.requires_grad_()
                want = gradients(one.ours, general(operands), seed)
                for _ in range(2):
                    got = gradients(one.ours, operands, seed)
                    with torch.no_grad():
                        got.append(one.ours(*operands))
                    for a, b in zip(got, [*want, want[0]], strict=True):
                        b = b.as_subclass(torch.Tensor)
                        assert torch.equal(a, b), one
                        assert a.stride() == b.stride(), one


CALLS: dict[str, Callable[..., Any]] = {
    "convolution": lambda x, w, v, **k: rt.convolution(x, w, **k),
    "backward_input": lambda x, w, v, **k: rt.convolution_backward_input(x.shape, w, v, **k),
    "backward_weight": lambda x, w, v, **k: rt.convolution_backward_weight(x, w.shape, v, **k),
    "transpose": lambda x, w, v, **k: rt.convolution_transpose(v, w, **k),
    "transpose_backward_input": (
        lambda x, w, v, **k: rt.convolution_transpose_backward_input(x, w, **k)
    ),
    "transpose_backward_weight": (
        lambda x, w, v, **k: rt.convolution_transpose_backward_weight(v, w.shape, x, **k)
    ),
}


# Which of x, w and v only lends its shape, or is not used.
SIZE_ONLY = {
    "convolution": 2, "backward_input": 0, "backward_weight": 1, "transpose": 0,
    "transpose_backward_input": 2, "transpose_backward_weight": 1,
}  # fmt: skip


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(2, 4, 7, 7), torch.randn(6, 4, 3, 3), torch.randn(2, 6, 5, 5)


@pytest.mark.parametrize("name", CALLS)
def test_checks_run_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, ran = CALLS[name], []
    check = arguments.tensors
    monkeypatch.setattr(arguments, "tensors", lambda *a, **k: ran.append(a) or check(*a, **k))
    first = call(*tensors())
    assert ran
    ran.clear()
    for more in ({}, {"stride": 1}, {"benchmark": True}):
        assert call(*tensors(), **more).shape == first.shape
    assert not ran
    assert call(*tensors(), padding=0, dilation=(1, 1)).shape == first.shape
    assert ran  # another way to say the same is checked anew


@pytest.mark.parametrize("name", CALLS)
def test_errors_after_a_right_call(name: str) -> None:
    """1, 1.0 and True are equal and have one hash; what is right for one is wrong for another."""
    call = CALLS[name]
    for right in (1, (1, 1), [1, 1]):
        call(*tensors(), stride=right)
        for wrong in (True, 1.0, (1, True), (1.0, 1), [True, 1]):
            with pytest.raises(TypeError, match="stride must be integers"):
                call(*tensors(), stride=wrong)
    call(*tensors(), groups=1)
    for groups in (True, 1.0):
        with pytest.raises(TypeError, match="groups must be an integer"):
            call(*tensors(), groups=groups)
    for i in range(3):
        for change, kind in (
            (torch.Tensor.double, TypeError), (lambda t: t.to("meta"), ValueError),
            (torch.Tensor.to_sparse, TypeError), (lambda t: t[0, 0], ValueError),
        ):  # fmt: skip
            given = list(tensors())
            given[i] = change(given[i])
            if i == SIZE_ONLY.get(name) and kind is TypeError:
                call(*given)
            elif i != SIZE_ONLY.get(name):
                with pytest.raises(kind, match=r"dtype|on one device|dense|axes"):
                    call(*given)
        with pytest.raises(TypeError, match="dtype must be one of"):
            call(*(t.int() for t in tensors()))


def test_a_bias_is_part_of_the_signature() -> None:
    x, w, _ = tensors()
    rt.convolution(x, w, torch.zeros(6))
    for bias, kind in (
        (torch.zeros(4), ValueError), (torch.zeros(6).double(), TypeError),
        (torch.zeros(6, device="meta"), ValueError), (torch.zeros(6).to_sparse(), TypeError),
        ([0] * 6, TypeError),
    ):  # fmt: skip
        with pytest.raises(kind, match="bias"):
            rt.convolution(x, w, bias)


def test_autocast_after_a_call() -> None:
    x, w, _ = tensors()
    for _ in range(2):
        assert rt.convolution(x, w).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert rt.convolution(x, w).dtype == torch.bfloat16
            assert rt.convolution(x, w.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(TypeError, match="one dtype"):
        rt.convolution(x, w.bfloat16())


def test_addresses_and_lazy_signs_are_no_part_of_a_plan() -> None:
    x, w, _ = tensors()
    shifted = torch.randn(x.numel() + 1)[1:].view(x.shape)
    negative = torch._neg_view(torch.randn(x.shape))
    for case in (x, shifted, negative, x):
        assert error(rt.convolution(case, w), F.conv2d(case, w)) < 1e-5
        got, want = rt.convolution(case, case), F.conv2d(case, case)
        assert error(got, want) < 1e-5
    assert len(cache.kept.prepared) == 2


def test_the_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PREPARED", 3)
    monkeypatch.setattr(arguments, "CHECKED", 3)
    _, w, _ = tensors()
    for extra in range(5):
        wide = torch.randn(2, 4, 7, 7 + extra)[..., :7]
        rt.convolution(wide, w, padding=[0, 0, extra, 0])
        assert error(rt.convolution(wide, w), F.conv2d(wide, w)) < 1e-5
    assert 0 < len(cache.kept.prepared) <= 3
    assert 0 < len(arguments._checked) <= 3


def test_only_recorded_calls_have_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What remembers a call for its gradient runs where PyTorch's own records, and only there."""
    noted: list[Any] = []
    remember = ops.remember
    monkeypatch.setattr(ops, "remember", lambda *a: noted.append(a) or remember(*a))
    x, w, _ = tensors()
    b = torch.zeros(6)
    for leaf in (None, x, w, b):
        if leaf is not None:
            leaf.requires_grad_()
        for grad in (True, False):
            noted.clear()
            with torch.set_grad_enabled(grad):
                assert rt.convolution(x, w, b).requires_grad == (grad and leaf is not None)
            assert bool(noted) == (grad and leaf is not None)
        if leaf is not None:
            leaf.requires_grad_(False)


def test_a_change_in_place_is_noticed() -> None:
    x, w, v = tensors()
    for changed in (x, w):
        operands = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        out = rt.convolution(*operands)
        with torch.no_grad():
            operands[changed is w].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward(v)
    out = rt.convolution(x, w.requires_grad_())
    out.mul_(2)  # a result is the caller's own
    out.backward(v)
    plain = w.detach().clone().requires_grad_()
    F.conv2d(x, plain).mul_(2).backward(v)
    assert error(w.grad, plain.grad) < 1e-5


def test_hooks_and_anomalies() -> None:
    x, w, v = tensors()
    w.requires_grad_()
    seen: list[torch.Tensor] = []
    w.register_hook(seen.append)
    with torch.autograd.set_detect_anomaly(True):
        out = rt.convolution(x, w)
        out.register_hook(lambda g: g * 2)
        out.backward(v)
    assert torch.equal(seen[0], w.grad)
    assert error(w.grad, 2 * rt.convolution_backward_weight(x, w.shape, v)) < 1e-6
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        again = rt.convolution(x, w)
    w.grad = None
    again.backward(v)
    assert error(w.grad, rt.convolution_backward_weight(x, w.shape, v)) < 1e-6


GENERAL: dict[str, Callable[..., Any]] = {
    "a subclass": lambda x, w: rt.convolution(x.as_subclass(Wrapped), w),
    "its weight": lambda x, w: rt.convolution(x, w.as_subclass(Wrapped)),
    "its bias": lambda x, w: rt.convolution(x, w, torch.zeros(6).as_subclass(Wrapped)),
    "meta tensors": lambda x, w: rt.convolution(x.to("meta"), w.to("meta")),
    "plain tensors": rt.convolution,
}


@pytest.mark.parametrize("name", GENERAL)
def test_what_goes_through_the_operators(name: str) -> None:
    """Where a mode, a subclass or a tracer has to see the call, it does; also after plain calls."""
    x, w, _ = tensors()
    rt.convolution(x, w)
    rt.convolution(x, w, torch.zeros(6))
    assert "relay_wgrad.conv2d.default" in seen_operators(lambda: GENERAL[name](x, w))


def test_tensors_that_left_a_transform() -> None:
    """`torch.func.grad`'s, kept by a side effect: they count as what they wrap."""
    kept: list[torch.Tensor] = []
    x, w, _ = tensors()

    def function(x: torch.Tensor) -> torch.Tensor:
        kept.append(x * 1)
        return x.sum()

    torch.func.grad(function)(x)
    with torch.no_grad():
        assert error(rt.convolution(kept[0], w), F.conv2d(x, w)) < 1e-5
    assert error(rt.convolution(kept[0], w.requires_grad_()), F.conv2d(x, w)) < 1e-5


@pytest.mark.parametrize("transposed", [False, True])
def test_second_order_through_mixed_paths(transposed: bool) -> None:
    """A gradient of a gradient, recorded, with a bias, where only some tensors require one."""
    config = Config(False, (2, 4, 7, 6), (6, 2, 3, 3), (2, 1), (1, 1), (0, 0), (1, 1), 2, True)
    config = config.transpose() if transposed else config
    for wanted in ((0,), (1,), (0, 1), (1, 2)):
        results = []
        for function in (config.ours, config.theirs):
            operands = [t.detach() for t in config.operands(3)]
            leaves = [operands[i].requires_grad_() for i in wanted]
            out = function(*operands).sin().sum()
            first = torch.autograd.grad(out, leaves, create_graph=True)
            loss = sum(g.square().sum() for g in first)
            results.append(torch.autograd.grad(loss, leaves))
        assert max(map(error, *results)) < 1e-11


def test_integers_of_numpy() -> None:
    """They are ints, as for PyTorch's own functions."""
    x, w, _ = tensors()
    one, two = np.int64(1), np.int32(2)
    got = rt.convolution(x, w, None, (one, two), (one, 0), one, one)
    assert torch.equal(got, rt.convolution(x, w, None, (1, 2), (1, 0)))
    sizes = [np.int64(n) for n in x.shape]
    got = rt.convolution_backward_input(sizes, w, got, (one, two), (one, 0))
    assert got.shape == x.shape
    with pytest.raises(TypeError, match=r"stride must be integers, got np.float64\(1.0\)"):
        rt.convolution(x, w, None, np.float64(1))
