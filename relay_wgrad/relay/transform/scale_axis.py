"""Factors of a tensor's channels: what a convolution's weight can take, and in which shape.

A convolution is linear in each channel of its data and of its result, so a factor of one is a
factor of the weight: conv(x · s, w) = conv(x, w · s) along the input channels, conv(x, w) · s =
conv(x, w · s) along the output channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ...dtypes import numpy_dtype
from ..ast import Call, Constant, Expr, operator_of
from ..layout_rules.named import Layout
from ..make import call
from ..types import TensorType
from .user_hooks import attributes

CONVOLUTIONS = ("nn.conv2d", "nn.conv3d")
# What gives its argument's numbers, each at least once, and no others.
_SAME_NUMBERS = frozenset({"squeeze", "expand_dims", "reshape", "repeat", "transpose", "copy"})


@dataclass(frozen=True)
class Wish:
    """A factor that a consumer can take: of which axes, and what must be known of its numbers.

    `positive` : it passes `nn.relu`.  `divides` : an operand is divided by it.
    """

    axes: tuple[int, ...]
    positive: bool = False
    divides: bool = False


def common_wish(a: Wish | None, b: Wish | None) -> Wish | None:
    """What two consumers can take."""
    if a is None or b is None or a.axes != b.axes:
        return None
    return Wish(a.axes, a.positive or b.positive, a.divides or b.divides)


@dataclass(frozen=True)
class Channels:
    """A convolution's channels: their axes in the tensor, and in the weight, outer parts first."""

    axes: tuple[int, ...]
    in_weight: tuple[int, ...]


def tensor(node: Expr) -> TensorType | None:
    """The type of a node that is a tensor of floats."""
    ty = node.checked_type
    if isinstance(ty, TensorType) and numpy_dtype(ty.dtype).kind not in "biu":
        return ty
    return None


def channels(node: Call, of_result: bool) -> Channels | None:
    """The channels that a factor may be of: the result's, or the data's.

    None where the weight has not one axis for them, as with groups of several input channels.
    """
    name = operator_of(node)
    data, weight, out = tensor(node.args[0]), tensor(node.args[1]), tensor(node)
    if data is None or weight is None or out is None or not data.dtype == weight.dtype == out.dtype:
        return None
    if name == "nn.dense":
        end = len(data.shape) - 1
        return Channels((end,), (0,) if of_result else (len(weight.shape) - 1,))
    a = attributes(node, name)
    kernel = Layout.parse(str(a.kernel_layout))
    layout = Layout.parse(str((a.out_layout if of_result else None) or a.data_layout))
    ty = out if of_result else data
    groups = int(a.groups)
    # Of a depthwise convolution the output channels are the input's.
    alone = groups > 1 and _size(kernel, weight, "I") == 1 and _size(kernel, weight, "O") == groups
    if groups > 1 and not (alone or of_result):
        return None
    axes = _places(layout, "C")
    in_weight = _places(kernel, "O" if of_result or alone else "I")
    counts = {len(axes), len(_places(kernel, "I")), len(_places(kernel, "O"))}
    found = [_product(t, at) for t, at in ((ty, axes), (weight, in_weight))]
    if counts not in ({1}, {2}) or None in found or found[0] != found[1]:
        return None
    return Channels(axes, in_weight)


def _places(layout: Layout, axis: str) -> tuple[int, ...]:
    """Where an axis is, and the blocks of it."""
    parts = [i for i, (name, _) in enumerate(layout.axes) if name == axis]
    return tuple(sorted(parts, key=lambda i: layout.axes[i][1] != 0))


def _product(ty: TensorType, axes: Sequence[int]) -> int | None:
    sizes = [ty.shape[i] for i in axes]
    return prod(d for d in sizes if isinstance(d, int)) if _are_numbers(sizes) else None


def _size(layout: Layout, ty: TensorType, axis: str) -> int | None:
    return _product(ty, _places(layout, axis))


def _are_numbers(sizes: Sequence[Any]) -> bool:
    return all(isinstance(d, int) for d in sizes)


def fits(data: Expr, factor: Expr, axes: Sequence[int]) -> bool:
    """Whether a factor has the axes of a tensor, and 1 for all others: its shape ends the same."""
    big, small = tensor(data), tensor(factor)
    if big is None or small is None or len(small.shape) > len(big.shape):
        return False
    base = len(big.shape) - len(small.shape)
    for i, size in enumerate(big.shape):
        if i in axes:
            if i < base or not isinstance(size, int) or small.shape[i - base] != size:
                return False
        elif i >= base and small.shape[i - base] != 1:
            return False
    return True


def is_factor(data: Expr, factor: Expr, wish: Wish) -> bool:
    """Whether a node is a factor that is wished for, or a number, which also is one."""
    big, small = tensor(data), tensor(factor)
    if big is None or small is None or big.dtype != small.dtype:
        return False
    is_number = not small.shape and _are_numbers([big.shape[i] for i in wish.axes])
    return (is_number or fits(data, factor, wish.axes)) and _allowed(wish, factor)


def _allowed(wish: Wish, node: Expr) -> bool:
    if not (wish.positive or wish.divides):
        return True
    while operator_of(node) in _SAME_NUMBERS:
        assert isinstance(node, Call)
        node = node.args[0]
    if not isinstance(node, Constant):
        return False
    numbers = np.asarray(node.data, "float64")
    if not np.isfinite(numbers).all() or (wish.positive and not (numbers > 0).all()):
        return False
    # A quotient by less could overflow where the program's own numbers do not.
    least = float(np.finfo(node.data.dtype).max) ** -0.25 if wish.divides else 0
    return bool((np.abs(numbers) >= least).all())


def squeezed_factor(made: Expr, factor: Expr, data: Expr, axes: Sequence[int]) -> Expr:
    """A factor of a tensor with the axes that it is of, and no others; `made` stands for it."""
    big, small = tensor(data), tensor(factor)
    assert big is not None
    assert small is not None
    if not small.shape:
        made = call("expand_dims", made, axis=0, num_newaxis=len(axes))
        for at, axis in enumerate(axes):
            made = call("repeat", made, repeats=big.shape[axis], axis=at)
        return made
    base = len(big.shape) - len(small.shape)
    ones = [i for i in range(len(small.shape)) if i + base not in axes]
    return call("squeeze", made, axis=ones) if ones else made


def broadcast_factor(factor: Expr, data: Expr, axes: Sequence[int]) -> Expr:
    """A factor as a tensor that multiplies one like `data` along these axes."""
    ty = tensor(data)
    assert ty is not None
    if len(axes) == 1:
        after = len(ty.shape) - axes[0] - 1
        return call("expand_dims", factor, axis=1, num_newaxis=after) if after else factor
    shape = [size if i in axes else 1 for i, size in enumerate(ty.shape)]
    return call("reshape", factor, newshape=shape)


def weighted(node: Call, new: Mapping[Expr, Expr], factor: Expr, found: Channels) -> Call:
    """A convolution over new arguments, with a factor of its channels in the weight."""
    data, weight = node.args
    by = broadcast_factor(factor, weight, found.in_weight)
    return replace(node, args=(new[data], call("multiply", new[weight], by)))
