"""Axes on which a tap reaches no more than one pixel: loops of one turn, which TVM simplifies."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import relay_wgrad.torch as rt

CASES = [
    (stride, pad, taps, groups)
    for stride, pad, taps in itertools.product((2, 3, 4), (2, 3), (2, 3, 4))
    for groups in (1, 4)
    if groups == 1 or (stride + pad + taps) % 3 == 0
]


@pytest.mark.share(7)  # both numbers of groups, each stride
@pytest.mark.parametrize(("stride", "pad", "taps", "groups"), CASES)
def test_as_high_as_the_stride(stride: int, pad: int, taps: int, groups: int) -> None:
    torch.manual_seed(0)
    channels = 1 if groups == 1 else 20
    x = torch.randn(1, channels, stride, 3, dtype=torch.float64)
    weight = torch.randn(groups, channels // groups, taps, 1, dtype=torch.float64)
    grad = torch.randn_like(F.conv2d(x, weight, None, (stride, 1), (pad, 0), 1, groups))
    rest = {"stride": (stride, 1), "padding": (pad, 0), "groups": groups}
    got = rt.convolution_backward_weight(x, tuple(weight.shape), grad, **rest)
    want = torch.nn.grad.conv2d_weight(x, weight.shape, grad, **rest)
    torch.testing.assert_close(got, want)
