"""Both gradients of a convolution of lines, images or volumes, or of a transposed one, as calls of
the dedicated operators: what importers of gradient graphs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..ops import conv_backward_data, conv_backward_weight
from .context import Context, shape_of
from .data_movement import cut
from .layers import conv, flat, lifted

op = relax.op


class ConvGradients:
    """The gradients of one convolution; padding is before each axis, then after each."""

    def __init__(
        self,
        ctx: Context,
        strides: Sequence[int],
        pads: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.ctx, self.lines = ctx, len(strides) == 1
        self.given: dict[str, Any] = {
            "strides": [1, *strides] if self.lines else list(strides),
            "padding": [0, pads[0], 0, pads[1]] if self.lines else list(pads),
            "dilation": [1, *dilation] if self.lines else list(dilation),
            "groups": groups,
        }
        self.rank = len(self.given["strides"])

    def gradients(
        self, dy: Any, x: Any, weight: Any, mask: Sequence[Any], *, transposed: bool = False
    ) -> tuple[Any, Any]:
        """The gradients by x and by weight, None for what the mask leaves out."""
        kind = self._of_transposed if transposed else self._of_plain
        if self.lines:
            dy, x, weight = (lifted(self.ctx, line) for line in (dy, x, weight))
        of_x, of_weight = kind(dy, x, weight, mask)
        if self.lines:
            of_x, of_weight = (None if g is None else flat(self.ctx, g) for g in (of_x, of_weight))
        return of_x, of_weight

    def _of_plain(self, dy: Any, x: Any, weight: Any, mask: Sequence[Any]) -> tuple[Any, Any]:
        """dgrad(dy, w) and wgrad(dy, x)."""
        of_x = self.by_data(dy, weight, shape_of(x)) if mask[0] else None
        return of_x, self.by_weight(dy, x, shape_of(weight)) if mask[1] else None

    def _of_transposed(self, dy: Any, x: Any, weight: Any, mask: Sequence[Any]) -> tuple[Any, Any]:
        """y = dgrad(x, w): fprop(dy, w), and wgrad with x in the gradient's place.

        Pixels that output padding has added beyond the last window are no part of it.
        """
        g = self.given
        for i in range(self.rank):
            reach = g["dilation"][i] * (shape_of(weight)[2 + i] - 1) + 1
            around = g["padding"][i] + g["padding"][i + self.rank]
            least = (shape_of(x)[2 + i] - 1) * g["strides"][i] + reach - around
            size = shape_of(dy)[2 + i]
            if size - least >= g["strides"][i]:
                dy = cut(self.ctx, dy, 2 + i, 0, least)
        of_x = None
        if mask[0]:
            of_x = conv(
                self.ctx, dy, weight, None, g["strides"], g["padding"], g["dilation"], g["groups"]
            )
        return of_x, self.by_weight(x, dy, shape_of(weight)) if mask[1] else None

    def by_data(self, dy: Any, weight: Any, shape: tuple[int, ...]) -> Any:
        """dgrad, of images or volumes."""
        made = conv_backward_data.CONSTRUCTORS[self.rank](dy, weight, shape, **self.given)
        return self.ctx.emit(made)

    def by_weight(self, dy: Any, x: Any, weight: tuple[int, ...]) -> Any:
        """wgrad, of images or volumes; `weight` is the result's shape."""
        made = conv_backward_weight.CONSTRUCTORS[self.rank](dy, x, weight[2:], **self.given)
        return self.ctx.emit(made)
