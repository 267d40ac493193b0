"""`torch.vmap`'s rules: B convolutions as one.

B convolutions with one weight are one with B times as many images.  Others, and all those whose
result is a weight, are one with B times as many groups: b goes in front of the channels of data
and gradient and of the weight's filters.  The operand that is not batched is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..problem import ConvKind

# Of many groups, the axis that takes b: channels of data and gradient, filters of the weight.
_AXES = {
    ConvKind.FPROP: (1, 0, 1), ConvKind.DGRAD: (1, 0, 1), ConvKind.WGRAD: (1, 1, 0),
}  # fmt: skip


def batched(
    kind: ConvKind, call: Callable[..., torch.Tensor], count: int, dims: Any, first: Any,
    second: Any, bias: Any, size: Any, geometry: Any, options: Any,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    """(the results, the axis of so many of them) of `call`, which computes one of this kind.

    `dims` has for each tensor its batched axis, or None.
    """
    if count == 0:  # one of zeros, of which nothing is taken
        first, second, bias = (
            t if dim is None else _grown(t, dim)
            for t, dim in zip((first, second, bias), dims, strict=False)
        )
        out, axis = batched(kind, call, 1, dims, first, second, bias, size, geometry, options)
        return out.narrow(axis, 0, 0), axis
    if kind is not ConvKind.WGRAD and dims[1] is None and dims[2] is None and dims[0] is not None:
        images = _folded(first, dims[0], count, 0)
        out = call(images, second, bias, size, geometry, options)
        return out.unflatten(0, (count, images.shape[0] // count)), 0
    axes = _AXES[kind]
    operands = [
        _folded(t, dim, count, axis)
        for t, dim, axis in zip((first, second), dims, axes, strict=False)
    ]
    geometry = (*geometry[:3], geometry[3] * count)
    out = call(*operands, None, size, geometry, options)
    axis = axes[2]
    out = out.unflatten(axis, (count, out.shape[axis] // count))
    if bias is not None:
        bias = bias.expand(count, -1) if dims[2] is None else bias.movedim(dims[2], 0)
        out = out + bias.view(1, count, -1, *[1] * len(geometry[0]))
    return out, axis


def _grown(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """With one more entry of zeros along an axis."""
    return torch.nn.functional.pad(tensor, (*[0, 0] * (tensor.dim() - 1 - dim), 0, 1))


def _folded(tensor: torch.Tensor, dim: int | None, count: int, axis: int) -> torch.Tensor:
    if dim is None:
        tensor, dim = tensor.expand(count, *tensor.shape), 0
    return tensor.movedim(dim, axis).flatten(axis, axis + 1)
