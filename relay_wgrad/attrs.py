"""Attributes of the convolution family: one record for all its ops.

Each op writes its attributes its own way (`nn.conv2d_transpose` calls the gradient's layout
`data_layout` and swaps the letters of the weight's); here they become one `ConvAttrs`, named by the
roles of the forward convolution, so that no rule has to know which op it came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from tvm import DataType, relax, tirx

from .layouts import ACTIVATION, ACTIVATIONS, KERNEL, KERNELS, is_permutation, swap_io


@dataclass(frozen=True)
class ConvAttrs:
    """Attributes in the forward convolution's terms, of `rank` dimensions, by default two.

    `grad_layout` is the layout of the convolution's output and of its gradient.  `kernel_size` is
    stored by wgrad only, `output_padding` by the transposed convolution only.
    """

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    data_layout: str = ACTIVATION
    kernel_layout: str = KERNEL
    grad_layout: str = ACTIVATION
    out_dtype: str | None = None
    kernel_size: tuple[int, ...] | None = None
    output_padding: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        """Dimensions of an image."""
        return len(self.strides)

    @property
    def activation(self) -> str:
        """The canonical order of data and grad."""
        return ACTIVATIONS[self.rank]

    @property
    def kernel(self) -> str:
        """The canonical order of the weight."""
        return KERNELS[self.rank]


ATTRIBUTE_BOUND = 2**30  # of an attribute's size


def as_int(op: str, name: str, value: Any) -> int:
    """A plain int from whatever spells one.

    TypeError for anything else; ValueError beyond 30 bits: upstream's relations add attributes in
    32 bits, silently wrapping around.
    """
    if isinstance(value, tirx.IntImm):
        value = value.value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{op}: {name} must be an integer, got {value!r}")
    if not -ATTRIBUTE_BOUND < int(value) < ATTRIBUTE_BOUND:
        raise ValueError(f"{op}: {name} must be smaller than 2**30, got {value}")
    return int(value)


def as_ints(op: str, name: str, value: Any) -> tuple[int, ...]:
    """A tuple of ints from an int or a sequence of them."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (as_int(op, name, value),)
    return tuple(as_int(op, name, v) for v in value)


def pair(op: str, name: str, value: Any) -> tuple[int, int]:
    """(height, width) from one or two ints."""
    height, width = per_dimension(op, name, value, 2)
    return (height, width)


