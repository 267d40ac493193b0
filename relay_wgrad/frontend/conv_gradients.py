"""Both gradients of a convolution of lines, images or volumes, or of a transposed one, as calls of
the dedicated operators: what importers of gradient graphs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..ops.conv2d_backward_data import construct as dgrad
from ..ops.conv2d_backward_weight import construct as wgrad
from .context import Context, shape_of
from .layers import conv, lifted
from .moving import cut

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
        lines = len(strides) == 1
        self.ctx = ctx
        self.given: dict[str, Any] = {
            "strides": [1, *strides] if lines else list(strides),
            "padding": [0, pads[0], 0, pads[1]] if lines else list(pads),
            "dilation": [1, *dilation] if lines else list(dilation),
            "groups": groups,
        }
        self.rank = len(self.given["strides"])

    def of(
        self, dy: Any, x: Any, weight: Any, mask: Sequence[Any], *, transposed: bool = False
    ) -> tuple[Any, Any]:
        """The gradients by x and by weight, None for what the mask leaves out."""
        kind = self._of_transposed if transposed else self._of_plain
        pair = kind(self._lifted(dy), self._lifted(x), self._lifted(weight), mask)
        of_x, of_weight = (
            g if g is None or len(size) > 3 else self.ctx.emit(op.reshape(g, size))
            for g, size in zip(pair, map(shape_of, (x, weight)), strict=True)
        )
        return of_x, of_weight

    def _lifted(self, x: Any) -> Any:
        return lifted(self.ctx, x) if len(shape_of(x)) == 3 else x

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
        name = f"conv{self.rank}d_backward_data"
        return self.ctx.emit(dgrad(name, dy, weight, shape, **self.given, **_layouts(self.rank)))

    def by_weight(self, dy: Any, x: Any, weight: tuple[int, ...]) -> Any:
        """wgrad, of images or volumes; `weight` is the result's shape."""
        name = f"conv{self.rank}d_backward_weight"
        given = {**self.given, **_layouts(self.rank), "kernel_size": weight[2:]}
        return self.ctx.emit(wgrad(name, dy, x, **given))


def _layouts(rank: int) -> dict[str, Any]:
    pixels = "DHW"[3 - rank :]
    return {"grad_layout": f"NC{pixels}", "data_layout": f"NC{pixels}",
            "kernel_layout": f"OI{pixels}", "out_dtype": None}  # fmt: skip
