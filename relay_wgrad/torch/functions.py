"""Convolution, transposed convolution, and each of their gradients as a function of its own.

The argument orders are those of the cuDNN extensions written for PyTorch (`cudnn_convolution.cpp`);
every argument after the tensors and sizes has a default.  All of them differentiate, to any order.

What all take:

stride, dilation : one or two ints.
padding : one or two ints, or four: top, left, bottom, right.
groups : divides the channels.
benchmark, deterministic, allow_tf32 : how cuDNN computes; None: what `torch.backends.cudnn` says
    when the kernel runs.  CPU kernels give the same bits every time and need none of them.

Tensors are float16, bfloat16, float32 or float64, all of one call alike, on the CPU or on CUDA;
sums are in float32 (float64 for float64).  Under autocast they are cast as PyTorch's own
convolution casts.  The result is channels last if one of the operands is.

TypeError or ValueError names the function, the rule and both values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import any_rank
from . import arguments as check
from .arguments import Ints
from .kernels import Geometry
from .ops import fprop, wgrad

Size = Sequence[int]


def convolution(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    benchmark: bool | None = None,
    deterministic: bool | None = None,
    allow_tf32: bool | None = None,
) -> torch.Tensor:
    """The convolution (cross-correlation) of `input` with `weight`.

    Shapes: input (N, C, H, W) or (C, H, W), weight (K, C/groups, R, S), bias (K,); the result is
    (N, K, P, Q), with P = (H + top + bottom - dilation*(R-1) - 1) // stride + 1.
    """
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.forward(
        "convolution", 2, input, weight, bias, stride, padding, dilation, groups, options
    )


def convolution_backward_input(
    input_size: Size,
    weight: torch.Tensor,
    grad_output: torch.Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    benchmark: bool | None = None,
    deterministic: bool | None = None,
    allow_tf32: bool | None = None,
) -> torch.Tensor:
    """A convolution's gradient by its input, whose shape `input_size` is.

    `weight` and `grad_output` have the shapes that `convolution` gives them.
    """
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.by_input(
        "convolution_backward_input", 2, input_size, weight, grad_output, stride, padding,
        dilation, groups, options,
    )  # fmt: skip


def convolution_backward_weight(
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
    """A convolution's gradient by its weight, whose shape `weight_size` is.

    `input` and `grad_output` have the shapes that `convolution` gives them.
    """
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.by_weight(
        "convolution_backward_weight", 2, input, weight_size, grad_output, stride, padding,
        dilation, groups, options,
    )  # fmt: skip


def convolution_backward_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """A convolution's gradient by its bias: (K,), the sums of `grad_output`, (N, K, P, Q)."""
    check.tensors("convolution_backward_bias", 2, grad_output=grad_output)
    return grad_output.sum((0, 2, 3))


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
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.transposed(
        "convolution_transpose", 2, input, weight, bias, stride, padding, output_padding, dilation,
        groups, options,
    )  # fmt: skip


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
    grad_output, weight = any_rank.cast(grad_output, weight)
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
    options = (benchmark, deterministic, allow_tf32)
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
    input, grad_output = any_rank.cast(input, grad_output)  # noqa: A001
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
        outer = any_rank.transposed_shape(op, input.shape, size, extra, g)
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
    options = (benchmark, deterministic, allow_tf32)
    return wgrad(input, grad_output, None, *found, options, key is not None)


def convolution_transpose_backward_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """A transposed convolution's gradient by its bias: (K,), the sums of `grad_output`."""
    check.tensors("convolution_transpose_backward_bias", 2, grad_output=grad_output)
    return grad_output.sum((0, 2, 3))
