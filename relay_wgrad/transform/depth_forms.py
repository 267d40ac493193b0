"""Which form a convolution of few channels gets: blocks, whole rows or whole windows of taps.

More taps as channels make an image of more bytes, written once and read twice, and products whose
pieces are better filled: a kernel takes 64 bytes of channels at a time, per tap, and 64 filters.  A
form's time is that of writing the image, a convolution and its weight gradient, each the larger of

    bytes of image and result / RATE          products, channels and filters filled up / PRODUCTS

RATE is what kernels that move tensors reach on an H200.  PRODUCTS is what cuDNN 9.19 made there of
16 channels, filled up to 32, and 64 filters of 4x4 taps on 115x115 pixels, 256 images, bfloat16:
1.05e11 in 0.432 ms forward, as many in 0.657 ms backward.  All of it grows with the number of
images, which is no part of it.  Only for half precision: of tf32 nothing is measured.
"""

from __future__ import annotations

from typing import Any

from ..problem import DTYPE_BYTES, ConvProblem
from .depth_blocks import FORMS, Blocks

AUTO = "auto"
RATE = 3.8e12  # bytes a second
PRODUCTS = 193e12  # a second
CHANNELS_AT_ONCE = 64  # bytes
FILTERS_AT_ONCE = 64
WORTH = 0.8
"""Of the blocks' time, what another form may take to be chosen: no more than is beyond doubt."""

_HALF = 2  # bytes


def seconds(problem: ConvProblem, blocks: Blocks) -> float:
    """Predicted of the image, the convolution and its weight gradient, for each image."""
    p: Any = problem
    nbytes = DTYPE_BYTES[problem.data_dtype]
    rows, columns = blocks.rows, blocks.columns
    image = rows.length * columns.length * blocks.new_channels * nbytes / RATE
    result = p.p * p.q * p.k * nbytes / RATE
    channels = _filled(blocks.new_channels, CHANNELS_AT_ONCE // nbytes)
    taps = rows.new_taps * columns.new_taps
    products = p.p * p.q * _filled(p.k, FILTERS_AT_ONCE) * channels * taps / PRODUCTS
    return float(image + 2 * max(image + result, products))


def form_of(problem: ConvProblem, unit: int, most: int) -> str:
    """The form with the least predicted time, of at most `most` channels; "blocks" if in doubt."""
    if DTYPE_BYTES[problem.data_dtype] != _HALF:
        return "blocks"
    forms = {form: Blocks.of(problem, unit, form) for form in FORMS}
    times = {f: seconds(problem, b) for f, b in forms.items() if b.new_channels <= most}
    best = min(times, key=lambda form: times[form], default="blocks")
    worth = best in times and times[best] <= WORTH * times.get("blocks", 0.0)
    return best if worth else "blocks"


def _filled(count: int, unit: int) -> int:
    return -(-count // unit) * unit
