"""Dilated convolutions that are written as ones of a rearranged batch.

`nn.space_to_batch_nd` pads an axis by p0 and p1 and takes every b-th pixel as an image of its own,
a convolution without dilation follows, and `nn.batch_to_space_nd` puts its results back in order
and crops c0 and c1: the convolution with dilation b, padded by p0 - c0 and p1 - c1.
"""

from __future__ import annotations

from typing import Any

from ..ast import Call, Expr, Function, Op
from ..make import call
from ..rewrite import rewrite
from .user_hooks import attributes, kernels

_CHAIN = ("nn.batch_to_space_nd", "nn.conv2d", "nn.space_to_batch_nd")


def flatten_atrous_conv(function: Function) -> Function:
    """The function with a dilated convolution for each such chain of three calls."""
    new: dict[Expr, Expr] = dict(kernels(function))

    def change(old: Expr, node: Expr) -> Expr:
        made = _dilated(old)
        if made is None:
            return node
        data, weight, attrs = made
        return call("nn.conv2d", new[data], new[weight], **attrs)

    out = rewrite(function, change, new)
    assert isinstance(out, Function)
    return out


def _dilated(node: Expr) -> tuple[Expr, Expr, dict[str, Any]] | None:
    """Data, weight and attributes of the convolution that a chain of calls ends in, or None."""
    calls: list[Call] = []
    for name in _CHAIN:
        if not isinstance(node, Call) or node.op != Op(name):
            return None
        calls.append(node)
        node = node.args[0]
    back, conv, space = (attributes(c, name) for c, name in zip(calls, _CHAIN, strict=True))
    blocks = tuple(space["block_shape"])
    if conv["data_layout"] != "NHWC" or conv["out_layout"] not in ("", "NHWC"):
        return None
    if {*conv["strides"], *conv["dilation"]} != {1} or any(conv["padding"]):
        return None
    if len(blocks) != 2 or tuple(back["block_shape"]) != blocks or space["pad_value"] != 0:
        return None
    pairs = zip(space["paddings"], back["crops"], strict=True)
    (top, bottom), (left, right) = ((p[0] - c[0], p[1] - c[1]) for p, c in pairs)
    padding = (top, left, bottom, right)
    if min(padding) < 0:
        return None
    attrs = {**conv, "padding": padding, "dilation": blocks}
    return calls[2].args[0], calls[1].args[1], attrs
