"""Transposed convolution and each of its gradients: a convolution's gradient by its input.

Arguments are those of `functions`.  The function of two dimensions has dilation before groups, as
the cuDNN extensions have it; those of one and of three have `torch.nn.functional`'s order.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ..ranks import for_rank
from . import arguments as check
from .arguments import NAMES, Ints
from .functions import Size, cast
from .kernels import Geometry, Options
from .ops import dgrad, fprop, wgrad


class Transposed(Protocol):
    """A transposed convolution of one or three dimensions."""

    def __call__(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,  # noqa: A002
        stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0, groups: int = 1,
        dilation: Ints = 1, benchmark: bool | None = None, deterministic: bool | None = None,
        allow_tf32: bool | None = None,
    ) -> torch.Tensor: ...  # fmt: skip


def _transposed(
    op: str, rank: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,  # noqa: A002
    stride: Ints, padding: Ints, output_padding: Ints, dilation: Ints, groups: int,
    options: Options,
) -> torch.Tensor:  # fmt: skip
    """`op`: the caller's name, for messages."""
    input, weight, bias = cast(input, weight, bias)  # noqa: A001
    key = check.signature(
        op, input, weight, bias, stride, padding, output_padding, dilation, groups
    )
    if key is None or (found := check.known(key)) is None:
        if isinstance(input, torch.Tensor) and input.dim() == 1 + rank:
            return _transposed(
                op, rank, input.unsqueeze(0), weight, bias, stride, padding, output_padding,
                dilation, groups, options,
            ).squeeze(0)  # fmt: skip
        check.tensors(op, rank, input=input, weight=weight)
        g = check.geometry(op, rank, stride, padding, dilation, groups)
        extra = check.output_padding(op, output_padding, g)
        outer = check.transposed_shape(op, input.shape, weight.shape, extra, g)
        check.bias(op, rank, input, bias, outer[1])
        kept = outer[2:]
        if max(extra) > 0:
            g, kept = check.fitted(kept, input.shape[2:], weight.shape, g)
        if kept != outer[2:]:
            out = dgrad(input, weight, None, tuple(kept), g, options)
            widths = [w for n, k in zip(outer[:1:-1], kept[::-1], strict=True) for w in (0, n - k)]
            out = torch.nn.functional.pad(out, widths)
            return out if bias is None else out + bias.view(1, -1, *[1] * rank)
        found = check.keep(key, tuple(kept), g)
    return dgrad(input, weight, bias, *found, options, key is not None)


def convolution_transpose(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    benchmark: bool | None = None,
    deterministic: bool | None = None,
    allow_tf32: bool | None = None,
) -> torch.Tensor:
    """The transposed convolution of `input` with `weight`: a convolution's gradient by its input.

    Shapes: input (N, C, H, W) or (C, H, W), weight (C, K/groups, R, S), bias (K,); the result is
    (N, K, H', W'), with H' = (H-1)*stride - top - bottom + dilation*(R-1) + 1 + output_padding.
    `torch.nn.functional.conv_transpose2d` has groups before dilation.
    """
    op = "convolution_transpose"
    options = check.options(op, benchmark, deterministic, allow_tf32)
    return _transposed(
        op, 2, input, weight, bias, stride, padding, output_padding, dilation,
        groups, options,
    )  # fmt: skip


def _in_pytorchs_order(rank: int) -> Transposed:
    op = f"conv_transpose{rank}d"

    def function(
        input: torch.Tensor,  # noqa: A002
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        dilation: Ints = 1,
        benchmark: bool | None = None,
        deterministic: bool | None = None,
        allow_tf32: bool | None = None,
    ) -> torch.Tensor:
        """The transposed convolution of `input` with `weight`: a convolution's gradient by its
        input.

        Shapes: input (N, C, {pixels}) or (C, {pixels}), weight (C, K/groups, {taps}), bias (K,);
        the result is (N, K, …), where {size} becomes
        ({size}-1)*stride - {first} - {last} + dilation*({tap}-1) + 1 + output_padding.
        The order of arguments is that of `torch.nn.functional.{name}`.  Its gradient by the input
        is `{forward}`, by the weight `{forward}_backward_weight` with input and gradient swapped.
        """
        options = check.options(op, benchmark, deterministic, allow_tf32)
        return _transposed(
            op, rank, input, weight, bias, stride, padding, output_padding, dilation, groups,
            options,
        )  # fmt: skip

    return for_rank(function, op, rank, forward=NAMES[rank])


