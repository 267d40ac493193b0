"""Sliding windows of images and volumes: their attributes, layouts, sizes of what comes out."""

from __future__ import annotations

from typing import Any

from ...layouts import ACTIVATIONS, is_permutation
from ..types import Dim
from .blocked_layouts import axes_of
from .relations import mapped
from .table import Call, show_shape


def per_axis(call: Call, name: str, rank: int) -> tuple[int, ...]:
    """One for each axis of an image, from an attribute of one or so many positive values."""
    values = call.attrs[name]
    if len(values) not in (1, rank) or min(values) < 1:
        call.fail(f"{name} must be 1 or {rank} positive integers, got {list(values)}")
    return tuple(values) * (rank // len(values))


def ends(call: Call, rank: int) -> tuple[int, ...]:
    """What is added before each axis of an image, then after each."""
    values = call.attrs["padding"]
    if len(values) not in (1, rank, 2 * rank) or min(values) < 0:
        call.fail(
            f"padding must be 1, {rank} or {2 * rank} integers of at least 0, got {list(values)}"
        )
    return tuple(values) * (2 * rank // len(values))


def rank_of(op: str) -> int:
    """How many dimensions an operator's images have; one of lines is asked as of images."""
    return 3 if "3d" in op else 2


def spatial_axes(call: Call, layout: str, rank: int = 2) -> tuple[int, ...]:
    """Where D, H and W are in a layout; there must be as many axes as data has."""
    axes, letters = axes_of(layout), "DHW"[-rank:]
    if rank == 3 and not is_permutation(layout, ACTIVATIONS[rank]):
        call.fail(
            f"only support input layouts that are convertible from {ACTIVATIONS[rank]},"
            f" got {layout!r}"
        )
    if any(layout.count(letter) != 1 or letter.lower() in layout for letter in letters):
        call.fail(
            f"Invalid layout {layout}. Pool2D layout must have H and W, which cannot be split"
        )
    if axes is None:
        call.fail(f"layout must name each axis by one letter, got {layout!r}")
    ndim = len(call.tensor().shape)
    if len(axes) != ndim:
        call.fail(
            f"layout {layout} has {len(axes)} axes, data has {ndim}:"
            f" {show_shape(call.tensor().shape)}"
        )
    return tuple(axes.index((letter, 0)) for letter in letters)


def pooled(
    call: Call, size: Dim, pad: int, window: int, stride: int, dilation: int, ceil: bool
) -> Dim:
    """Windows that fit; with `ceil`, a last one may run over the edge."""

    def made(known: Any) -> Any:
        room = known + pad - dilation * (window - 1) - 1
        if isinstance(room, int) and room < 0:
            call.fail(
                f"the window does not fit: size {known}, padding {pad} in all, window {window},"
                f" dilation {dilation}"
            )
        return (room + (stride - 1 if ceil else 0)) // stride + 1

    return mapped(size, made)
