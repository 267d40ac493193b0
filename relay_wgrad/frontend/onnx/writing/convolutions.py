"""Convolutions and both of their gradients, of one to three dimensions.

fprop   y = Conv(x, w)
dgrad   dx = ConvTranspose(dy, w), whose weight has the forward convolution's order already;
        the pixels that strides left over are less padding at the end, or `output_padding`
wgrad   dw = Conv(x, dy) with images in the place of channels, strides and dilations swapped:
        dw[k, c, r] = sum over n, p of dy[n, k, p] x[n, c, p stride + r dilation - pad]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ....attrs import ConvAttrs
from ....layouts import to_layout
from ....opdef import OpDef
from ....ops import FAMILY, LINES
from ....problem import ROLES, ConvKind
from .writer import Names, Row, Writer, dtype, sizes


@dataclass(frozen=True)
class Window:
    """Attributes in canonical order, of any number of dimensions; padding: before, then after."""

    strides: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    @property
    def rank(self) -> int:
        return len(self.strides)

    def reach(self, taps: Sequence[int], steps: Sequence[int]) -> list[int]:
        """Pixels from a window's first to its last."""
        return [(t - 1) * s + 1 for t, s in zip(taps, steps, strict=True)]


Sizes = Sequence[int]


def fprop(w: Writer, at: Window, x: str, weight: str) -> str:
    return w.node(
        "Conv", x, weight, strides=list(at.strides), pads=list(at.padding),
        dilations=list(at.dilation), group=at.groups,
    )  # fmt: skip


def dgrad(
    w: Writer, at: Window, grad: str, weight: str, out: Sizes, taps: Sizes, data: Sizes
) -> str:
    """(N, K, P…) and (K, C/groups, R…) to (N, C, H…); `out`, `taps`, `data` are P…, R…, H…."""
    whole = [
        (p - 1) * s + reach
        for p, s, reach in zip(out, at.strides, at.reach(taps, at.dilation), strict=True)
    ]
    before = at.padding[: at.rank]
    end = [n - b - h for n, b, h in zip(whole, before, data, strict=True)]  # what is cut there
    extra = [min(max(-e, 0), s - 1) for e, s in zip(end, at.strides, strict=True)]
    made = w.node(
        "ConvTranspose", grad, weight, strides=list(at.strides), dilations=list(at.dilation),
        group=at.groups, pads=[*before, *(max(e, 0) for e in end)], output_padding=extra,
    )  # fmt: skip
    rest = [max(-e, 0) - x for e, x in zip(end, extra, strict=True)]
    return w.pad(made, [0] * (at.rank + 2), [0, 0, *rest])


def wgrad(
    w: Writer, at: Window, grad: str, x: str, grad_shape: Sizes, x_shape: Sizes, taps: Sizes
) -> str:
    """(N, K, P…) and (N, C, H…) to (K, C/groups, R…)."""
    rank, groups = at.rank, at.groups
    images, channels, *size = x_shape
    space = list(range(2, 2 + rank))
    before = list(at.padding[:rank])
    pixels = at.reach(grad_shape[2:], at.strides)  # those of a window of the forward's outputs
    after = [
        (r - 1) * d + reach - h - b
        for r, d, reach, h, b in zip(taps, at.dilation, pixels, size, before, strict=True)
    ]
    if any(a < 0 for a in after):  # what no window reaches, which would make more taps
        size = [h + min(a, 0) for h, a in zip(size, after, strict=True)]
        x = w.crop(x, [0] * rank, size, 2)
    if groups == 1:
        x = w.transpose(x, [1, 0, *space])
    else:  # (N, G C/G, H…) to (C/G, G N, H…)
        x = w.reshape(x, [images, groups, channels // groups, *size])
        x = w.transpose(x, [2, 1, 0, *(a + 1 for a in space)])
        x = w.reshape(x, [channels // groups, groups * images, *size])
    made = w.node(
        "Conv", x, w.transpose(grad, [1, 0, *space]), strides=list(at.dilation),
        pads=[*before, *(max(a, 0) for a in after)], dilations=list(at.strides), group=groups,
    )  # fmt: skip
    return w.transpose(made, [1, 0, *space])


def _checked(call: relax.Call, operands: Sequence[Any]) -> None:
    kinds = {dtype(call), *map(dtype, operands)}
    if len(kinds) > 1:
        raise ValueError(f"one dtype for operands and result is needed, got {sorted(kinds)}")


def _write(w: Writer, call: relax.Call, names: Sequence[str], kind: ConvKind, a: ConvAttrs) -> str:
    _checked(call, call.args[:2])
    canonical = {"data": a.activation, "grad": a.activation, "weight": a.kernel}
    given = {"data": a.data_layout, "grad": a.grad_layout, "weight": a.kernel_layout}
    first, second, result = ROLES[kind]
    tensors, shapes = {}, {}
    for role, name, arg in zip((first, second), names, call.args[:2], strict=True):
        tensors[role] = w.to_layout(name, given[role], canonical[role])
        shapes[role] = to_layout(sizes(arg), given[role], canonical[role])
    shapes[result] = to_layout(sizes(call), given[result], canonical[result])
    at = Window(a.strides, a.padding, a.dilation, a.groups)
    if kind is ConvKind.FPROP:
        made = fprop(w, at, tensors["data"], tensors["weight"])
    elif kind is ConvKind.DGRAD:
        pixels, taps, data = (shapes[role][2:] for role in ("grad", "weight", "data"))
        made = dgrad(w, at, tensors["grad"], tensors["weight"], pixels, taps, data)
    else:
        made = wgrad(
            w, at, tensors["grad"], tensors["data"], shapes["grad"], shapes["data"],
            shapes["weight"][2:],
        )  # fmt: skip
    return w.to_layout(made, canonical[result], given[result])


def _row(definition: OpDef) -> Row:
    def row(w: Writer, call: relax.Call, names: list[Names]) -> Names:
        assert definition.read_attrs is not None
        assert definition.kind is not None
        return _write(w, call, names[:2], definition.kind, definition.read_attrs(call))

    return row


ROWS: dict[str, Row] = {name: _row(definition) for name, definition in (FAMILY | LINES).items()}
