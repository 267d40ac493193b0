"""Pooling of lines, images and volumes, and its gradients.

A pool of volumes is one of images over H and W, whose channels are all (c, d), and then one over D:
a window's maximum is that of its slices' maxima, and its mean is theirs, whatever is counted, as
counts are products.  Means of integers would be rounded twice, so they are not made so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tvm import relax

from ...layouts import ACTIVATION, ACTIVATIONS, permutation, to_layout
from ...ops import size_rules
from ...ops.size_rules import Rule
from ..types import Dim, TensorType, Type
from . import by_rank, one_dimension
from .blocked_layouts import on_whole_axes
from .facts import FOLLOW, NEVER, OUT_ELEMWISE_FUSABLE, image_roles
from .relations import agree, product
from .table import Builder, Call, Site, define, in_float32, show
from .windows import ends, per_axis, pooled, rank_of, spatial_axes

R = relax.op


def _no_out_layout(call: Call) -> None:
    a = call.attrs
    if a["out_layout"] not in ("", a["layout"]):
        call.fail(f"out_layout must be layout or empty, got {a['out_layout']!r}, {a['layout']!r}")


def _dilation(call: Call, rank: int = 2) -> tuple[int, ...]:
    """Relay's own gradients leave the list empty."""
    if call.op.endswith("_grad"):
        if any(d != 1 for d in call.attrs["dilation"]):
            call.fail(f"dilation must be 1, got {list(call.attrs['dilation'])}")
        return (1,) * rank
    return per_axis(call, "dilation", rank)


def _result_type(call: Call, data: TensorType) -> TensorType:
    """The type of the pool of data."""
    a, rank = call.attrs, rank_of(call.op)
    _no_out_layout(call)
    pads, window, strides = (
        ends(call, rank),
        per_axis(call, "pool_size", rank),
        per_axis(call, "strides", rank),
    )
    dilation, shape = _dilation(call, rank), list(data.shape)
    for i, axis in enumerate(spatial_axes(call, a["layout"], rank)):
        pad = pads[i] + pads[rank + i]
        shape[axis] = pooled(
            call, shape[axis], pad, window[i], strides[i], dilation[i], a["ceil_mode"]
        )
    return TensorType(tuple(shape), data.dtype)


def _pool_type(call: Call) -> Type:
    return _result_type(call, call.tensor())


def _grad_type(call: Call) -> Type:
    """(gradient, data) -> data's type."""
    grad, data = call.tensor(0), call.tensor(1)
    call.same_dtype(0, 1)
    if len(grad.shape) != len(data.shape):
        call.fail(f"{show(grad)} and {show(data)} must have the same rank")
    made = _result_type(call, data)
    if not all(map(agree, grad.shape, made.shape)):
        call.fail(f"grad must be as large as the pool of data, {show(made)}, got {show(grad)}")
    return data


def _window(s: Site) -> dict[str, Any]:
    a = s.attrs
    out = {
        "pool_size": per_axis(s, "pool_size", 2), "strides": per_axis(s, "strides", 2),
        "padding": ends(s, 2), "dilation": _dilation(s), "ceil_mode": a["ceil_mode"],
        "layout": a["layout"],
    }  # fmt: skip
    if "count_include_pad" in a:
        out["count_include_pad"] = a["count_include_pad"]
    return out


def _average(s: Site, pool: Callable[[Any], Any]) -> Any:
    """`pool` of the argument: integers as int64, which is what TVM's kernel makes of any."""
    x, dtype = s.args[0], s.tensor().dtype
    if not dtype.startswith(("int", "uint")):
        return pool(x)
    return R.astype(s.emit(pool(s.emit(R.astype(x, "int64")))), dtype)


def _global_type(call: Call) -> Type:
    _no_out_layout(call)
    axes, data = spatial_axes(call, call.attrs["layout"]), call.tensor()
    return TensorType(tuple(1 if i in axes else d for i, d in enumerate(data.shape)), data.dtype)


def _global_avg(s: Site) -> Any:
    return R.mean(s.args[0], list(spatial_axes(s, s.attrs["layout"])), True)


def _global_max(s: Site) -> Any:
    axes = spatial_axes(s, s.attrs["layout"])
    if all(isinstance(s.tensor().shape[axis], int) for axis in axes):
        return _adaptive(s, (1, 1), maximum=True)
    return R.max(s.args[0], list(axes), True)


def _targets(call: Call, rank: int = 2) -> tuple[Any, ...]:
    """The size asked for, None where it is the input's."""
    size = call.attrs["output_size"] or ()
    if len(size) not in (0, 1, rank):
        call.fail(f"output_size must be 1 or {rank} integers, got {list(size)}")
    if any(n < 1 for n in size):
        call.fail(f"output_size must be positive, got {list(size)}")
    return (tuple(size) or (None,)) * (rank if len(size) < rank else 1)


def _adaptive_type(call: Call) -> Type:
    _no_out_layout(call)
    rank, data = rank_of(call.op), call.tensor()
    axes, shape = spatial_axes(call, call.attrs["layout"], rank), list(data.shape)
    for axis, size in zip(axes, _targets(call, rank), strict=True):
        shape[axis] = shape[axis] if size is None else size
    return TensorType(tuple(shape), data.dtype)


