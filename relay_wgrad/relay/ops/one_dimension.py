"""Convolutions and pools of one dimension: those of two with a height of 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import relax

from ...ops import size_rules
from ..types import TensorType, Type
from . import by_rank
from .facts import ALWAYS, FOLLOW, NEVER, OUT_ELEMWISE_FUSABLE
from .table import Call, Site, define, lookup, show

R = relax.op
# What an attribute is along the height; None leaves it to the image.
_HEIGHT = {"strides": 1, "dilation": 1, "kernel_size": 1, "pool_size": 1, "output_size": 1,
           "output_padding": 0}  # fmt: skip
# The operator of two dimensions, and what sizes must be.
_TWO = {
    "nn.conv1d": ("nn.conv2d", size_rules.line),
    "nn.conv1d_transpose": ("nn.conv2d_transpose", size_rules.transposed_line),
    "nn.max_pool1d": ("nn.max_pool2d", size_rules.pooled),
    "nn.avg_pool1d": ("nn.avg_pool2d", size_rules.pooled),
    "nn.adaptive_max_pool1d": ("nn.adaptive_max_pool2d", size_rules.adapted),
    "nn.adaptive_avg_pool1d": ("nn.adaptive_avg_pool2d", size_rules.adapted),
}
TWO = {name: two for name, (two, _) in _TWO.items()}


def in_two(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of the operator of two dimensions."""
    out: dict[str, Any] = {}
    for name, value in attrs.items():
        if name == "padding":
            out[name] = (0, value[0], 0, value[-1])
        elif name in _HEIGHT:
            out[name] = (_HEIGHT[name], value[0]) if value else value
        elif name.endswith("layout"):
            out[name] = value.replace("W", "HW")
        else:
            out[name] = value
    return out


def axes(attrs: Mapping[str, Any]) -> list[int]:
    """Where the height is put, in each argument and, last, in the result."""
    data = attrs.get("data_layout") or attrs["layout"]
    kernel = [attrs["kernel_layout"]] if "kernel_layout" in attrs else []
    return [layout.index("W") for layout in (data, *kernel, attrs["out_layout"] or data)]


def _wide(call: Call) -> Call:
    """The call of two dimensions."""
    a = call.attrs
    for name, value in a.items():
        if name.endswith("layout") and (value or name != "out_layout"):
            if value.count("W") != 1 or "H" in value or len(value) != 3:
                call.fail(f"{name} must have three axes, W among them, got {value!r}")
        elif name in _HEIGHT and value is not None and len(set(value)) > 1:
            call.fail(f"{name} must be one integer, got {list(value)}")
        elif name == "padding" and len(value) not in (1, 2):
            call.fail(f"padding must be 1 or 2 integers, got {list(value)}")
    types: list[Type] = []
    for index, axis in zip(range(len(call.types)), axes(a), strict=False):
        ty = call.tensor(index)
        if len(ty.shape) != 3:
            call.fail(f"{call.inputs[index]} must have 3 axes, got {show(ty)}")
        types.append(replace(ty, shape=(*ty.shape[:axis], 1, *ty.shape[axis:])))
    return replace(call, types=tuple(types), attrs=in_two(a))


def _type(call: Call) -> Type:
    made = lookup(TWO[call.op]).relation(_wide(_plain(call)))
    assert isinstance(made, TensorType)
    axis = axes(call.attrs)[-1]
    return replace(made, shape=made.shape[:axis] + made.shape[axis + 1 :])


def _plain(call: Call) -> Call:
    return Call(call.op, call.inputs, call.types, call.attrs)


def _build(s: Site) -> Any:
    s.compare(_TWO[s.op][1])
    wide, places = _wide(_plain(s)), axes(s.attrs)
    args = tuple(s.emit(R.expand_dims(x, axis)) for x, axis in zip(s.args, places, strict=False))
    two = lookup(TWO[s.op])
    site = Site(s.op, s.inputs, wide.types, wide.attrs, s.bb, args, two.relation(wide))
    return R.squeeze(s.emit(two.builder(site)), [places[-1]])


define("nn.conv1d", "data weight", _type, _build, "torch", *by_rank.conv(1),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=ALWAYS, **by_rank.conv_builder(1))  # fmt: skip
define("nn.conv1d_transpose", "data weight", _type, _build, "torch",
       *by_rank.conv_transpose(1),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=ALWAYS,
       **by_rank.conv_transpose_builder(1))  # fmt: skip
define("nn.max_pool1d", "data", _type, _build, "torch", *by_rank.max_pool(1),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=FOLLOW, **by_rank.pool_builder(1))  # fmt: skip
define("nn.avg_pool1d", "data", _type, _build, "torch", *by_rank.avg_pool(1),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=FOLLOW,
       **by_rank.pool_builder(1, average=True))  # fmt: skip
for _name, _precision, _what in (("max", FOLLOW, "maxima"), ("avg", NEVER, "means")):
    define(f"nn.adaptive_{_name}_pool1d", "data", _type, _build, "torch", *by_rank.adaptive_pool(1),
           kind=OUT_ELEMWISE_FUSABLE, level=10, precision=_precision,
           **by_rank.adaptive_pool_builder(1, _what))  # fmt: skip
