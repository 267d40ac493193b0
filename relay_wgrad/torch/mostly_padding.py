"""Problems of which most is padding: kernels of the part where taps meet data.

With stride and padding of 100,000 six rows of data are in 200,006, of which three are read.  A
kernel that lays out its padding would ask for that memory; its problem is cut down here instead.
Along an axis pixel p reads, by tap r, the row p * stride - before + r * dilation; taps and pixels
that are within the data for no p, or no r, lie before and behind those that are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ..problem import ConvProblem

Span = tuple[int, int]  # first, count

LARGE_STRIDE = 1 << 10  # kernels of a dgrad are made of a part for each of them
LARGE_AREA = 1 << 16  # pixels with padding, and
MOSTLY = 16  # how many of them there are for each of the data's


class _Axis(NamedTuple):
    rows: Span  # of the data
    pixels: Span  # of the gradient
    taps: Span  # of the weight
    before: int
    after: int
    stride: int
    dilation: int


def kernel(problem: ConvProblem, build: Callable[[ConvProblem], Any]) -> Any:
    """What `build` makes of a problem, or of the part that matters where that is little."""
    if not _is_wasteful(problem):
        return build(problem)
    rank = problem.rank
    found = map(
        _narrowed, problem.spatial, problem.padding[:rank], problem.pixels, problem.taps,
        problem.strides, problem.dilation,
    )  # fmt: skip
    axes = [axis for axis in found if axis is not None]
    if len(axes) < rank:
        return lambda first, second, out: out.zero_()
    names = zip("dhw"[-rank:], "trs"[-rank:], axes, strict=True)
    sizes: dict[str, Any] = {
        name: count
        for size, tap, axis in names
        for name, count in ((size, axis.rows[1]), (tap, axis.taps[1]))
    }
    inner = replace(
        problem, **sizes,
        padding=(*(axis.before for axis in axes), *(axis.after for axis in axes)),
        strides=tuple(axis.stride for axis in axes),
        dilation=tuple(axis.dilation for axis in axes),
    )  # fmt: skip
    run = build(inner)
    spans = {
        "data": [axis.rows for axis in axes],
        "weight": [axis.taps for axis in axes],
        "grad": [axis.pixels for axis in axes],
    }
    parts = [(problem.layout(role), spans[role]) for role in problem.roles]

    def narrowed(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> None:
        views = [_part(t, *part) for t, part in zip((first, second, out), parts, strict=True)]
        dense = [view.clone(memory_format=torch.contiguous_format) for view in views]
        run(*dense)
        out.zero_()
        views[2].copy_(dense[2])

    return narrowed


def _is_wasteful(problem: ConvProblem) -> bool:
    rank = problem.rank
    padded = math.prod(
        size + before + after
        for size, before, after in zip(
            problem.spatial, problem.padding[:rank], problem.padding[rank:], strict=True
        )
    )
    return max(problem.strides) >= LARGE_STRIDE or padded > max(
        LARGE_AREA, MOSTLY * math.prod(problem.spatial)
    )


def _narrowed(
    size: int, before: int, pixels: int, taps: int, stride: int, dilation: int
) -> _Axis | None:
    """An axis without what nothing meets; None where nothing meets anything."""
    tap = max(0, -(((pixels - 1) * stride - before) // dilation))
    tap_count = min(taps, (size + before - 1) // dilation + 1) - tap
    if tap_count < 1:
        return None
    before -= tap * dilation
    reach = (tap_count - 1) * dilation
    pixel = max(0, -((reach - before) // stride))
    pixel_count = min(pixels, (size - 1 + before) // stride + 1) - pixel
    if pixel_count < 1:
        return None
    before -= pixel * stride
    end = (pixel_count - 1) * stride - before + reach + 1
    row, row_end = max(0, -before), min(size, end)
    if row_end <= row:
        return None
    return _Axis(
        (row, row_end - row), (pixel, pixel_count), (tap, tap_count),
        max(0, before), max(0, end - size),
        stride if pixel_count > 1 else 1, dilation if tap_count > 1 else 1,
    )  # fmt: skip


def _part(tensor: torch.Tensor, layout: str, spans: Sequence[Span]) -> torch.Tensor:
    for letter, span in zip("DHW"[-len(spans) :], spans, strict=True):
        tensor = tensor.narrow(layout.index(letter), *span)
    return tensor
