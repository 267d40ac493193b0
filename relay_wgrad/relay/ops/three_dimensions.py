"""Pools and upsampling of volumes.

A pool of volumes is one of images over H and W, whose channels are all (c, d), and then one over D:
a window's maximum is that of its slices' maxima, and its mean is theirs, whatever is counted, as
counts are products.  Means of integers would be rounded twice, so they are not made so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tvm import relax

from ...layouts import ACTIVATION, ACTIVATIONS, is_permutation, permutation, to_layout
from ...ops import size_rules
from ..dims import rounded_product
from ..types import Dim, TensorType, Type
from . import by_rank
from .facts import FOLLOW, INJECTIVE, NEVER, OUT_ELEMWISE_FUSABLE
from .pool import average
from .relations import mapped, product
from .table import REQUIRED, Attr, Call, Site, define, in_float32, lookup, show
from .te import choice, rank
from .windows import each, ends

R = relax.op
VOLUME = ACTIVATIONS[3]
POOLS = {
    f"nn.{name}3d": f"nn.{name}2d"
    for name in ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")
}
# What is D's in an attribute's list; the other axis of a pool over D stays.
_OF_AXES = ("pool_size", "strides", "dilation", "output_size")


class Parts(NamedTuple):
    """A pool of volumes as two of images; `order` takes data to NCDHW, `back` the result's."""

    order: tuple[int, ...]
    planes: Call  # (N, C D, H, W)
    columns: Call  # (N, C, D, P Q)
    result: tuple[Dim, ...]  # in NCDHW
    back: tuple[int, ...]


def parts_of(op: str, types: tuple[Type, ...], attrs: Mapping[str, Any]) -> Parts:
    """The two pools; ValueError where the pool is not one."""
    call = Call(op, ("data",), types, attrs)
    data, layout = rank(call, 0, 5), str(attrs["layout"])
    if not is_permutation(layout, VOLUME):
        call.fail(f"only support input layouts that are convertible from {VOLUME}, got {layout!r}")
    if attrs["out_layout"] not in ("", layout):
        call.fail(f"out_layout must be layout or empty, got {attrs['out_layout']!r}, {layout!r}")
    for name in _OF_AXES:
        if attrs.get(name) and len(attrs[name]) not in (1, 3):
            call.fail(f"{name} must be 1 or 3 integers, got {list(attrs[name])}")
    two = lookup(POOLS[op])
    n, c, d, h, w = to_layout(data.shape, layout, VOLUME)
    planes = _part(call, (n, product((c, d)), h, w), slice(1, 3))
    p, q = _shape(two.relation(planes))[2:]
    columns = _part(call, (n, c, d, product((p, q))), slice(0, 1))
    made = _shape(two.relation(columns))[2]
    back = permutation(VOLUME, layout)
    return Parts(permutation(layout, VOLUME), planes, columns, (n, c, made, p, q), back)


def _shape(ty: Type) -> tuple[Dim, ...]:
    assert isinstance(ty, TensorType)
    return ty.shape


def _part(call: Call, shape: tuple[Dim, ...], axes: slice) -> Call:
    attrs = {**call.attrs, "layout": ACTIVATION, "out_layout": ""}
    for name in _OF_AXES:
        if not attrs.get(name):
            continue
        values = list(each(call, name, 3)[axes])
        if len(values) == 1:
            values.append(_whole(call, shape[3]) if name == "output_size" else 1)
        attrs[name] = tuple(values)
    if "padding" in attrs:
        pads = ends(call, 3)
        before, after = list(pads[:3][axes]), list(pads[3:][axes])
        still = [0] * (2 - len(before))
        attrs["padding"] = (*before, *still, *after, *still)
    ty = TensorType(shape, call.tensor().dtype)
    return replace(call, types=(ty,), attrs=attrs)


def _whole(call: Call, size: Dim) -> int:
    if not isinstance(size, int):
        call.fail(f"needs a known height and width, got {show(call.tensor())}")
    return size


def _pool_type(call: Call) -> Type:
    parts = parts_of(call.op, call.types, call.attrs)
    shape = tuple(parts.result[axis] for axis in parts.back)
    return TensorType(shape, call.tensor().dtype)


def _pool(s: Site) -> Any:
    s.compare(size_rules.adapted if "adaptive" in s.op else size_rules.pooled)
    parts, two = parts_of(s.op, s.types, s.attrs), lookup(POOLS[s.op])
    x = s.emit(R.permute_dims(s.args[0], list(parts.order)))
    for part in (parts.planes, parts.columns):
        x = s.emit(s.reshape(x, part.tensor().shape))
        site = Site(s.op, s.inputs, part.types, part.attrs, s.bb, (x,), two.relation(part))
        x = s.emit(two.builder(site))
    x = s.emit(s.reshape(x, parts.result))
    return R.permute_dims(x, list(parts.back))


