"""Operators of object detection: regions pooled, deformable convolution, YOLO's reorganization."""

from __future__ import annotations

from typing import Any

from tvm import relax, topi

from ...layouts import KERNEL, to_layout
from ...rules import out_size
from ..types import Dim, TensorType, Type
from . import by_rank
from .facts import INJECTIVE, OUT_ELEMWISE_FUSABLE, conv_roles, image_roles
from .relations import agree, divides, mapped
from .table import REQUIRED, Attr, Call, Site, define, in_float32, show
from .te import choice, count, known_size, program, rank, refuse_empty, tensor_program
from .windows import ends, per_axis

R = relax.op
_DEFORMABLE = {
    ("NCHW", "OIHW"): topi.nn.deformable_conv2d_nchw,
    ("NHWC", "HWIO"): topi.nn.deformable_conv2d_nhwc,
}


def _deformable_type(call: Call) -> Type:
    data, offset, weight, a = rank(call, 0, 4), rank(call, 1, 4), rank(call, 2, 4), call.attrs
    layouts = (a["data_layout"], a["kernel_layout"])
    if layouts not in _DEFORMABLE or a["out_layout"] not in ("", layouts[0]):
        call.fail(
            "data_layout and kernel_layout must be NCHW and OIHW, or NHWC and HWIO, and out_layout"
            f" as data's, got {layouts[0]!r}, {layouts[1]!r} and {a['out_layout']!r}"
        )
    dtype = call.same_dtype(0, 1, 2)
    n, c, h, w = (known_size(call, d) for d in to_layout(data.shape, layouts[0], "NCHW"))
    k, share, r, s = (known_size(call, d, 2) for d in to_layout(weight.shape, layouts[1], "OIHW"))
    groups, deformable = a["groups"], a["deformable_groups"]
    if groups < 1 or deformable < 1 or c % groups or k % groups or c % deformable:
        call.fail(
            f"groups={groups} must divide {c} and {k} channels, and deformable_groups={deformable}"
            f" {c}"
        )
    if share * groups != c:
        call.fail(f"the weight has {share} channels a group of {groups}, data has {c}")
    if a["channels"] not in (None, k) or tuple(a["kernel_size"] or (r, s)) != (r, s):
        call.fail(
            "shape of weight is inconsistent with channels or kernel_size, got"
            f" {a['channels']}, {a['kernel_size']} and {show(weight)}"
        )
    top, left, bottom, right = ends(call, 2)
    strides, dilation = per_axis(call, "strides", 2), per_axis(call, "dilation", 2)
    p = int(out_size(h, top + bottom, r, strides[0], dilation[0]))
    q = int(out_size(w, left + right, s, strides[1], dilation[1]))
    if min(p, q) < 1:
        call.fail(f"the window does not fit: {show(data)} and {show(weight)}")
    moved = to_layout((n, 2 * deformable * r * s, p, q), "NCHW", layouts[0])
    if not all(map(agree, offset.shape, moved)):
        call.fail(f"offset must be of {moved}, got {show(offset)}")
    return TensorType(to_layout((n, k, p, q), "NCHW", layouts[0]), a["out_dtype"] or dtype)


def _deformable(s: Site, data: Any, offset: Any, weight: Any) -> Any:
    a = s.attrs
    if a["groups"] != 1:
        s.fail(f"has no lowering with groups but 1, got groups={a['groups']}")
    return _DEFORMABLE[a["data_layout"], a["kernel_layout"]](
        data, offset, weight, list(per_axis(s, "strides", 2)), list(ends(s, 2)),
        list(per_axis(s, "dilation", 2)), a["deformable_groups"], a["groups"], s.tensor().dtype,
    )  # fmt: skip


def _regions_type(call: Call) -> Type:
    data, rois = rank(call, 0, 4), rank(call, 1, 2)
    layouts = ("NCHW", "NHWC") if "mode" in call.attrs else ("NCHW",)
    layout = choice(call, "layout", layouts)
    if "mode" in call.attrs:
        choice(call, "mode", ("avg", "max"))
    count(call, "pooled_size", 2)
    dtype = call.same_dtype(0, 1)
    if not agree(rois.shape[1], 5):
        call.fail(f"rois must be (n, 5), the image's index and its corners, got {show(rois)}")
    if not call.attrs["spatial_scale"] > 0:
        call.fail(f"spatial_scale must be positive, got {call.attrs['spatial_scale']}")
    channels = to_layout(data.shape, layout, "NCHW")[1]
    shape: tuple[Dim, ...] = (rois.shape[0], channels, *call.attrs["pooled_size"])
    return TensorType(to_layout(shape, "NCHW", layout), dtype)


_ALIGN = {"NCHW": topi.vision.roi_align_nchw, "NHWC": topi.vision.roi_align_nhwc}