def per_dimension(op: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    """One int for each dimension, depth first, from one int or all of them."""
    v = as_ints(op, name, value)
    if len(v) not in (1, rank):
        raise ValueError(f"{op}: {name} must have 1 or {rank} values, got {len(v)}: {list(v)}")
    return v * rank if len(v) == 1 else v


def ends(op: str, value: Any, rank: int) -> tuple[int, ...]:
    """(top, left, bottom, right), or (front, top, left, back, bottom, right), from one int, one
    for each dimension or all."""
    v = as_ints(op, "padding", value)
    if len(v) not in (1, rank, 2 * rank):
        raise ValueError(
            f"{op}: padding must have 1, {rank} or {2 * rank} values, got {len(v)}: {list(v)}"
        )
    return v * (2 * rank // len(v))


def padding4(op: str, value: Any) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) from 1, 2 (vertical, horizontal) or 4 ints."""
    top, left, bottom, right = ends(op, value, 2)
    return (top, left, bottom, right)


def layout(op: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{op}: {name} must be a string, got {value!r}")
    return str(value)


def dtype_name(op: str, value: Any) -> str | None:
    """The dtype's name; None and "" mean: that of the operands."""
    if value is None or str(value) in ("", "void"):
        return None
    if not isinstance(value, str) and "dtype" not in type(value).__name__.lower():
        raise TypeError(f"{op}: out_dtype must name a dtype, got {value!r}")
    try:
        return str(DataType(str(value)))
    except ValueError:
        raise TypeError(f"{op}: out_dtype must name a dtype, got {str(value)!r}") from None


# The new ops' attributes in the order in which constructors take them, with their readers.
READERS: dict[str, Any] = {
    "kernel_size": lambda op, v, rank: per_dimension(op, "kernel_size", v, rank),
    "strides": lambda op, v, rank: per_dimension(op, "strides", v, rank),
    "padding": ends,
    "dilation": lambda op, v, rank: per_dimension(op, "dilation", v, rank),
    "groups": lambda op, v, _: as_int(op, "groups", v),
    "grad_layout": lambda op, v, _: layout(op, "grad_layout", v),
    "data_layout": lambda op, v, _: layout(op, "data_layout", v),
    "kernel_layout": lambda op, v, _: layout(op, "kernel_layout", v),
    "out_dtype": lambda op, v, _: dtype_name(op, v),
}


def rank_of(op: str) -> int:
    """How many dimensions an op is of: `conv3d` is of three."""
    return int(op[len("conv")])


def read_attrs(op: str, attrs: Mapping[str, Any], keys: Sequence[str]) -> ConvAttrs:
    """Reads a new op's attributes; raises TypeError or ValueError naming op, attribute, value."""
    missing = [key for key in keys if key not in attrs]
    unknown = sorted(key for key in attrs if key not in keys)
    if missing or unknown:
        raise ValueError(f"{op}: attributes missing {missing}, unknown {unknown}")
    return ConvAttrs(**{key: READERS[key](op, attrs[key], rank_of(op)) for key in keys})


def write_attrs(a: ConvAttrs, keys: Sequence[str]) -> dict[str, Any]:
    """The new op's attributes as TVM stores them."""
    values = {key: getattr(a, key) for key in keys}
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def read_dict_attrs(call: relax.Call, op: str, keys: Sequence[str]) -> ConvAttrs:
    """`read_attrs` of a call, whose attributes may be anything."""
    items = getattr(call.attrs, "items", None)
    return read_attrs(op, dict(items()) if items is not None else {}, keys)


def _stored(call: relax.Call, op: str, name: str) -> Any:
    """An attribute of an op of upstream's, whose call someone may have made by hand."""
    if not hasattr(call.attrs, name):
        raise ValueError(f"{op}: attributes missing {[name]}")
    return getattr(call.attrs, name)


def _stored_layout(call: relax.Call, op: str, name: str, canonical: str) -> str:
    """A layout of upstream's ops, which may be blocked, as NCHW16c is.

    Checked here, where the attribute still has the name and the letters that its op gives it.
    """
    value = layout(op, name, _stored(call, op, name))
    parts = re.findall(r"[A-Z]|[1-9]\d*[a-z]", value)
    letters = [part[-1] for part in parts]
    good = (
        "".join(parts) == value
        and is_permutation("".join(filter(str.isupper, letters)), canonical)
        and set(letters) <= set(canonical + canonical.lower())
        and len(set(letters)) == len(letters)
    )
    if not good:
        raise ValueError(
            f"{op}: {name} must be a permutation of {canonical}, blocked or not, got {value!r}"
        )
    return value


def _stored_dtype(op: str, value: Any) -> str | None:
    """Upstream's constructors keep "" and "void" as a dtype, of which its relations make tensors
    of no type, that pass for others until memory is written: refused, where `dtype_name` takes the
    same words of our own constructors' for none given."""
    if value is not None and str(value) in ("", "void"):
        raise TypeError(
            f"{op}: out_dtype must name a dtype, got 'void'; without one it is the operands'"
        )
    return dtype_name(op, value)


def read_conv(call: relax.Call, rank: int) -> ConvAttrs:
    """Attributes of upstream's convolution: its output is what gradients come in for."""
    return _read_upstream(call, f"conv{rank}d", rank)


def read_conv_transpose(call: relax.Call, rank: int) -> ConvAttrs:
    """Attributes of upstream's transposed convolution: its data plays the gradient."""
    op = f"conv{rank}d_transpose"
    a = _read_upstream(call, op, rank)
    return replace(
        a,
        data_layout=a.grad_layout,
        kernel_layout=swap_io(a.kernel_layout),
        grad_layout=a.data_layout,
        output_padding=per_dimension(
            op, "output_padding", _stored(call, op, "output_padding"), rank
        ),
    )


def _read_upstream(call: relax.Call, op: str, rank: int) -> ConvAttrs:
    """What both store alike, under the attributes' own names."""
    activation, kernel = ACTIVATIONS[rank], KERNELS[rank]
    return ConvAttrs(
        strides=per_dimension(op, "strides", _stored(call, op, "strides"), rank),
        padding=ends(op, _stored(call, op, "padding"), rank),
        dilation=per_dimension(op, "dilation", _stored(call, op, "dilation"), rank),
        groups=as_int(op, "groups", _stored(call, op, "groups")),
        data_layout=_stored_layout(call, op, "data_layout", activation),
        kernel_layout=_stored_layout(call, op, "kernel_layout", kernel),
        grad_layout=_stored_layout(call, op, "out_layout", activation),
        out_dtype=_stored_dtype(op, _stored(call, op, "out_dtype")),
    )
