"""Convolutions of one dimension, as those of images with one row.

Shapes: input (N, C, L) or (C, L), weight (K, C/groups, S), bias (K,), output (N, K, Q).  stride,
dilation and output_padding are an int, padding one or two: before, after.  All else is as in
`functions`, whose `convolution` also names what is wrong with shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .functions import (
    convolution,
    convolution_backward_input,
    convolution_backward_weight,
    convolution_transpose,
)

Ints = int | Sequence[int]


def conv1d(
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
    """The convolution of `input` with `weight`: (N, K, Q), or (K, Q) of an input without a batch.

    Q = (L + before + after - dilation*(S-1) - 1) // stride + 1.
    """
    op = "conv1d"
    return convolution(
        _row(op, "input", input, (2, 3)), _row(op, "weight", weight, (3,)), bias,
        *_settings(op, stride, padding, dilation), groups, benchmark, deterministic, allow_tf32,
    ).squeeze(-2)  # fmt: skip


def conv1d_backward_input(
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
    """A convolution's gradient by its input, whose shape (N, C, L) `input_size` is."""
    op = "conv1d_backward_input"
    return convolution_backward_input(
        _sizes(op, "input_size", input_size), _row(op, "weight", weight, (3,)),
        _row(op, "grad_output", grad_output, (3,)), *_settings(op, stride, padding, dilation),
        groups, benchmark, deterministic, allow_tf32,
    ).squeeze(-2)  # fmt: skip


def conv1d_backward_weight(
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
    """A convolution's gradient by its weight, whose shape (K, C/groups, S) `weight_size` is."""
    op = "conv1d_backward_weight"
    return convolution_backward_weight(
        _row(op, "input", input, (3,)), _sizes(op, "weight_size", weight_size),
        _row(op, "grad_output", grad_output, (3,)), *_settings(op, stride, padding, dilation),
        groups, benchmark, deterministic, allow_tf32,
    ).squeeze(-2)  # fmt: skip


def conv_transpose1d(
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
    """The transposed convolution of `input` (N, C, L) with `weight` (C, K/groups, S): (N, K, L').

    L' = (L-1)*stride - before - after + dilation*(S-1) + 1 + output_padding; the order of arguments
    is that of `torch.nn.functional.conv_transpose1d`.  Its gradient by the input is `conv1d`, by
    the weight `conv1d_backward_weight` with input and gradient swapped.
    """
    op = "conv_transpose1d"
    strides, pads, dilations = _settings(op, stride, padding, dilation)
    return convolution_transpose(
        _row(op, "input", input, (2, 3)), _row(op, "weight", weight, (3,)), bias, strides, pads,
        (0, *_ints(op, "output_padding", output_padding, 1)), dilations, groups, benchmark,
        deterministic, allow_tf32,
    ).squeeze(-2)  # fmt: skip


def _row(op: str, name: str, tensor: Any, axes: tuple[int, ...]) -> torch.Tensor:
    """A tensor with an axis of one row before its last one."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dim() not in axes:
        words = " or ".join(map(str, axes))
        raise ValueError(f"{op}: {name} must have {words} axes, got shape {tuple(tensor.shape)}")
    return tensor.unsqueeze(-2)


def _sizes(op: str, name: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"{op}: {name} must have 3 sizes, got {shape!r}")
    return (*shape[:2], 1, shape[2])


def _ints(op: str, name: str, value: Any, most: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(values) <= most:
        raise ValueError(
            f"{op}: {name} must have {'1' if most == 1 else '1 or 2'} values, got {values}"
        )
    return values


def _settings(op: str, stride: Any, padding: Any, dilation: Any) -> tuple[Any, Any, Any]:
    """(strides, padding, dilation) of the image."""
    pads = _ints(op, "padding", padding, 2)
    return (
        (1, *_ints(op, "stride", stride, 1)),
        (0, pads[0], 0, pads[-1]),
        (1, *_ints(op, "dilation", dilation, 1)),
    )
