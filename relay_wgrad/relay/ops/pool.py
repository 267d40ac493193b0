"""Pooling and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..types import TensorType, Type
from . import by_rank
from .blocks import on_whole_axes
from .facts import FOLLOW, NEVER, OUT_ELEMWISE_FUSABLE
from .relations import agree
from .table import Call, Site, define, in_float32, show
from .windows import padding, pair, pooled, spatial_axes

R = relax.op


def _no_out_layout(call: Call) -> None:
    a = call.attrs
    if a["out_layout"] not in ("", a["layout"]):
        call.fail(f"out_layout must be layout or empty, got {a['out_layout']!r}, {a['layout']!r}")


def _dilation(call: Call) -> tuple[int, int]:
    """Relay's own gradients leave the list empty."""
    if call.op.endswith("_grad"):
        if any(d != 1 for d in call.attrs["dilation"]):
            call.fail(f"dilation must be 1, got {list(call.attrs['dilation'])}")
        return (1, 1)
    return pair(call, "dilation")


def _made(call: Call, data: TensorType) -> TensorType:
    """The type of the pool of data."""
    a = call.attrs
    _no_out_layout(call)
    top, left, bottom, right = padding(call)
    window, strides, dilation = pair(call, "pool_size"), pair(call, "strides"), _dilation(call)
    shape = list(data.shape)
    axes = spatial_axes(call, a["layout"])
    for i, (axis, pad) in enumerate(zip(axes, (top + bottom, left + right), strict=True)):
        shape[axis] = pooled(
            call, shape[axis], pad, window[i], strides[i], dilation[i], a["ceil_mode"]
        )
    return TensorType(tuple(shape), data.dtype)


def _pool_type(call: Call) -> Type:
    return _made(call, call.tensor())


def _grad_type(call: Call) -> Type:
    """(gradient, data) -> data's type."""
    grad, data = call.tensor(0), call.tensor(1)
    call.same_dtype(0, 1)
    if len(grad.shape) != len(data.shape):
        call.fail(f"{show(grad)} and {show(data)} must have the same rank")
    made = _made(call, data)
    if not all(map(agree, grad.shape, made.shape)):
        call.fail(f"grad must be as large as the pool of data, {show(made)}, got {show(grad)}")
    return data


def _window(s: Site) -> dict[str, Any]:
    a = s.attrs
    out = {
        "pool_size": pair(s, "pool_size"), "strides": pair(s, "strides"), "padding": padding(s),
        "dilation": _dilation(s), "ceil_mode": a["ceil_mode"], "layout": a["layout"],
    }  # fmt: skip
    if "count_include_pad" in a:
        out["count_include_pad"] = a["count_include_pad"]
    return out


def average(s: Site, pool: Callable[[Any], Any]) -> Any:
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


def _targets(call: Call) -> tuple[Any, Any]:
    """The size asked for, None where it is the input's."""
    size = call.attrs["output_size"] or ()
    if len(size) > 2:
        call.fail(f"output_size can have up to 2 elements, got {list(size)}")
    if any(n < 1 for n in size):
        call.fail(f"output_size must be positive, got {list(size)}")
    return (size[0], size[-1]) if size else (None, None)


def _adaptive_type(call: Call) -> Type:
    _no_out_layout(call)
    axes, data = spatial_axes(call, call.attrs["layout"]), call.tensor()
    shape = list(data.shape)
    for axis, size in zip(axes, _targets(call), strict=True):
        shape[axis] = shape[axis] if size is None else size
    return TensorType(tuple(shape), data.dtype)


def _adaptive(s: Site, size: tuple[Any, Any], maximum: bool) -> Any:
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
    if s.tensor().dtype.startswith(("float", "bfloat")):
        return in_float32(lambda s: _adaptive(s, _targets(s), maximum=False))(s)
    layout, dims = s.attrs["layout"], s.tensor().shape
    steps = []
    for axis, size in zip(spatial_axes(s, layout), _targets(s), strict=True):
        whole = dims[axis]
        if not isinstance(whole, int) or whole % (size or whole):
            s.fail(f"means of integers need windows of one size, got {show(s.tensor())}")
        steps.append(whole // (size or whole))
    window = {"pool_size": tuple(steps), "strides": tuple(steps), "layout": layout}
    return average(s, lambda x: R.nn.avg_pool2d(x, **window))


_WINDOWS = 2000  # of unequal size along an axis, each an operator or more

define("nn.max_pool2d", "data", _pool_type,
       on_whole_axes(lambda s: R.nn.max_pool2d(s.args[0], **_window(s))), "torch",
       *by_rank.max_pool(2),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=FOLLOW, **by_rank.pool_builder(2))  # fmt: skip
define("nn.avg_pool2d", "data", _pool_type,
       on_whole_axes(lambda s: average(s, lambda x: R.nn.avg_pool2d(x, **_window(s)))), "torch",
       *by_rank.avg_pool(2),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=FOLLOW,
       **by_rank.pool_builder(2, average=True))  # fmt: skip
define("nn.max_pool2d_grad", "out_grad data", _grad_type,
       on_whole_axes(lambda s: R.grad.max_pool2d_backward(*s.args, **_window(s))), "torch",
       *by_rank.max_pool(2),
       kind=OUT_ELEMWISE_FUSABLE, level=2)  # fmt: skip
# Relay registered the average's gradient with the maximum's attributes, so its text prints them
# as metadata.
define("nn.avg_pool2d_grad", "out_grad data", _grad_type,
       on_whole_axes(lambda s: R.grad.avg_pool2d_backward(*s.args, **_window(s))), "torch",
       *by_rank.avg_pool(2), meta="relay.attrs.AvgPool2DAttrs",
       kind=OUT_ELEMWISE_FUSABLE, level=2)  # fmt: skip
define("nn.global_avg_pool2d", "data", _global_type, _global_avg, "relay", *by_rank.layouts(2),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=NEVER,
       doc="The mean over height and width, which become 1.")  # fmt: skip
define("nn.global_max_pool2d", "data", _global_type, on_whole_axes(_global_max), "torch",
       *by_rank.layouts(2),
       kind=OUT_ELEMWISE_FUSABLE, level=2, precision=FOLLOW,
       doc="The maximum over height and width, which become 1.")  # fmt: skip
define("nn.adaptive_avg_pool2d", "data", _adaptive_type,
       on_whole_axes(_adaptive_mean), "torch", *by_rank.adaptive_pool(2),
       kind=OUT_ELEMWISE_FUSABLE, level=10, precision=NEVER,
       **by_rank.adaptive_pool_builder(2, "means"))  # fmt: skip
define("nn.adaptive_max_pool2d", "data", _adaptive_type,
       on_whole_axes(lambda s: _adaptive(s, _targets(s), maximum=True)), "torch",
       *by_rank.adaptive_pool(2),
       kind=OUT_ELEMWISE_FUSABLE, level=10, precision=FOLLOW,
       **by_rank.adaptive_pool_builder(2, "maxima"))  # fmt: skip