def _regions(s: Site) -> Any:
    """A region of an image that is not there is one of the nearest that is."""
    refuse_empty(s)
    a, (data, rois) = s.attrs, s.args
    batch = known_size(s, s.tensor().shape[0])
    which = s.emit(R.strided_slice(rois, [1], [0], [1]))
    which = s.emit(R.maximum(which, s.const(0, 1)))
    which = s.emit(R.minimum(which, s.const(batch - 1, 1)))
    corners = s.emit(R.strided_slice(rois, [1], [1], [5]))
    rois = s.emit(R.concat([which, corners], 1))
    size, scale = list(a["pooled_size"]), a["spatial_scale"]

    def pool(s: Site, x: Any, boxes: Any) -> Any:
        if s.op == "vision.roi_pool":
            return topi.vision.roi_pool_nchw(x, boxes, size, scale)
        return _ALIGN[a["layout"]](x, boxes, size, scale, a["mode"], a["sample_ratio"])

    return program(s, pool, data, rois)


def _reorg_type(call: Call) -> Type:
    data, stride = rank(call, 0, 4), call.attrs["stride"]
    n, c, h, w = data.shape
    parts = ((stride * stride, c), (stride, h), (stride, w))
    if stride < 1 or not all(divides(part, size) for part, size in parts):
        call.fail(f"stride={stride} must divide height and width, its square {c} channels")
    high, wide = (mapped(size, lambda k: k // stride) for size in (h, w))
    return TensorType((n, mapped(c, lambda k: k * stride * stride), high, wide), data.dtype)


def _reorg(s: Site) -> Any:
    """As darknet reads it: the channels as an image `stride` times as high and wide."""
    stride = s.attrs["stride"]
    n, c, h, w = s.sizes(s.tensor())
    x = s.emit(R.reshape(s.args[0], [n, c // stride**2, h, stride, w, stride]))
    return R.reshape(s.emit(R.permute_dims(x, [0, 3, 5, 1, 2, 4])), s.sizes(s.out))


def _correlation_type(call: Call) -> Type:
    data, a = rank(call, 0, 4), call.attrs
    dtype = call.same_dtype(0, 1)
    call.must_be(1, data, "as data1")
    size, far, pads = a["kernel_size"], a["max_displacement"], ends(call, 2)
    if size < 1 or size % 2 != 1 or far < 0 or min(a["stride1"], a["stride2"]) < 1:
        call.fail(
            f"takes an odd kernel_size, a max_displacement from 0 and strides from 1, got {size},"
            f" {far}, {a['stride1']} and {a['stride2']}"
        )
    choice(call, "layout", ("NCHW",))
    border, steps = (size - 1) // 2 + far, 2 * (far // a["stride2"]) + 1
    made = []
    for i in range(2):
        whole = known_size(call, data.shape[2 + i]) + pads[i] + pads[2 + i]
        made.append((whole - 2 * border + a["stride1"] - 1) // a["stride1"])
    if min(made) < 1:
        call.fail(f"no patch fits: {show(data)}, kernel_size={size}, max_displacement={far}")
    return TensorType((data.shape[0], steps * steps, *made), dtype)


def _correlation(s: Site, one: Any, other: Any) -> Any:
    names = ("kernel_size", "max_displacement", "stride1", "stride2")
    values = [s.attrs[name] for name in names]
    return topi.nn.correlation_nchw(one, other, *values, list(ends(s, 2)), s.attrs["is_multiply"])


define("nn.correlation", "data1 data2", _correlation_type,
       in_float32(tensor_program(_correlation)), "numpy",
       *(Attr(name, default, kind, asked=REQUIRED) for name, default, kind in (
           ("kernel_size", 1, "int"), ("max_displacement", 1, "int"), ("stride1", 1, "int"),
           ("stride2", 1, "int"), ("padding", (0, 0), "sizes"), ("is_multiply", True, "bool"),
           ("layout", "NCHW", "str"),
       )),
       doc="How patches of one image fit those of another, beside each place within a "
           "distance.")  # fmt: skip
define("nn.deformable_conv2d", "data offset weight", _deformable_type,
       in_float32(tensor_program(_deformable)), "numpy", *by_rank.conv(2)[:3],
       Attr("deformable_groups", 1, "int"), *by_rank.conv(2)[3:],
       kind=OUT_ELEMWISE_FUSABLE, roles=conv_roles(KERNEL, "data_layout"), window=2,
       doc="A convolution that reads beside its window's places by `offset` (N, 2 D R S, P, Q): "
           "y, x.")  # fmt: skip
_POOLED = (Attr("pooled_size", REQUIRED, "sizes"), Attr("spatial_scale", REQUIRED, "float"))
define("vision.roi_align", "data rois", _regions_type, in_float32(_regions), "numpy", *_POOLED,
       Attr("sample_ratio", -1, "int"), Attr("layout", "NCHW", "str"), Attr("mode", "avg", "str"),
       kind=OUT_ELEMWISE_FUSABLE, roles=image_roles(follows=False, others=1),
       doc="Regions (n, 5), as (image, x1, y1, x2, y2), each interpolated and pooled to "
           "`pooled_size`.")  # fmt: skip
define("vision.roi_pool", "data rois", _regions_type, in_float32(_regions), "numpy", *_POOLED,
       Attr("layout", "NCHW", "str"),
       kind=OUT_ELEMWISE_FUSABLE,
       doc="As `roi_align`: the maxima of whole elements.")  # fmt: skip
define("vision.yolo_reorg", "data", _reorg_type, _reorg, "numpy",
       Attr("stride", 1, "int", asked=REQUIRED), kind=INJECTIVE,
       doc="Darknet's reorganization: an image `stride` times smaller with more "
           "channels.")  # fmt: skip
