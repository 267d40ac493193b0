"""Layers of one, two and three dimensions: `torch.nn`'s, with this package's kernels.

Constructor, parameters, names in a `state_dict` and initialisation are inherited, so a model
changes its import line and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

from .functions import convolution, convolution_transpose
from .lines import conv1d, conv_transpose1d
from .volumes import conv3d, conv_transpose3d

# `torch.fx.symbolic_trace` sees the calls below and not what is inside.
torch.fx.wrap("convolution")
torch.fx.wrap("convolution_transpose")
torch.fx.wrap("conv1d")
torch.fx.wrap("conv_transpose1d")
torch.fx.wrap("conv3d")
torch.fx.wrap("conv_transpose3d")


def _padded(
    layer: torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d,
    input: torch.Tensor,  # noqa: A002
) -> tuple[torch.Tensor, Any]:
    """(the input, the padding that is left): what is before each axis, then what is after."""
    widths = tuple(layer._reversed_padding_repeated_twice)  # of the last axis first
    if layer.padding_mode != "zeros":
        return torch.nn.functional.pad(input, widths, mode=layer.padding_mode), 0
    if isinstance(layer.padding, str):  # "same" may be lopsided, which costs no copy here
        return input, (*widths[-2::-2], *widths[::-2])
    return input, layer.padding


class Conv1d(torch.nn.Conv1d):
    """`torch.nn.Conv1d` on `relay_wgrad.torch.conv1d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None

    def _conv_forward(
        self,
        input: torch.Tensor,  # noqa: A002
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        input, padding = _padded(self, input)  # noqa: A001
        return conv1d(
            input, weight, bias, self.stride, padding, self.dilation, self.groups, self.benchmark
        )


class ConvTranspose1d(torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` on `relay_wgrad.torch.conv_transpose1d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002
        output_size: list[int] | None = None,
    ) -> torch.Tensor:
        extra = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, 1, self.dilation
        )
        return conv_transpose1d(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation, self.benchmark,
        )  # fmt: skip


class Conv2d(torch.nn.Conv2d):
    """`torch.nn.Conv2d` on `relay_wgrad.torch.convolution`; all its options.

    benchmark : an attribute, `convolution`'s argument; None: what `torch.backends.cudnn` says.
    """

    benchmark: bool | None = None

    def _conv_forward(
        self,
        input: torch.Tensor,  # noqa: A002
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        input, padding = _padded(self, input)  # noqa: A001
        return convolution(
            input, weight, bias, self.stride, padding, self.dilation, self.groups, self.benchmark
        )


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` on `relay_wgrad.torch.convolution_transpose`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002
        output_size: list[int] | None = None,
    ) -> torch.Tensor:
        extra = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation
        )
        return convolution_transpose(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.dilation,
            self.groups, self.benchmark,
        )  # fmt: skip


class Conv3d(torch.nn.Conv3d):
    """`torch.nn.Conv3d` on `relay_wgrad.torch.conv3d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None

    def _conv_forward(
        self,
        input: torch.Tensor,  # noqa: A002
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        input, padding = _padded(self, input)  # noqa: A001
        return conv3d(
            input, weight, bias, self.stride, padding, self.dilation, self.groups, self.benchmark
        )


class ConvTranspose3d(torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` on `relay_wgrad.torch.conv_transpose3d`; all its options.

    benchmark : an attribute, as `Conv2d`'s.
    """

    benchmark: bool | None = None

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002
        output_size: list[int] | None = None,
    ) -> torch.Tensor:
        extra = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, 3, self.dilation
        )
        return conv_transpose3d(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation, self.benchmark,
        )  # fmt: skip
