"""Operators on images: resizing, cropping, sampling at points, morphological dilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax, topi

from ...layouts import is_permutation, to_layout
from ...ops.sampling import BORDERS, reflected, sample
from ...relation import Checks
from ...rules import out_size
from ..types import Dim, TensorType, Type
from .facts import FOLLOW, INJECTIVE, OUT_ELEMWISE_FUSABLE, image_roles
from .relations import agree, mapped
from .table import REQUIRED, Attr, Call, Relation, Site, define, in_float32, show
from .te import (
    choice,
    clipped,
    count,
    integer_indices,
    program,
    rank,
    refuse_empty,
    tensor_program,
)
from .windows import ends, per_axis

_METHODS = ("nearest_neighbor", "linear", "cubic")
_COORDINATES = (
    "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
_ROUNDING = ("", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
R = relax.op
_CANONICAL = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def _ordered(call: Call, canonical: str, field: str = "layout") -> str:
    layout = str(call.attrs[field])
    if not is_permutation(layout, canonical):
        call.fail(
            f"only supports input layouts that are convertible from {canonical}, got {layout!r}"
        )
    return layout


def _resize_type(axes: int) -> Relation:
    """The relation of a resize along so many axes."""
    canonical = _CANONICAL[axes]

    def relation(call: Call) -> Type:
        data, a = rank(call, 0, axes + 2), call.attrs
        layout = _ordered(call, canonical)
        count(call, "size", axes)
        if len(a["roi"] or ()) != 2 * axes:
            call.fail(f"roi must be {2 * axes} numbers, got {a['roi'] and list(a['roi'])}")
        choice(call, "method", _METHODS)
        mode = choice(call, "coordinate_transformation_mode", _COORDINATES)
        choice(call, "rounding_method", _ROUNDING)
        if a["cubic_exclude"] not in (0, 1):
            call.fail(f"cubic_exclude must be 0 or 1, got {a['cubic_exclude']}")
        if mode == "align_corners" and a["method"] == "cubic" and 1 in a["size"]:
            # TVM divides by size - 1.
            call.fail(f"align_corners needs sizes above 1, got size={list(a['size'])}")
        batch = to_layout(data.shape, layout, canonical)[:2]
        shape: tuple[Dim, ...] = (*batch, *a["size"])
        return TensorType(to_layout(shape, canonical, layout), a["out_dtype"] or data.dtype)

    return relation


_RESIZE = {1: topi.image.resize1d, 2: topi.image.resize2d, 3: topi.image.resize3d}


def _resize(s: Site, data: Any) -> Any:
    a = s.attrs
    if not all(isinstance(size, int) for size in a["size"]):
        s.fail(f"cannot be built with an unknown size, got {list(a['size'])}")
    return _RESIZE[len(a["size"])](
        data, list(a["roi"]), list(a["size"]), a["layout"], a["method"],
        a["coordinate_transformation_mode"], a["rounding_method"], a["cubic_alpha"],
        a["cubic_exclude"], a["extrapolation_value"], s.tensor().dtype,
    )  # fmt: skip


def _crop_type(call: Call) -> Type:
    data, boxes, which = rank(call, 0, 4), rank(call, 1, 2), rank(call, 2, 1)
    layout = choice(call, "layout", ("NCHW", "NHWC"))
    choice(call, "method", ("bilinear", "nearest_neighbor"))
    count(call, "crop_size", 2)
    integer_indices(call, 2)
    if not (agree(boxes.shape[1], 4) and agree(boxes.shape[0], which.shape[0])):
        call.fail(f"boxes must be (n, 4) and box_indices (n), got {show(boxes)} and {show(which)}")
    shape = list(to_layout(data.shape, layout, "NCHW"))
    shape = [boxes.shape[0], shape[1], *call.attrs["crop_size"]]
    out = to_layout(tuple(shape), "NCHW", layout)
    return TensorType(out, call.attrs["out_dtype"] or data.dtype)


def _crop(s: Site) -> Any:
    """A box of an image that is not there is cut from the nearest that is."""
    refuse_empty(s)
    a = s.attrs
    batch = to_layout(s.tensor().shape, a["layout"], "NCHW")[0]
    if not isinstance(batch, int):
        s.fail(f"cannot be built with an unknown batch, got {show(s.tensor())}")
    which, dtype = clipped(s, s.args[2], s.tensor(2).dtype, batch), s.result_type.dtype

    def cut(s: Site, data: Any, boxes: Any, which: Any) -> Any:
        return topi.image.crop_and_resize(
            data, boxes, which, list(a["crop_size"]), a["layout"], a["method"],
            a["extrapolation_value"], dtype,
        )  # fmt: skip

    return program(s, cut, s.args[0], s.args[1], which)


_DILATION = {
    ("NCHW", "IHW"): topi.image.dilation2d_nchw,
    ("NHWC", "HWI"): topi.image.dilation2d_nhwc,
}


def _both(call: Call, name: str) -> tuple[int, ...]:
    """Of height and width; TensorFlow's four, where all are one number."""
    values = call.attrs[name]
    if len(values) == 4 and len(set(values)) == 1:
        return per_axis(replace(call, attrs={**call.attrs, name: values[:2]}), name, 2)
    return per_axis(call, name, 2)


