"""Builders of operators that move between the image's axes and the channels or the batch."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr
from ..make import call
from .transform import Sizes

Pairs = Sequence[Sequence[int]] | Expr


def depth_to_space(data: Expr, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Call:
    """Channels as blocks of the image; `mode` says whether the block is the slower part of C."""
    return call("nn.depth_to_space", data, block_size=block_size, layout=layout, mode=mode)


def space_to_depth(data: Expr, block_size: int, layout: str = "NCHW") -> Call:
    """Blocks of the image as channels."""
    return call("nn.space_to_depth", data, block_size=block_size, layout=layout)


def space_to_batch_nd(
    data: Expr, block_shape: Sizes, paddings: Pairs, pad_value: float = 0
) -> Call:
    """The places within a block, after padding, as images of a larger batch."""
    return call(
        "nn.space_to_batch_nd", data, block_shape=block_shape, paddings=paddings,
        pad_value=pad_value,
    )  # fmt: skip


def batch_to_space_nd(data: Expr, block_shape: Sizes, crops: Pairs) -> Call:
    """What `space_to_batch_nd` made, back, with the edges cut."""
    return call("nn.batch_to_space_nd", data, block_shape=block_shape, crops=crops)


def dilate(data: Expr, strides: Sizes, dilation_value: float = 0.0) -> Call:
    """`data` with `strides - 1` elements of a value after each but the last, along each axis."""
    return call("nn.dilate", data, strides=strides, dilation_value=dilation_value)


def mirror_pad(data: Expr, pad_width: Pairs, mode: str = "SYMMETRIC") -> Call:
    """`data` with its mirror image at its edges; REFLECT does not repeat the outermost element."""
    return call("nn.mirror_pad", data, pad_width=pad_width, mode=mode)