def _adaptive(s: Site, size: tuple[Any, ...], maximum: bool) -> Any:
    """One after the other along H and W: windows [floor(i*n/m), ceil((i+1)*n/m))."""
    x, layout = s.args[0], s.attrs["layout"]
    axes, shape = spatial_axes(s, layout), s.tensor().shape
    if not maximum and size == (1, 1):
        return R.mean(x, list(axes), True)
    if not all(isinstance(shape[axis], int) for axis in axes):
        s.fail(f"cannot be built with an unknown height or width, got {show(s.tensor())}")
    whole = [int(shape[axis]) for axis in axes]  # type: ignore[arg-type]
    out = [n if m is None else m for n, m in zip(whole, size, strict=True)]
    steps = [n // m if n % m == 0 else 0 for n, m in zip(whole, out, strict=True)]
    pool = R.nn.max_pool2d if maximum else R.nn.avg_pool2d
    if all(steps) and len(layout) == 4:
        return pool(x, pool_size=tuple(steps), strides=tuple(steps), layout=layout)
    if max(m + (n if maximum else 0) for n, m in zip(whole, out, strict=True)) > _WINDOWS:
        s.fail(f"at most {_WINDOWS} windows are written out, got {out} of {show(s.tensor())}")
    for axis, n, m in zip(axes, whole, out, strict=True):
        if n == m:
            continue
        parts = []
        for i in range(m):
            begin, end = i * n // m, -(-(i + 1) * n // m)
            part = s.emit(R.strided_slice(x, [axis], [begin], [end]))
            parts.append(s.emit(_folded(s, part, axis, end - begin, maximum)))
        x = s.emit(R.concat(parts, axis)) if m > 1 else parts[0]
    return x


def _folded(s: Site, part: Any, axis: int, count: int, maximum: bool) -> Any:
    """The mean or the maximum along an axis, which stays; pairwise where max has no gradient."""
    if not maximum:
        return R.mean(part, [axis], True)
    slices = [s.emit(R.strided_slice(part, [axis], [i], [i + 1])) for i in range(count)]
    best = slices[0]
    for other in slices[1:]:
        best = s.emit(R.maximum(best, other))
    return best


def _adaptive_mean(s: Site) -> Any:
    """Of integers only in windows of one size: parts that are rounded have another mean."""
    if s.tensor().is_float:
        return in_float32(lambda s: _adaptive(s, _targets(s), maximum=False))(s)
    layout, dims = s.attrs["layout"], s.tensor().shape
    steps = []
    for axis, size in zip(spatial_axes(s, layout), _targets(s), strict=True):
        whole = dims[axis]
        if not isinstance(whole, int) or whole % (size or whole):
            s.fail(f"means of integers need windows of one size, got {show(s.tensor())}")
        steps.append(whole // (size or whole))
    window = {"pool_size": tuple(steps), "strides": tuple(steps), "layout": layout}
    return _average(s, lambda x: R.nn.avg_pool2d(x, **window))


_WINDOWS = 2000  # of unequal size along an axis, each an operator or more

# ---- volumes -------------------------------------------------------------------------------------

# What is D's in an attribute's list; the other axis of a pool over D stays.
_OF_AXES = ("pool_size", "strides", "dilation", "output_size")


class Parts(NamedTuple):
    """A pool of volumes as two of images; `order` takes data to NCDHW, `back` the result's."""

    order: tuple[int, ...]
    planes: Call  # (N, C D, H, W)
    planes_made: TensorType  # (N, C D, P, Q)
    columns: Call  # (N, C, D, P Q)
    columns_made: TensorType  # (N, C, Z, P Q)
    result: tuple[Dim, ...]  # in NCDHW
    back: tuple[int, ...]


def parts_of(call: Call, made: Type) -> Parts:
    """The two pools, of a pool of volumes and its result's type."""
    data, layout, volume = call.tensor(), str(call.attrs["layout"]), ACTIVATIONS[3]
    assert isinstance(made, TensorType)
    n, c, d, h, w = to_layout(data.shape, layout, volume)
    result = to_layout(made.shape, layout, volume)
    z, p, q = result[2:]

    def typed(*shape: Dim) -> TensorType:
        return TensorType(shape, data.dtype)

    slices, pixels = product((c, d)), product((p, q))
    planes = _part(call, typed(n, slices, h, w), slice(1, 3))
    columns = _part(call, typed(n, c, d, pixels), slice(0, 1))
    planes_made, columns_made = typed(n, slices, p, q), typed(n, c, z, pixels)
    order, back = permutation(layout, volume), permutation(volume, layout)
    return Parts(order, planes, planes_made, columns, columns_made, result, back)


def _part(call: Call, ty: TensorType, axes: slice) -> Call:
    attrs = {**call.attrs, "layout": ACTIVATION, "out_layout": ""}
    for name in _OF_AXES:
        if attrs.get(name):
            values = per_axis(call, name, 3)[axes]
            other = ty.shape[3] if name == "output_size" else 1
            attrs[name] = (*values, other)[:2]
    if "padding" in attrs:
        pads = ends(call, 3)
        before, after = (*pads[:3][axes], 0), (*pads[3:][axes], 0)
        attrs["padding"] = (*before[:2], *after[:2])
    return Call(call.op, call.inputs, (ty,), attrs)


def _of_volumes(image: Builder, sizes: Rule) -> Builder:
    """A pool of volumes by that of images."""

    def build(s: Site) -> Any:
        s.compare(sizes)
        parts = parts_of(s, s.out)
        x = s.emit(R.permute_dims(s.args[0], list(parts.order)))
        for part, made in (
            (parts.planes, parts.planes_made), (parts.columns, parts.columns_made)
        ):  # fmt: skip
            x = s.emit(s.reshape(x, part.tensor().shape))
            x = s.emit(image(replace(s, types=part.types, attrs=part.attrs, args=(x,), out=made)))
        x = s.emit(s.reshape(x, parts.result))
        return R.permute_dims(x, list(parts.back))

    return build


def _means_of_volumes(image: Builder, sizes: Rule) -> Builder:
    build = in_float32(_of_volumes(image, sizes))

    def means(s: Site) -> Any:
        if s.tensor().is_float:
            return build(s)
        a = s.attrs
        if "pool_size" not in a:
            s.fail(f"means of integers are not there, got {show(s.tensor())}")
        window = (
            per_axis(s, "pool_size", 3), per_axis(s, "strides", 3), ends(s, 3),
            per_axis(s, "dilation", 3), a["ceil_mode"], a["count_include_pad"], a["layout"],
        )  # fmt: skip
        return _average(s, lambda x: R.nn.avg_pool3d(x, *window))

    return means


# ---- records -------------------------------------------------------------------------------------

_maxima = on_whole_axes(lambda s: R.nn.max_pool2d(s.args[0], **_window(s)))
_means = on_whole_axes(lambda s: _average(s, lambda x: R.nn.avg_pool2d(x, **_window(s))))
_adaptive_maxima = on_whole_axes(lambda s: _adaptive(s, _targets(s), maximum=True))
_adaptive_means = on_whole_axes(_adaptive_mean)
_FACTS: dict[str, Any] = {"kind": OUT_ELEMWISE_FUSABLE, "level": 2}
for _rank in (1, 2, 3):
    for _name, _type, _image, _sizes, _attrs, _facts in (
        ("max", _pool_type, _maxima, size_rules.pooled, by_rank.max_pool,
         {"precision": FOLLOW, "window": _rank, "doc": "The maximum of each window."}),
        ("avg", _pool_type, _means, size_rules.pooled, by_rank.avg_pool,
         {"precision": FOLLOW, "window": _rank, "doc":
          "The mean of each window; `count_include_pad` counts the padding's zeros."}),
        ("adaptive_max", _adaptive_type, _adaptive_maxima, size_rules.adapted,
         by_rank.adaptive_pool,
         {"level": 10, "precision": FOLLOW, **by_rank.adaptive_pool_builder(_rank, "maxima")}),
        ("adaptive_avg", _adaptive_type, _adaptive_means, size_rules.adapted,
         by_rank.adaptive_pool,
         {"level": 10, "precision": NEVER, **by_rank.adaptive_pool_builder(_rank, "means")}),
    ):  # fmt: skip
        if _rank == 3:
            _image = (_means_of_volumes if _name.endswith("avg") else _of_volumes)(_image, _sizes)
        define(f"nn.{_name}_pool{_rank}d", "data",
               *one_dimension.of_rank(_rank, _type, _image, _sizes), "torch",
               *_attrs(_rank), roles=image_roles() if _rank == 2 else None,
               **_FACTS | _facts)  # fmt: skip
define("nn.max_pool2d_grad", "out_grad data", _grad_type,
       on_whole_axes(lambda s: R.grad.max_pool2d_backward(*s.args, **_window(s))), "torch",
       *by_rank.max_pool(2), roles=image_roles(2),
       **_FACTS, **by_rank.pool_grad_builder())  # fmt: skip
# Relay registered the average's gradient with the maximum's attributes, so its text prints them
# as metadata.
define("nn.avg_pool2d_grad", "out_grad data", _grad_type,
       on_whole_axes(lambda s: R.grad.avg_pool2d_backward(*s.args, **_window(s))), "torch",
       *by_rank.avg_pool(2), meta="relay.attrs.AvgPool2DAttrs", roles=image_roles(2),
       **_FACTS, **by_rank.pool_grad_builder(average=True))  # fmt: skip
define("nn.global_avg_pool2d", "data", _global_type, _global_avg, "relay", *by_rank.layouts(2),
       **_FACTS, precision=NEVER, roles=image_roles(),
       doc="The mean over height and width, which become 1.")  # fmt: skip
define("nn.global_max_pool2d", "data", _global_type, on_whole_axes(_global_max), "torch",
       *by_rank.layouts(2), **_FACTS, precision=FOLLOW, roles=image_roles(),
       doc="The maximum over height and width, which become 1.")  # fmt: skip