def _dilation_type(call: Call) -> Type:
    data, weight, a = rank(call, 0, 4), rank(call, 1, 3), call.attrs
    layouts = (a["data_layout"], a["kernel_layout"])
    if layouts not in _DILATION:
        call.fail(
            "data_layout and kernel_layout must be NCHW and IHW, or NHWC and HWI,"
            f" got {layouts[0]!r} and {layouts[1]!r}"
        )
    dtype = call.same_dtype(0, 1)
    n, c, *sizes = to_layout(data.shape, layouts[0], "NCHW")
    channels, *window = to_layout(weight.shape, layouts[1], "IHW")
    if not agree(c, channels):
        call.fail(f"weight must have data's channels, got {show(data)} and {show(weight)}")
    top, left, bottom, right = ends(call, 2)
    strides, dilations = _both(call, "strides"), _both(call, "dilations")
    out: list[Dim] = [n, c]
    for i, pad in enumerate((top + bottom, left + right)):
        extent = window[i]
        if not isinstance(extent, int):
            call.fail(f"weight must have known sizes, got {show(weight)}")
        reach = (extent - 1) * dilations[i] + 1
        size = sizes[i]
        if isinstance(size, int) and size + pad < reach:
            call.fail(f"the window of {reach} does not fit: size {size}, padding {pad} in all")
        out.append(mapped(size, lambda k, p=pad, r=reach, t=strides[i]: (k + p - r) // t + 1))  # type: ignore[misc]
    return TensorType(to_layout(tuple(out), "NCHW", layouts[0]), a["out_dtype"] or dtype)


def _dilated(s: Site) -> Any:
    layouts = s.attrs["data_layout"], s.attrs["kernel_layout"]
    top, left, bottom, right = ends(s, 2)
    strides, dilations = _both(s, "strides"), _both(s, "dilations")

    def fits(checks: Checks, _: Any, args: Sequence[Any]) -> None:
        data, weight = (checks.sizes(arg.ty.shape) for arg in args)
        sizes = to_layout(data, layouts[0], "NCHW")[2:]
        window = to_layout(weight, layouts[1], "IHW")[1:]
        for i, pad in enumerate((top + bottom, left + right)):
            made = out_size(sizes[i], pad, window[i], strides[i], dilations[i])
            why = f"{'HW'[i]}={sizes[i]}, window {window[i]}, padding {pad} in all"
            checks.positive("PQ"[i], made, why)

    s.compare(fits)
    return tensor_program(_dilation)(s)


def _dilation(s: Site, data: Any, weight: Any) -> Any:
    made = _DILATION[s.attrs["data_layout"], s.attrs["kernel_layout"]]
    args = (list(_both(s, "strides")), list(ends(s, 2)), list(_both(s, "dilations")))
    return made(data, weight, *args, s.tensor().dtype)


def _affine_type(call: Call) -> Type:
    data = rank(call, 0, 3)
    if not (agree(data.shape[1], 2) and agree(data.shape[2], 3)):
        call.fail(
            f"data should be an affine matrix with shape [batch_size, 2, 3], got {show(data)}"
        )
    count(call, "target_shape", 2)
    target = call.attrs["target_shape"]
    if 1 in target:
        call.fail(f"target_shape must have sizes above 1, got {list(target)}")
    return TensorType((data.shape[0], 2, *target), data.dtype)


def _sample_type(call: Call) -> Type:
    data, grid = rank(call, 0, 4, 5), call.tensor(1)
    axes = len(data.shape) - 2
    layout = choice(call, "layout", ("NCHW", "NCDHW"))
    if layout != _CANONICAL[axes]:
        call.fail(f"layout {layout} is not one of data's {axes + 2} axes: {show(data)}")
    methods = ("nearest", "bilinear", "bicubic")
    choice(call, "method", methods if axes == 2 else methods[:2])
    choice(call, "padding_mode", BORDERS)
    shape = grid.shape
    if len(shape) != axes + 2 or not (agree(shape[0], data.shape[0]) and agree(shape[1], axes)):
        call.fail(f"grid must be ({data.shape[0]}, {axes}, …), got {show(grid)}")
    return TensorType((*data.shape[:2], *shape[2:]), data.dtype)


def _sample(s: Site, data: Any, grid: Any) -> Any:
    a = s.attrs
    args = (a["method"], a["layout"], a["padding_mode"], a["align_corners"])
    return topi.image.grid_sample(data, grid, *args)


def _sampled(s: Site) -> Any:
    """With gradients, but of a cubic and of open sizes: linear by TOPI's kernel as upstream's
    operator, nearest composed, whose rows of channels are read in less time.

    TOPI reflects in each of a point's pixels' indices, whose code takes minutes to compile, or has
    no end: the points are reflected before, and stay at the edge.  A cubic's pixels are reflected
    one by one.
    """
    a, (data, grid), dtype = s.attrs, s.args, s.tensor().dtype
    known = all(isinstance(size, int) for i in (0, 1) for size in s.tensor(i).shape)
    differentiable = known and a["method"] != "bicubic" and dtype.startswith("float")
    if differentiable and s.tensor(1).dtype != dtype:
        grid = s.emit(R.astype(grid, dtype))
    border, corners = a["padding_mode"], a["align_corners"]
    if differentiable and a["method"] == "nearest":
        return sample(s.emit, data, grid, 1, border=border, corners=corners, mode="nearest")
    if border == "reflection" and a["method"] != "bicubic":
        border, grid = "border", reflected(s.emit, grid)
    elif border == "reflection" and not corners:
        s.fail("method=bicubic and padding_mode=reflection need align_corners=True")
    if differentiable:
        return R.image.grid_sample(data, grid, a["method"], a["layout"], border, corners)
    within = replace(s, attrs={**a, "padding_mode": border})
    return program(within, _sample, data, grid)


_OUT_DTYPE = Attr("out_dtype", None, "dtype")
for _axes, _layout in _CANONICAL.items():
    define(
        f"image.resize{_axes}d", "data", _resize_type(_axes), in_float32(tensor_program(_resize)),
        "numpy", Attr("size", None, "dims?", asked=REQUIRED), Attr("roi", None, "floats?"),
        Attr("layout", _layout, "str"), Attr("method", "linear", "str"),
        Attr("coordinate_transformation_mode", "half_pixel", "str"),
        Attr("rounding_method", "round", "str", asked=""), Attr("cubic_alpha", -0.5, "float"),
        Attr("cubic_exclude", 0, "int"), Attr("extrapolation_value", 0.0, "float"), _OUT_DTYPE,
        kind=INJECTIVE, level=5, precision=FOLLOW if _axes == 2 else None,
        roles=image_roles(follows=False) if _axes == 2 else None, absent={"roi": [0.0] * 2 * _axes},
        doc=f"Interpolation along {', '.join(_layout[2:])} to `size` elements.\n\n"
            "`method` is nearest_neighbor, linear or cubic; `coordinate_transformation_mode` is "
            "ONNX's;\n`roi`, (begin, end) of the axes, counts with \"tf_crop_and_resize\".",
    )  # fmt: skip
define("image.crop_and_resize", "data boxes box_indices", _crop_type, _crop, "numpy",
       Attr("crop_size", None, "sizes?", asked=REQUIRED),
       Attr("layout", "NCHW", "str", asked=REQUIRED),
       Attr("method", "bilinear", "str"), Attr("extrapolation_value", 0.0, "float"), _OUT_DTYPE,
       kind=INJECTIVE, level=5,
       doc="Boxes (n, 4), as (y1, x1, y2, x2) in parts of an image, each resized to "
           "`crop_size`.")  # fmt: skip
define("image.dilation2d", "data weight", _dilation_type, in_float32(_dilated),
       "numpy", Attr("strides", (1, 1), "sizes"), Attr("padding", (0, 0), "sizes"),
       Attr("dilations", (1, 1), "sizes"), Attr("data_layout", "NCHW", "str"),
       Attr("kernel_layout", "IHW", "str"), Attr("out_dtype", None, "dtype", asked=""),
       kind=OUT_ELEMWISE_FUSABLE, level=2,
       doc="The maximum over a window of data plus weight, for each channel.")  # fmt: skip
define("image.affine_grid", "data", _affine_type,
       in_float32(tensor_program(lambda s, x: topi.image.affine_grid(x, s.attrs["target_shape"]))),
       "torch", Attr("target_shape", REQUIRED, "sizes", asked=None),
       kind=INJECTIVE, level=5,
       doc="Affine maps (n, 2, 3) as the points (n, 2, H, W) from which `grid_sample` "
           "takes.")  # fmt: skip
define("image.grid_sample", "data grid", _sample_type, in_float32(_sampled),
       "torch", Attr("method", "bilinear", "str"), Attr("layout", "NCHW", "str"),
       Attr("padding_mode", "zeros", "str"), Attr("align_corners", True, "bool"),
       kind=INJECTIVE, level=5,
       doc="`data` at the points of `grid`, whose second axis is (x, y) or (x, y, z) in "
           "[-1, 1].")  # fmt: skip
