"""The PyTorch functions on infinities, numbers far apart, and attributes beyond all sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import relay_wgrad.torch as rt
from relay_wgrad.torch import cache, kernels, mostly_padding
from tests.support.torch.cases import Config, error, gradients, quick_kernels

F = torch.nn.functional


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_kernels():
        yield


@pytest.fixture(scope="module")
def wide() -> list[torch.Tensor]:
    """x, w and v of a layer that Winograd's algorithm is chosen for."""
    torch.manual_seed(0)
    return [torch.randn(s) for s in ((1, 64, 32, 32), (64, 64, 3, 3), (1, 64, 32, 32))]


def derivatives(function: Any, x: Any, w: Any, v: Any) -> list[torch.Tensor]:
    x, w = (t.clone().requires_grad_() for t in (x, w))
    out = function(x, w, padding=1)
    return [out.detach(), *torch.autograd.grad(out, (x, w), v)]


def test_an_infinity_stays_where_it_is(wide: list[torch.Tensor]) -> None:
    x, w = torch.ones(1, 64, 32, 32), torch.ones(64, 64, 3, 3)
    x[0, 0, 0, 0] = torch.inf
    for got, want in zip(*(derivatives(f, x, w, x) for f in (rt.convolution, F.conv2d)),
                         strict=True):  # fmt: skip
        assert torch.equal(got.isinf(), want.isinf())
        assert torch.equal(got.isnan(), want.isnan())


def test_small_numbers_beside_large_ones(wide: list[torch.Tensor]) -> None:
    """Zeros stay zeros, and what is finite stays finite."""
    x = torch.zeros(1, 64, 32, 32)
    x[0, :, 0, 0] = 1e20
    got, want = (f(x, wide[1], padding=1) for f in (rt.convolution, F.conv2d))
    assert torch.equal(got == 0, want == 0)
    x[0, :, 0, 0] = 0
    x[0, 0] = 1e38
    assert rt.convolution(x, torch.full((64, 64, 3, 3), 1e-3), padding=1).isfinite().all()


@pytest.mark.longer("each choice is compiled; that it is asked for stays")
def test_winograd_is_a_choice(wide: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sums, so other bits; kernels of both kinds side by side; what counts is the run."""
    asked = []
    cpu = kernels.cpu_kernel
    monkeypatch.setattr(cache, "kept", cache.Cache())
    monkeypatch.setattr(kernels, "cpu_kernel", lambda p, *a: asked.append(a[0]) or cpu(p, *a))
    direct = derivatives(rt.convolution, *wide)
    assert asked == [False] * 3
    with rt.allow_winograd():
        other = derivatives(rt.convolution, *wide)
        with rt.allow_winograd(False):
            again = derivatives(rt.convolution, *wide)
        back = derivatives(rt.convolution, *wide)
        out = rt.convolution(wide[0].requires_grad_(), wide[1], padding=1)
    (late,) = torch.autograd.grad(out, wide[0].requires_grad_(), wide[2])
    wide[0].requires_grad_(False)
    assert asked == [False] * 3 + [True] * 3
    assert torch.equal(late, direct[1])
    for a, b, c, d in zip(direct, other, again, back, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
        assert 0 < error(b, a) < 1e-5


def test_winograd_as_a_function() -> None:
    before = kernels._winograd
    rt.allow_winograd()
    assert kernels._winograd
    rt.allow_winograd(False)
    assert not kernels._winograd
    with pytest.raises(KeyError), rt.allow_winograd():
        raise KeyError
    assert not kernels._winograd
    with pytest.raises(TypeError, match="allow must be a bool, got 'no'"):
        rt.allow_winograd("no")  # type: ignore[arg-type]
    assert not kernels._winograd
    rt.allow_winograd(before)


FAR = {
    "stride": {"stride": (100_000, 100_000), "padding": (100_000, 100_000)},
    "dilation": {"dilation": (100_000, 70_000), "padding": (100_000, 70_000)},
    "all": {"stride": (99_999, 70_000), "padding": (100_001, 1), "dilation": (50_000, 2)},
    "lopsided": {"stride": (100_000, 1), "padding": (300_000, 0, 7, 0)},
}


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """PyTorch's new memory is full of NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # and utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.share(3)
@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("last", [False, True])
def test_mostly_padding(name: str, last: bool) -> None:
    """Nothing is laid out that no tap meets: PyTorch's numbers, of both orders."""
    given: Any = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **FAR[name]}
    config = Config(False, (2, 3, 6, 7), (4, 3, 3, 3), output_padding=(0, 0), groups=1, bias=True,
                    **given)  # fmt: skip
    if len(config.padding) == 4:
        want_rows, zero = 4, 3
        x, w, b = (t.detach() for t in config.operands(0))
        out = config.ours(x, w, b)
        assert out.shape == (2, 4, want_rows, 5)
        assert error(out[:, :, zero:], F.conv2d(x, w, b)[:, :, :1]) < 1e-12
        assert torch.equal(out[:, :, :zero], b.view(1, -1, 1, 1).expand(2, 4, zero, 5))
        return
    operands = config.operands(0)
    if last:
        operands[0] = operands[0].detach().contiguous(memory_format=torch.channels_last)
        operands[0].requires_grad_()
    got, want = (gradients(f, operands, 0) for f in (config.ours, config.theirs))
    assert max(map(error, got, want)) < 1e-12


