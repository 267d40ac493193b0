"""`nn.pad`, with negative widths that cut."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir.expr import GenericConst

from ..types import TensorType, Type
from .facts import FOLLOW, INJECTIVE
from .relations import total
from .table import REQUIRED, Attr, Call, Site, define, show_shape
from .te import choice, long_enough

R = relax.op


def _pad_type(call: Call) -> Type:
    data, widths = call.tensor(), call.attrs["pad_width"]
    call.tensor(1)
    if len(widths) != len(data.shape):
        call.fail(
            "There should be as many pad width pairs as shape dimensions but the shape has"
            f" {len(data.shape)} dimensions and there are {len(widths)} pad width pairs."
        )
    for i, pair in enumerate(widths):
        if len(pair) != 2:
            call.fail(
                f"Each pad width element should be a pair but at index {i} there are"
                f" {len(pair)} elements."
            )
    mode = choice(call, "pad_mode", [*_PAD_MODES])
    shape = tuple(total((size, *pair)) for size, pair in zip(data.shape, widths, strict=True))
    for size, pair in zip(data.shape, widths, strict=True):
        # "edge" repeats the outermost element; "reflect" mirrors what is beside it.
        if mode == "constant" or not isinstance(size, int) or max(pair) <= 0:
            continue
        if size == 0 or (mode == "reflect" and max(pair) >= size):
            call.fail(f"pad_mode={mode!r} cannot pad an axis of size {size} by {list(pair)}")
    if any(isinstance(d, int) and d < 0 for d in shape):
        call.fail(f"Output shape post padding should be positive but got {show_shape(shape)}")
    return TensorType(shape, data.dtype)


_PAD_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}


def _pad(s: Site) -> Any:
    x, value = s.args
    mode, flat = s.attrs["pad_mode"], [w for pair in s.attrs["pad_width"] for w in pair]
    if min(flat, default=0) < 0:
        x = _cut(s, x)
        flat = [max(w, 0) for w in flat]
    if not any(flat):
        return x
    if mode != "constant":
        return R.nn.pad(x, flat, _PAD_MODES[mode])
    if isinstance(value, GenericConst):
        return R.nn.pad(x, flat, "constant", float(value.value.numpy()))
    # A value known only when the program runs goes where a padded mask has zeros.
    mask = s.emit(R.nn.pad(s.emit(R.ones_like(x)), flat))
    inside = s.emit(R.not_equal(mask, s.const(0)))
    filler = s.emit(R.astype(value, s.tensor().dtype))
    return R.where(inside, s.emit(R.nn.pad(x, flat)), filler)


def _cut(s: Site, x: Any) -> Any:
    """What negative widths leave of a tensor."""
    if s.attrs["pad_mode"] != "constant":
        s.fail(
            "negative pad_width only with pad_mode='constant', got"
            f" {list(s.attrs['pad_width'])} and {s.attrs['pad_mode']!r}"
        )
    sizes, widths = s.sizes(s.tensor()), s.attrs["pad_width"]
    cut = {axis: pair for axis, pair in enumerate(widths) if min(pair) < 0}
    begin = [max(-before, 0) for before, _ in cut.values()]
    end = [sizes[axis] - max(-after, 0) for axis, (_, after) in cut.items()]
    for axis, (before, after) in cut.items():
        least = max(-before, 0) + max(-after, 0)
        long_enough(s, axis, least, f"pad_width={[before, after]} cuts {least}")
    return s.emit(R.strided_slice(x, list(cut), begin, end))


define("nn.pad", "data pad_value", _pad_type, _pad, "numpy",
       Attr("pad_width", REQUIRED, "pairs"), Attr("pad_mode", "constant", "str"),
       kind=INJECTIVE, level=2, precision=FOLLOW)  # fmt: skip
