"""Convolution and each of its gradients as a function of its own, of one, two and three dimensions.

The argument orders are those of the cuDNN extensions written for PyTorch (`cudnn_convolution.cpp`);
every argument after the tensors and sizes has a default.  All of them differentiate, to any order.

What all take:

stride, dilation : one int, or one for each dimension, depth first.
padding : one int, one for each dimension, or two for each: those before, then those after, such as
    (before, after) of a line and (top, left, bottom, right) of an image.
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
from typing import Any, Protocol

import torch

from ..ranks import RANKS, for_rank
from . import arguments as check
from .arguments import NAMES, Ints
from .ops import dgrad, fprop, wgrad

Size = Sequence[int]


class Convolution(Protocol):
    """A convolution of any rank."""

    def __call__(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,  # noqa: A002
        stride: Ints = 1, padding: Ints = 0, dilation: Ints = 1, groups: int = 1,
        benchmark: bool | None = None, deterministic: bool | None = None,
        allow_tf32: bool | None = None,
    ) -> torch.Tensor: ...  # fmt: skip


class BackwardInput(Protocol):
    """Its gradient by its input."""

    def __call__(
        self, input_size: Size, weight: torch.Tensor, grad_output: torch.Tensor,
        stride: Ints = 1, padding: Ints = 0, dilation: Ints = 1, groups: int = 1,
        benchmark: bool | None = None, deterministic: bool | None = None,
        allow_tf32: bool | None = None,
    ) -> torch.Tensor: ...  # fmt: skip


class BackwardWeight(Protocol):
    """Its gradient by its weight."""

    def __call__(
        self, input: torch.Tensor, weight_size: Size, grad_output: torch.Tensor,  # noqa: A002
        stride: Ints = 1, padding: Ints = 0, dilation: Ints = 1, groups: int = 1,
        benchmark: bool | None = None, deterministic: bool | None = None,
        allow_tf32: bool | None = None,
    ) -> torch.Tensor: ...  # fmt: skip


def cast(*given: torch.Tensor | None) -> Any:
    """What autocast makes of a convolution's operands."""
    first = given[0]
    if not isinstance(first, torch.Tensor):
        return given
    device = "cuda" if first.is_cuda else "cpu"
    if not torch.is_autocast_enabled(device) or not (first.is_cuda or first.is_cpu):
        return given
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) and _is_cast(t) else t for t in given)


def _is_cast(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64


def _convolution(rank: int) -> Convolution:
    op = NAMES[rank]

    def function(
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

        Shapes: input (N, C, {pixels}) or (C, {pixels}), weight (K, C/groups, {taps}), bias (K,);
        the result is (N, K, {out}), without N for an input without, with
        {made} = ({size} + {first} + {last} - dilation*({tap}-1) - 1) // stride + 1.
        """
        input, weight, bias = cast(input, weight, bias)  # noqa: A001
        key = check.signature(op, input, weight, bias, stride, padding, dilation, groups)
        if key is None or (found := check.known(key)) is None:
            if isinstance(input, torch.Tensor) and input.dim() == 1 + rank:
                return function(
                    input.unsqueeze(0), weight, bias, stride, padding, dilation, groups,
                    benchmark, deterministic, allow_tf32,
                ).squeeze(0)  # fmt: skip
            check.tensors(op, rank, input=input, weight=weight)
            g = check.geometry(op, rank, stride, padding, dilation, groups)
            check.convolution(op, ("input", "weight", "output"), input.shape, weight.shape, None, g)
            check.bias(op, rank, input, bias, weight.shape[0])
            found = check.keep(key, (), g)
        options = check.options(op, benchmark, deterministic, allow_tf32)
        return fprop(input, weight, bias, *found, options, key is not None)

    return for_rank(function, op, rank)


def _backward_input(rank: int) -> BackwardInput:
    op = f"{NAMES[rank]}_backward_input"

    def function(
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
        """A convolution's gradient by its input, whose shape (N, C, {pixels}) `input_size` is.

        Shapes: weight (K, C/groups, {taps}), grad_output (N, K, {out}).
        """
        weight, grad_output = cast(weight, grad_output)
        key = check.signature(
            op, grad_output, weight, None, input_size, stride, padding, dilation, groups
        )
        if key is None or (found := check.known(key)) is None:
            check.tensors(op, rank, weight=weight, grad_output=grad_output)
            g = check.geometry(op, rank, stride, padding, dilation, groups)
            size = check.shape(op, rank, "input_size", input_size)
            names = ("input_size", "weight", "grad_output")
            check.convolution(op, names, size, weight.shape, grad_output.shape, g)
            found = check.keep(key, size[2:], g)
        options = check.options(op, benchmark, deterministic, allow_tf32)
        return dgrad(grad_output, weight, None, *found, options, key is not None)

    return for_rank(function, op, rank)


def _backward_weight(rank: int) -> BackwardWeight:
    op = f"{NAMES[rank]}_backward_weight"

    def function(
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
        """A convolution's gradient by its weight, whose shape (K, C/groups, {taps}) `weight_size`
        is.

        Shapes: input (N, C, {pixels}), grad_output (N, K, {out}).
        """
        input, grad_output = cast(input, grad_output)  # noqa: A001
        key = check.signature(
            op, grad_output, input, None, weight_size, stride, padding, dilation, groups
        )
        if key is None or (found := check.known(key)) is None:
            check.tensors(op, rank, input=input, grad_output=grad_output)
            g = check.geometry(op, rank, stride, padding, dilation, groups)
            size = check.shape(op, rank, "weight_size", weight_size)
            names = ("input", "weight_size", "grad_output")
            check.convolution(op, names, input.shape, size, grad_output.shape, g)
            found = check.keep(key, size[2:], g)
        options = check.options(op, benchmark, deterministic, allow_tf32)
        return wgrad(grad_output, input, None, *found, options, key is not None)

    return for_rank(function, op, rank)


conv1d, convolution, conv3d = map(_convolution, RANKS)
conv1d_backward_input, convolution_backward_input, conv3d_backward_input = map(
    _backward_input, RANKS
)
conv1d_backward_weight, convolution_backward_weight, conv3d_backward_weight = map(
    _backward_weight, RANKS
)


def convolution_backward_bias(grad_output: torch.Tensor) -> torch.Tensor:
    """A convolution's gradient by its bias: (K,), the sums of `grad_output`, (N, K, P, Q)."""
    check.tensors("convolution_backward_bias", 2, grad_output=grad_output)
    return grad_output.sum((0, 2, 3))