def test_a_stride_that_is_never_made() -> None:
    x, w = torch.randn(2, 3, 1, 1), torch.randn(3, 4, 3, 3)
    got = rt.convolution_transpose(x, w, stride=2**30 - 1)
    assert error(got, F.conv_transpose2d(x, w)) < 1e-6


def test_nothing_meets_anything() -> None:
    x, w = torch.randn(1, 1, 300, 300), torch.randn(1, 1, 2, 2)
    for padding in ((2000, 2000), (5000, 0)):
        got = rt.convolution(x, w, stride=1999, padding=padding, dilation=1)
        assert error(got, F.conv2d(x, w, stride=1999, padding=padding)) < 1e-6


def test_narrowing_keeps_what_meets() -> None:
    """All pairs of pixel and tap within the data are kept, at the same row, and no pixel more."""
    ranges = (range(1, 5), range(7), (0, 3, 6), range(1, 4), (1, 2, 5, 9), (1, 2, 4))
    for size, before, after, taps, stride, dilation in itertools.product(*ranges):
        room = size + before + after - dilation * (taps - 1) - 1
        if room < 0:
            continue
        pixels = room // stride + 1
        rows = {(p, r): p * stride - before + r * dilation
                for p in range(pixels) for r in range(taps)}  # fmt: skip
        want = {key: row for key, row in rows.items() if 0 <= row < size}
        axis = mostly_padding._narrowed(size, before, pixels, taps, stride, dilation)
        if axis is None:
            assert not want
            continue
        (h, count), (p0, pixels), (r0, taps) = axis.rows, axis.pixels, axis.taps
        found = {(p0 + p, r0 + r): h + p * axis.stride - axis.before + r * axis.dilation
                 for p in range(pixels) for r in range(taps)}  # fmt: skip
        assert {key: row for key, row in found.items() if h <= row < h + count} == want
        room = count + axis.before + axis.after - axis.dilation * (taps - 1) - 1
        assert room // axis.stride + 1 == pixels


TOO_LARGE: dict[str, tuple[str, Any]] = {
    "stride": (r"^convolution: stride must be less than 1073741824, got \(1, 8589934592\)",
               lambda x, w: rt.convolution(x, w, stride=(1, 2**33))),
    "transposed stride": ("^convolution_transpose: stride must be less than 1073741824",
                          lambda x, w: rt.convolution_transpose(x[:, :, :1, :1], w, stride=2**33)),
    "padding": ("padding must be less than", lambda x, w: rt.convolution(x, w, padding=2**30)),
    "dilation": ("dilation must be less than", lambda x, w: rt.convolution(x, w, dilation=2**62)),
    "output padding": ("output_padding must be less than", lambda x, w: rt.convolution_transpose(
        x, w, stride=2**29, output_padding=2**30)),
    "padded": ("input's padded height must be less than 2147483648, got 2147483652",
               lambda x, w: rt.convolution(x, w, padding=2**30 - 1)),
    "output": ("the output's padded height must be less than 2147483648, got 2684354563",
               lambda x, w: rt.convolution_transpose(x, w, stride=2**29)),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_too_large(name: str) -> None:
    message, call = TOO_LARGE[name]
    with pytest.raises(ValueError, match=message):
        call(torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3))
