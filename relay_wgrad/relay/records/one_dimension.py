"""A line as an image with a height of 1: so operators of one dimension are those of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import relax

from ...ops.size_rules import Rule
from ..types import TensorType, Type
from .table import Builder, Call, Relation, Site, show

R = relax.op
# What an attribute is along the height; None leaves it to the image.
_HEIGHT = {"strides": 1, "dilation": 1, "kernel_size": 1, "pool_size": 1, "output_size": 1,
           "output_padding": 0}  # fmt: skip


def in_image(attrs: Mapping[str, Any]) -> dict[str, Any]:
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


def heights(attrs: Mapping[str, Any]) -> list[int]:
    """Where the height is put, in each argument and, last, in the result."""
    data = attrs.get("data_layout") or attrs["layout"]
    kernel = [attrs["kernel_layout"]] if "kernel_layout" in attrs else []
    return [layout.index("W") for layout in (data, *kernel, attrs["out_layout"] or data)]


def _image(call: Call) -> Call:
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
    for index, axis in zip(range(len(call.types)), heights(a), strict=False):
        ty = call.tensor(index)
        if len(ty.shape) != 3:
            call.fail(f"{call.inputs[index]} must have 3 axes, got {show(ty)}")
        types.append(replace(ty, shape=(*ty.shape[:axis], 1, *ty.shape[axis:])))
    return Call(call.op, call.inputs, tuple(types), in_image(a))


def of_rank(
    rank: int, relation: Relation, builder: Builder, sizes: Rule
) -> tuple[Relation, Builder]:
    """An operator's relation and builder, of images, as they are, or of lines.

    sizes : what a line's sizes must be, of `ops.size_rules`.
    """

    def of_lines(call: Call) -> Type:
        made = relation(_image(call))
        assert isinstance(made, TensorType)
        axis = heights(call.attrs)[-1]
        return replace(made, shape=made.shape[:axis] + made.shape[axis + 1 :])

    def build(s: Site) -> Any:
        s.compare(sizes)
        image, places = _image(s), heights(s.attrs)
        args = tuple(
            s.emit(R.expand_dims(x, axis)) for x, axis in zip(s.args, places, strict=False)
        )
        site = Site(s.op, s.inputs, image.types, image.attrs, s.bb, args, relation(image))
        return R.squeeze(s.emit(builder(site)), [places[-1]])

    return (of_lines, build) if rank == 1 else (relation, builder)