def _mean(s: Site) -> Any:
    if s.tensor().dtype.startswith(("float", "bfloat")):
        return in_float32(_pool)(s)
    if s.op != "nn.avg_pool3d":
        s.fail(f"means of integers are not there, got {show(s.tensor())}")
    a = s.attrs
    sizes = (each(s, "pool_size", 3), each(s, "strides", 3), ends(s, 3), each(s, "dilation", 3))
    rest = (a["ceil_mode"], a["count_include_pad"], a["layout"])
    return average(s, lambda x: R.nn.avg_pool3d(x, *sizes, *rest))


_SCALES = ("scale_d", "scale_h", "scale_w")
_METHODS = {"nearest_neighbor": "nearest_neighbor", "trilinear": "linear"}


def _upsampling_type(call: Call) -> Type:
    data, a = rank(call, 0, 5), call.attrs
    layout = str(a["layout"])
    choice(call, "method", tuple(_METHODS))
    choice(call, "coordinate_transformation_mode", ("half_pixel", "align_corners", "asymmetric"))
    if not is_permutation(layout, VOLUME):
        call.fail(f"only support input layouts that are convertible from {VOLUME}, got {layout!r}")
    n, c, *sizes = to_layout(data.shape, layout, VOLUME)
    for i, name in enumerate(_SCALES):
        if not 0 < a[name] < float("inf"):
            call.fail(f"{name} must be positive and finite, got {a[name]}")
        sizes[i] = mapped(sizes[i], lambda size, f=a[name]: rounded_product(size, f))  # type: ignore[misc]
    return TensorType(to_layout((n, c, *sizes), VOLUME, layout), data.dtype)


def as_resize(call: Call, out: Type) -> dict[str, Any]:
    """The attributes of `image.resize3d` that does the same."""
    a, layout = call.attrs, str(call.attrs["layout"])
    sizes = to_layout(_shape(out), layout, VOLUME)[2:]
    if not all(isinstance(size, int) for size in sizes):
        call.fail(f"cannot be built with unknown sizes, got {show(call.tensor())}")
    return lookup("image.resize3d").read({
        "size": sizes, "roi": (0.0,) * 6, "layout": layout, "method": _METHODS[a["method"]],
        "coordinate_transformation_mode": a["coordinate_transformation_mode"],
        "rounding_method": "",
    })  # fmt: skip


def _upsampling(s: Site) -> Any:
    attrs = as_resize(s, s.out)
    return lookup("image.resize3d").builder(replace(s, attrs=attrs))


define("nn.max_pool3d", "data", _pool_type, _pool, "torch", *by_rank.max_pool(3),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=FOLLOW, **by_rank.pool_builder(3))  # fmt: skip
define("nn.avg_pool3d", "data", _pool_type, _mean, "torch", *by_rank.avg_pool(3),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=FOLLOW,
       **by_rank.pool_builder(3, average=True))  # fmt: skip
define("nn.adaptive_max_pool3d", "data", _pool_type, _pool, "torch", *by_rank.adaptive_pool(3),
       kind=OUT_ELEMWISE_FUSABLE, level=10, precision=FOLLOW,
       **by_rank.adaptive_pool_builder(3, "maxima"))  # fmt: skip
define("nn.adaptive_avg_pool3d", "data", _pool_type, _mean, "torch", *by_rank.adaptive_pool(3),
       kind=OUT_ELEMWISE_FUSABLE, level=10, precision=NEVER,
       **by_rank.adaptive_pool_builder(3, "means"))  # fmt: skip
define("nn.upsampling3d", "data", _upsampling_type, _upsampling, "torch",
       *(Attr(name, REQUIRED, "float") for name in _SCALES), Attr("layout", VOLUME, "str"),
       Attr("method", "nearest_neighbor", "str"),
       Attr("coordinate_transformation_mode", "half_pixel", "str"),
       kind=INJECTIVE, level=2,
       signature="data, scale_d=1, scale_h=1, scale_w=1, layout='NCDHW', "
                 "method='nearest_neighbor', coordinate_transformation_mode='half_pixel'",
       doc="Depth, height and width times a factor; `method` is nearest_neighbor or "
           "trilinear.")  # fmt: skip
