"""What `functions` and `volumes` have in common: a call of an image of two or three dimensions.

`op` is the caller's name, for messages, and `rank` the dimensions; `options` are benchmark,
deterministic and allow_tf32.  Everything else is as `functions` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import arguments as check
from .arguments import Ints
from .kernels import Geometry, Options
from .ops import dgrad, fprop, wgrad

Size = Sequence[int]

_FORWARD = ("input", "weight", "output")


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


def _check_bias(op: str, bias: torch.Tensor | None, count: int) -> dict[str, torch.Tensor]:
    if bias is None:
        return {}
    if isinstance(bias, torch.Tensor) and bias.dim() == 1 and bias.shape[0] != count:
        raise ValueError(f"{op}: bias must have {count} elements, got {bias.shape[0]}")
    return {"bias": bias}


def forward(
    op: str, rank: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,  # noqa: A002
    stride: Ints, padding: Ints, dilation: Ints, groups: int, options: Options,
) -> torch.Tensor:  # fmt: skip
    """The convolution."""
    input, weight, bias = cast(input, weight, bias)  # noqa: A001
    key = check.signature(op, input, weight, bias, stride, padding, dilation, groups)
    if key is None or (found := check.known(key)) is None:
        if isinstance(input, torch.Tensor) and input.dim() == 1 + rank:
            return forward(
                op, rank, input.unsqueeze(0), weight, bias, stride, padding, dilation, groups,
                options,
            ).squeeze(0)  # fmt: skip
        check.tensors(op, rank, input=input, weight=weight)
        g = check.geometry(op, rank, stride, padding, dilation, groups)
        check.convolution(op, _FORWARD, input.shape, weight.shape, None, g)
        if bias is not None:
            check.tensors(op, rank, input=input, **_check_bias(op, bias, weight.shape[0]))
        found = check.keep(key, (), g)
    return fprop(input, weight, bias, *found, options, key is not None)


def by_input(
    op: str, rank: int, input_size: Size, weight: torch.Tensor, grad_output: torch.Tensor,
    stride: Ints, padding: Ints, dilation: Ints, groups: int, options: Options,
) -> torch.Tensor:  # fmt: skip
    """The convolution's gradient by its input."""
    weight, grad_output = cast(weight, grad_output)
    key = check.signature(
        op, grad_output, weight, None, input_size, stride, padding, dilation, groups
    )
    if key is None or (found := check.known(key)) is None:
        check.tensors(op, rank, weight=weight, grad_output=grad_output)
        g = check.geometry(op, rank, stride, padding, dilation, groups)
        size = check.shape(op, rank, "input_size", input_size)
        check.convolution(
            op, ("input_size", "weight", "grad_output"), size, weight.shape, grad_output.shape, g
        )
        found = check.keep(key, size[2:], g)
    return dgrad(grad_output, weight, None, *found, options, key is not None)


def by_weight(
    op: str, rank: int, input: torch.Tensor, weight_size: Size, grad_output: torch.Tensor,  # noqa: A002
    stride: Ints, padding: Ints, dilation: Ints, groups: int, options: Options,
) -> torch.Tensor:  # fmt: skip
    """The convolution's gradient by its weight."""
    input, grad_output = cast(input, grad_output)  # noqa: A001
    key = check.signature(
        op, grad_output, input, None, weight_size, stride, padding, dilation, groups
    )
    if key is None or (found := check.known(key)) is None:
        check.tensors(op, rank, input=input, grad_output=grad_output)
        g = check.geometry(op, rank, stride, padding, dilation, groups)
        size = check.shape(op, rank, "weight_size", weight_size)
        check.convolution(
            op, ("input", "weight_size", "grad_output"), input.shape, size, grad_output.shape, g
        )
        found = check.keep(key, size[2:], g)
    return wgrad(grad_output, input, None, *found, options, key is not None)


def transposed(
    op: str, rank: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,  # noqa: A002
    stride: Ints, padding: Ints, output_padding: Ints, dilation: Ints, groups: int,
    options: Options,
) -> torch.Tensor:  # fmt: skip
    """The transposed convolution."""
    input, weight, bias = cast(input, weight, bias)  # noqa: A001
    key = check.signature(
        op, input, weight, bias, stride, padding, output_padding, dilation, groups
    )
    if key is None or (found := check.known(key)) is None:
        if isinstance(input, torch.Tensor) and input.dim() == 1 + rank:
            return transposed(
                op, rank, input.unsqueeze(0), weight, bias, stride, padding, output_padding,
                dilation, groups, options,
            ).squeeze(0)  # fmt: skip
        check.tensors(op, rank, input=input, weight=weight)
        g = check.geometry(op, rank, stride, padding, dilation, groups)
        extra = check.output_padding(op, output_padding, g)
        outer = transposed_shape(op, input.shape, weight.shape, extra, g)
        if bias is not None:
            check.tensors(op, rank, input=input, **_check_bias(op, bias, outer[1]))
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


def transposed_shape(
    op: str, shape: Size, weight: Size, extra: Sequence[int], g: Geometry
) -> list[int]:
    """The result's shape of a transposed convolution; ValueError for shapes that do not fit."""
    if shape[1] != weight[0]:
        raise ValueError(
            f"{op}: channels of input must be weight's axis 0, got {shape[1]} and {weight[0]}"
        )
    outer = [
        shape[0], weight[1] * g[3],
        *check.transposed_pixels(op, shape[2:], weight, extra, g),
    ]  # fmt: skip
    check.channels(op, ("output", "weight", "input"), outer, weight, g[3])
    if min(shape[2:]) < 1:
        raise ValueError(f"{op}: only the batch may be empty, got input of shape {tuple(shape)}")
    return outer