conv_transpose1d, conv_transpose3d = map(_in_pytorchs_order, (1, 3))


def convolution_transpose_backward_input(
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    benchmark: bool | None = None,
    deterministic: bool | None = None,
    allow_tf32: bool | None = None,
    *,
    output_padding: Ints = 0,
) -> torch.Tensor:
    """A transposed convolution's gradient by its input: the convolution of `grad_output`.

    `weight` and `grad_output` have the shapes that `convolution_transpose` gives them.  The input's
    size follows from them, unless `output_padding` was a stride or more: then say it.
    """
    op = "convolution_transpose_backward_input"
    grad_output, weight = cast(grad_output, weight)
    key = check.signature(
        op, grad_output, weight, None, stride, padding, dilation, groups, output_padding
    )
    if key is None or (found := check.known(key)) is None:
        check.tensors(op, 2, grad_output=grad_output, weight=weight)
        g = check.geometry(op, 2, stride, padding, dilation, groups)
        names = ("grad_output", "weight", "input")
        check.channels(op, names, grad_output.shape, weight.shape, g[3])
        pixels = check.output_pixels(op, names, grad_output.shape, weight.shape, g)
        extra = check.output_padding(op, output_padding, g)
        if any(e >= s for e, s in zip(extra, g[0], strict=True)):
            key = None
            pixels = [p - e // s for p, e, s in zip(pixels, extra, g[0], strict=True)]
            if min(pixels) < 1:
                raise ValueError(f"{op}: no input gives {tuple(grad_output.shape)} with {extra=}")
            grad_output, g = _cropped(grad_output, pixels, weight.shape, g)
        found = check.keep(key, (), g)
    options = check.options(op, benchmark, deterministic, allow_tf32)
    return fprop(grad_output, weight, None, *found, options, key is not None)


def _cropped(grad: torch.Tensor, pixels: Size, weight: Size, g: Geometry) -> Any:
    """(gradient, geometry) without the rows and columns that meet no tap."""
    g, kept = check.fitted(grad.shape[2:], pixels, weight, g)
    return grad[:, :, : kept[0], : kept[1]], g


def convolution_transpose_backward_weight(
    input: torch.Tensor,  # noqa: A002
    weight_size: Size,
    grad_output: torch.Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    benchmark: bool | None = None,
    deterministic: bool | None = None,
    allow_tf32: bool | None = None,
) -> torch.Tensor:
    """A transposed convolution's gradient by its weight, whose shape `weight_size` is.

    `input` and `grad_output` have the shapes that `convolution_transpose` gives them.
    """
    op = "convolution_transpose_backward_weight"
    input, grad_output = cast(input, grad_output)  # noqa: A001
    key = check.signature(
        op, input, grad_output, None, weight_size, stride, padding, dilation, groups
    )
    if key is None or (found := check.known(key)) is None:
        check.tensors(op, 2, input=input, grad_output=grad_output)
        g = check.geometry(op, 2, stride, padding, dilation, groups)
        size = check.shape(op, 2, "weight_size", weight_size)
        got = grad_output.shape
        least = check.transposed_sizes(input.shape[2:], size, (0, 0), g)
        extra = [n - low for n, low in zip(got[2:], least, strict=True)]
        if not all(0 <= e < max(s, d) for e, s, d in zip(extra, g[0], g[2], strict=True)):
            extra = [0, 0]
        outer = check.transposed_shape(op, input.shape, size, extra, g)
        if tuple(got) != tuple(outer):
            most = [o + max(s, d) - 1 for o, s, d in zip(least, g[0], g[2], strict=True)]
            raise ValueError(
                f"{op}: grad_output must have shape {tuple(outer)}, or up to {tuple(most)} pixels"
                f" with output_padding, for input {tuple(input.shape)} and weight_size {size}, got"
                f" {tuple(got)}"
            )
        if any(extra):
            key = None
            grad_output, g = _cropped(grad_output, input.shape[2:], size, g)
        found = check.keep(key, size[2:], g)
    # A wgrad with data and gradient swapped.
    options = check.options(op, benchmark, deterministic, allow_tf32)
    return wgrad(input, grad_output, None, *found, options, key is not None)


def convolution_transpose_backward_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """A transposed convolution's gradient by its bias: (K,), the sums of `grad_output`."""
    check.tensors("convolution_transpose_backward_bias", 2, grad_output=grad_output)
    return grad_output.sum((0, 2, 3))
