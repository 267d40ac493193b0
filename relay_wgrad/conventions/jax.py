"""JAX: `jax.lax.conv_transpose`, and Flax's `ConvTranspose`, which calls it.

It pads the input, spread out by the strides, and convolves it.  Of the rows that taps reach, the
padding before p keeps those from e - 1 - p on; 'SAME' and 'VALID' are Keras'.  Alone among these
frameworks it has by default a weight that is none of a forward convolution's: I is its own input,
and the taps are in the reverse order.  `transpose_kernel=True` takes the forward convolution's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..attrs import pair
from ..layouts import ACTIVATION, KERNEL, is_permutation, swap_io, to_layout
from ..problem import ConvKind
from . import common, keras
from .common import Conversion, Layouts, Written

TRANSPOSE = "JAX conv_transpose"
PADDINGS = {"SAME": "same", "VALID": "valid"}  # and what Keras calls them
NUMBERS = ("NHWC", "HWIO", "NHWC")
_NAMES = ("rhs", "strides", "rhs_dilation", "groups")
_TENSORS = {"grad": "lhs", "weight": "rhs"}


def conv_transpose(
    lhs_shape: Any,
    rhs_shape: Any,
    strides: Any,
    padding: Any,
    rhs_dilation: Any = None,
    dimension_numbers: Any = NUMBERS,
    transpose_kernel: bool = False,
    *,
    use_consistent_padding: bool = False,
    dtype: str = "float32",
) -> Conversion:
    """The problem of `jax.lax.conv_transpose` of images, arguments in its order, shapes for arrays.

    Raises TypeError or ValueError naming the argument, the rule and both values.
    """
    op = TRANSPOSE
    lhs_spec, rhs_spec, out_spec = _numbers(dimension_numbers)
    own = rhs_spec if transpose_kernel else swap_io(rhs_spec)
    shape = common.sizes(op, "lhs", lhs_shape)
    weight = to_layout(common.sizes(op, "rhs", rhs_shape), own, KERNEL)
    win = common.window(
        op, weight[2:], strides, 1 if rhs_dilation is None else rhs_dilation, 1, _NAMES
    )
    n, channels, pixels = common.image(shape, lhs_spec)
    starts, totals = [], []
    sides = _sides(padding)
    for i in (0, 1):
        extent, stride = win.extents[i], win.strides[i]
        full = (pixels[i] - 1) * stride + extent
        if isinstance(sides, str):
            totals.append(keras.output_size(sides, pixels[i], extent, stride, None))
            starts.append(keras.first_row(sides, pixels[i], extent, stride, totals[i]))
        else:
            cut = [p if use_consistent_padding else extent - 1 - p for p in sides[i]]
            starts.append(cut[0])
            totals.append(full - sum(cut))
    layouts: Layouts = (out_spec, own, lhs_spec)
    return common.transposed(
        op, _TENSORS, (n, channels, *pixels), weight, win, (starts[0], starts[1]),
        (totals[0], totals[1]), layouts, dtype, turned=not transpose_kernel,
    )  # fmt: skip


def to_conv_transpose(
    found: Any, dimension_numbers: Any = NUMBERS, transpose_kernel: bool = False
) -> Written:
    """The arguments of `conv_transpose`, with pairs for the padding: nothing is left around it.

    Raises ValueError for groups, which it has not.
    """
    found = common.plain_conversion(f"to {TRANSPOSE}", found, ConvKind.DGRAD)
    p = found.problem
    if p.groups != 1:
        raise ValueError(f"to {TRANSPOSE}: JAX has it for one group, got groups={p.groups}")
    lhs_spec, rhs_spec, _ = numbers = _numbers(dimension_numbers)
    own = rhs_spec if transpose_kernel else swap_io(rhs_spec)
    sides = [
        (axis.extent - 1 - axis.start, axis.extent - 1 - (axis.full - axis.start - axis.total))
        for axis in common.axes_of(found)
    ]
    return Written(
        {
            "lhs_shape": to_layout(p.canonical_shape("grad"), ACTIVATION, lhs_spec),
            "rhs_shape": to_layout(p.canonical_shape("weight"), KERNEL, own),
            "strides": p.strides,
            "padding": (sides[0], sides[1]),
            "rhs_dilation": p.dilation,
            "dimension_numbers": numbers,
            "transpose_kernel": transpose_kernel,
            "dtype": p.data_dtype,
        }
    )


def _numbers(value: Any) -> tuple[str, str, str]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 3:
        raise TypeError(f"{TRANSPOSE}: dimension_numbers must be three strings, got {value!r}")
    for name, spec, letters in zip(
        ("lhs", "rhs", "out"), value, (ACTIVATION, KERNEL, ACTIVATION), strict=True
    ):
        if not isinstance(spec, str) or not is_permutation(spec, letters):
            raise ValueError(
                f"{TRANSPOSE}: dimension_numbers of {name} must permute {letters}, got {spec!r}"
            )
    return value[0], value[1], value[2]


def _sides(padding: Any) -> Any:
    """Keras' word for it, or a pair for each axis."""
    if isinstance(padding, str):
        return PADDINGS[common.choice(TRANSPOSE, "padding", padding, tuple(PADDINGS))]
    if not isinstance(padding, Sequence) or len(padding) != 2:
        raise ValueError(f"{TRANSPOSE}: padding must be two pairs, got {padding!r}")
    return [pair(TRANSPOSE, "padding", side) for side in padding]
