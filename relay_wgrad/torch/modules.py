"""Layers of one, two and three dimensions: `torch.nn`'s, with this package's kernels.

Constructor, parameters, names in a `state_dict` and initialisation are inherited, so a model
changes its import line and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from .functions import conv1d, conv3d, convolution
from .transposed import conv_transpose1d, conv_transpose3d, convolution_transpose

# `torch.fx.symbolic_trace` sees the calls below and not what is inside: it replaces these globals,
# which layers therefore read at each call.
for _name in ("conv1d", "convolution", "conv3d"):
    torch.fx.wrap(_name)
for _name in ("conv_transpose1d", "convolution_transpose", "conv_transpose3d"):
    torch.fx.wrap(_name)


def _convolved(
    self: Any,
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """`_conv_forward` of a convolution."""
    padding = self.padding
    if self.padding_mode != "zeros" or isinstance(padding, str):
        widths = tuple(self._reversed_padding_repeated_twice)  # of the last axis first
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, widths, mode=self.padding_mode)  # noqa: A001
            padding = 0
        else:  # "same" may be lopsided, which costs no copy here
            padding = (*widths[-2::-2], *widths[::-2])
    function = (conv1d, convolution, conv3d)[len(self.stride) - 1]
    return function(
        input, weight, bias, self.stride, padding, self.dilation, self.groups, self.benchmark
    )


def _transposed(
    self: Any,
    input: torch.Tensor,  # noqa: A002
    output_size: list[int] | None = None,
) -> torch.Tensor:
    """`forward` of a transposed convolution."""
    stride, padding, dilation, groups = self.stride, self.padding, self.dilation, self.groups
    rank = len(stride)
    extra = self._output_padding(
        input, output_size, stride, padding, self.kernel_size, rank, dilation
    )
    if rank == 2:
        return convolution_transpose(
            input, self.weight, self.bias, stride, padding, extra, dilation, groups, self.benchmark
        )
    function = conv_transpose1d if rank == 1 else conv_transpose3d
    return function(
        input, self.weight, self.bias, stride, padding, extra, groups, dilation, self.benchmark
    )


class Conv1d(torch.nn.Conv1d):
    """`torch.nn.Conv1d` on `relay_wgrad.torch.conv1d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None
    _conv_forward = _convolved


class ConvTranspose1d(torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` on `relay_wgrad.torch.conv_transpose1d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None
    forward = _transposed


class Conv2d(torch.nn.Conv2d):
    """`torch.nn.Conv2d` on `relay_wgrad.torch.convolution`; all its options.

    benchmark : an attribute, `convolution`'s argument; None: what `torch.backends.cudnn` says.
    """

    benchmark: bool | None = None
    _conv_forward = _convolved


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` on `relay_wgrad.torch.convolution_transpose`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None
    forward = _transposed


class Conv3d(torch.nn.Conv3d):
    """`torch.nn.Conv3d` on `relay_wgrad.torch.conv3d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None
    _conv_forward = _convolved


class ConvTranspose3d(torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` on `relay_wgrad.torch.conv_transpose3d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None
    forward = _transposed
