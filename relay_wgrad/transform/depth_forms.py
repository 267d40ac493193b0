"""Which form a convolution of few channels gets: blocks, whole rows or whole windows of taps.

More taps as channels make an image of more bytes, written once and read twice, and products whose
pieces are better filled.  A form's time is that of writing the image, of a convolution and of its
weight gradient.  The image is bytes alone; each of the others takes the longer of

    bytes of image and result / a rate       products, channels and filters filled up / PRODUCTS

where a window of one tap is a matrix product, at the rate of memory, and others are not.  A weight
gradient in float32 first writes the result's gradient in another layout, if it has columns of taps.
Kernels that are known to take a convolution as it is have an image that is only converted; how long
they need a caller says.

All constants are an H200's with cuDNN 9.19, batch 256 (`benchmarks gpu stem`): of 21 times of five
layers they give 0.70 to 1.28, and of each layer the form that was fastest.  All of it grows with
the number of images, which is no part of it but for kernels that are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..problem import DTYPE_BYTES, ConvProblem
from .depth_blocks import FORMS, Blocks

AUTO, AS_IT_IS = "auto", "as it is"
Known = Callable[[ConvProblem], float | None]
"""Microseconds of fprop and wgrad by kernels that take them as they are; None: of none known."""
Wanted = bool | str | Known
"""Whether forms are wanted, or which one, or by their times and those of kernels that are known."""
# Bytes a second: of the kernel that makes the image, of matrix products, of other convolutions, and
# of cuDNN's conversion of a float32 gradient, which reads and writes it.
IMAGE_RATE, PRODUCT_RATE, RATE, CONVERSION_RATE = 2.8e12, 3.8e12, 2.2e12, 2.4e12
PRODUCTS = {2: 193e12, 4: 75e12}
"""A second, by bytes of an element."""
CHANNELS_AT_ONCE = 64  # bytes
FILTERS_AT_ONCE = 64
WORTH = 0.95
"""Of the blocks' time, what another form may take to be chosen."""

TRANSPOSED_RATE = 1.5e12  # bytes a second: an image of few channels to channels last
_SURE = 0.85  # of the best form's time, what kernels that are known may be expected to take

_READ = 4  # bytes of an element of the image as it comes


def seconds(problem: ConvProblem, blocks: Blocks) -> float:
    """Predicted of the image, the convolution and its weight gradient, for each image."""
    p: Any = problem
    nbytes = DTYPE_BYTES[problem.data_dtype]
    rows, columns = blocks.rows, blocks.columns
    image = rows.length * columns.length * blocks.new_channels * nbytes
    result = p.p * p.q * p.k * nbytes
    channels = _filled(blocks.new_channels, CHANNELS_AT_ONCE // nbytes)
    taps = rows.new_taps * columns.new_taps
    products = p.p * p.q * _filled(p.k, FILTERS_AT_ONCE) * channels * taps / PRODUCTS[nbytes]
    one = max((image + result) / (RATE if taps > 1 else PRODUCT_RATE), products)
    written = (image + p.c * p.h * p.w * _READ) / IMAGE_RATE
    converted = 2 * result / CONVERSION_RATE if nbytes == 4 and columns.new_taps > 1 else 0.0
    return float(written + 2 * one + converted)


def form_of(problem: ConvProblem, unit: int, most: int, known: Known | None = None) -> str:
    """The form with the least predicted time, of at most `most` channels; "blocks" if in doubt.

    `AS_IT_IS` where kernels that are `known` are predicted to be clearly faster than any form.
    Channels that are as many as a library reads at once stay as they are where they can: nothing
    was measured of them.
    """
    forms = {form: Blocks.of(problem, unit, form) for form in FORMS}
    as_they_are = problem.strides == (1, 1) and forms["blocks"].new_channels == problem.c
    if as_they_are or DTYPE_BYTES[problem.data_dtype] not in PRODUCTS:
        return "blocks"
    times = {f: seconds(problem, b) for f, b in forms.items() if b.new_channels <= most}
    best = min(times, key=lambda form: times[form], default="blocks")
    worth = best in times and times[best] <= WORTH * times.get("blocks", 0.0)
    form = best if worth else "blocks"
    took = _as_it_is(problem, known)
    return AS_IT_IS if took is not None and took < _SURE * times.get(form, 0.0) else form


def _as_it_is(problem: ConvProblem, known: Known | None) -> float | None:
    """Seconds for each image, as `seconds` are, by kernels that are known."""
    n, us = problem.n, None if known is None else known(problem)
    if us is None or not isinstance(n, int):
        return None
    p: Any = problem
    image = p.c * p.h * p.w * (_READ + DTYPE_BYTES[problem.data_dtype])
    return float(image / TRANSPOSED_RATE + us * 1e-6 / n)


def _filled(count: int, unit: int) -> int:
    return -(-count // unit) * unit
