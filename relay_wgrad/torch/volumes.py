"""Convolutions of three dimensions.

Shapes: input (N, C, D, H, W) or (C, D, H, W), weight (K, C/groups, T, R, S), bias (K,), output
(N, K, Z, P, Q).  stride, dilation and output_padding are one int or three, of depth, height and
width; padding is one, three, or six: front, top, left, back, bottom, right.  All else is as in
`functions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import any_rank

Ints = int | Sequence[int]


def conv3d(
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
    """The convolution of `input` with `weight`: (N, K, Z, P, Q), without N for an input without.

    Z = (D + front + back - dilation*(T-1) - 1) // stride + 1; P and Q likewise.
    """
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.forward(
        "conv3d", 3, input, weight, bias, stride, padding, dilation, groups, options
    )


def conv3d_backward_input(
    input_size: Sequence[int],
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
    """A convolution's gradient by its input, whose shape (N, C, D, H, W) `input_size` is."""
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.by_input(
        "conv3d_backward_input", 3, input_size, weight, grad_output, stride, padding, dilation,
        groups, options,
    )  # fmt: skip


def conv3d_backward_weight(
    input: torch.Tensor,  # noqa: A002
    weight_size: Sequence[int],
    grad_output: torch.Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    benchmark: bool | None = None,
    deterministic: bool | None = None,
    allow_tf32: bool | None = None,
) -> torch.Tensor:
    """A convolution's gradient by its weight, whose shape (K, C/groups, T, R, S) `weight_size`
    is."""
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.by_weight(
        "conv3d_backward_weight", 3, input, weight_size, grad_output, stride, padding, dilation,
        groups, options,
    )  # fmt: skip


def conv_transpose3d(
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
    """The transposed convolution of `input` (N, C, D, H, W) with `weight` (C, K/groups, T, R, S).

    (N, K, D', H', W'), with D' = (D-1)*stride - front - back + dilation*(T-1) + 1 + output_padding;
    H' and W' likewise.  The order of arguments is that of `torch.nn.functional.conv_transpose3d`.
    Its gradient by the input is `conv3d`, by the weight `conv3d_backward_weight` with input and
    gradient swapped.
    """
    options = (benchmark, deterministic, allow_tf32)
    return any_rank.transposed(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, dilation,
        groups, options,
    )  # fmt: skip
