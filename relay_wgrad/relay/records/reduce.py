"""Reductions.  No axes, or an empty list of them, means all axes, `exclude` or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from tvm import relax

from ...ops import size_rules
from ..types import ANY, TensorType, Type
from .facts import COMM_REDUCE, FOLLOW, NEVER
from .relations import agree, broadcast, product
from .table import Attr, Builder, Call, Site, define, in_float32, show, show_shape

R = relax.op

AXES = (
    Attr("axis", None, "sizes?"),
    Attr("keepdims", False, "bool"),
    Attr("exclude", False, "bool"),
)
ARG_AXES = (*AXES[:2], Attr("select_last_index", False, "bool"), AXES[2])


def reduced_axes(call: Call) -> list[int]:
    """The axes that go, in ascending order."""
    ndim = len(call.tensor().shape)
    given = call.attrs["axis"]
    if not given:
        return list(range(ndim))
    for axis in given:
        if not -ndim <= axis < ndim:
            call.fail(f"Axis out of bounds in reduce operator: axis={axis}, ndim={ndim}")
    axes = {axis % ndim for axis in given}
    if len(axes) != len(given):
        call.fail(f"axis must name each axis once, got {list(given)} of {ndim} axes")
    return [i for i in range(ndim) if (i in axes) != call.attrs["exclude"]]


def _shape(call: Call) -> tuple[Any, ...]:
    axes, shape = reduced_axes(call), call.tensor().shape
    if call.attrs["keepdims"]:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _type(call: Call) -> Type:
    return TensorType(_shape(call), call.tensor().dtype)


def _bool_type(call: Call) -> Type:
    if call.tensor().dtype != "bool":
        call.fail(f"data must be bool, got {show(call.tensor())}")
    return _type(call)


def _arg_type(call: Call) -> Type:
    """Indices have the dtype of sizes in Relay's text, int32."""
    if not call.tensor().shape:
        call.fail("data must have at least one axis, got a scalar")
    return TensorType(_shape(call), "int32")


def _variance_type(call: Call) -> Type:
    data, mean = call.tensor(0), call.tensor(1)
    if len(data.shape) != len(mean.shape) or not data.shape:
        call.fail(f"data and mean must have the same rank, got {show(data)} and {show(mean)}")
    whole = broadcast(call, data, mean, data.dtype)
    if not all(agree(a, b) for a, b in zip(whole.shape, data.shape, strict=True)):
        call.fail(f"mean must broadcast to data, got {show(mean)} and {show(data)}")
    call.same_dtype(0, 1)
    return _type(call)


def _reduce(function: Callable[..., Any]) -> Builder:
    def build(s: Site) -> Any:
        axes = reduced_axes(s)
        return function(s.args[0], axes, s.attrs["keepdims"]) if axes else s.args[0]

    return build


def _extremum(function: Callable[..., Any]) -> Builder:
    def build(s: Site) -> Any:
        _some(s)
        return _reduce(function)(s)

    return build


def _some(s: Site) -> None:
    """An element to choose."""
    given = replace(s, attrs={**s.attrs, "axis": reduced_axes(s)})
    given.compare(size_rules.check_chosen)


def _all(s: Site) -> Any:
    """The product of 0 and 1, which is 1 of nothing."""
    axes = reduced_axes(s)
    if not axes:
        return s.args[0]
    number = s.emit(R.astype(s.args[0], "int8"))
    return R.astype(s.emit(R.prod(number, axes, s.attrs["keepdims"])), "bool")


def _any(s: Site) -> Any:
    """What is not false of all."""
    none = s.emit(R.logical_not(s.args[0]))
    return R.logical_not(s.emit(_all(replace(s, args=(none,)))))


def _arg(function: Callable[..., Any]) -> Builder:
    def build(s: Site) -> Any:
        axes, x, shape = reduced_axes(s), s.args[0], s.tensor().shape
        if axes != list(range(len(shape))) and len(axes) != 1:
            s.fail(f"has a Relax form over one axis or all, got axes {axes} of {show_shape(shape)}")
        _some(s)
        one = axes[0] if len(axes) == 1 else None
        if not s.attrs["select_last_index"]:
            return R.astype(s.emit(function(x, one, s.attrs["keepdims"])), "int32")
        # The last is the first of all the other way round.
        for axis in axes:
            x = s.emit(R.flip(x, axis))
        found = s.emit(R.astype(s.emit(function(x, one, s.attrs["keepdims"])), "int32"))
        count = s.number([shape[axis] for axis in axes], "int32")
        last = s.emit(R.subtract(count, relax.const(1, "int32")))
        return R.subtract(last, found)

    return build


@in_float32
def _variance(s: Site) -> Any:
    """The mean of squared differences, over n - 1 where unbiased."""
    axes, shape = reduced_axes(s), s.tensor().shape
    diff = s.emit(R.subtract(*s.args))
    square = s.emit(R.multiply(diff, diff))
    if not axes:
        return square
    if not s.attrs["unbiased"]:
        return R.mean(square, axes, s.attrs["keepdims"])
    sizes = [shape[axis] for axis in axes]
    count = product(sizes)
    total = s.emit(R.sum(square, axes, s.attrs["keepdims"]))
    if not isinstance(count, int):
        less = s.emit(R.subtract(s.number(sizes, s.tensor().dtype), s.const(1.0)))
        return R.divide(total, s.emit(R.maximum(less, s.const(0.0))))
    if count <= 1:
        return R.multiply(total, s.const(inf))  # over zero, which TVM refuses to write
    return R.divide(total, s.const(float(count - 1)))


def _mean(s: Site) -> Any:
    """Of integers the sum divided as C does; Relax' own is of int64 where it says int32."""
    axes = reduced_axes(s)
    is_float = s.tensor().is_float
    if not is_float:
        replace(s, attrs={**s.attrs, "axis": axes}).compare(size_rules.averaged)
    if is_float or ANY in s.tensor().shape:
        return _reduce(R.mean)(s)
    sizes = [d for i, d in enumerate(s.tensor().shape) if i in axes]
    total = _reduce(R.sum)(s)
    return R.divide(s.emit(total), s.number(sizes, s.tensor().dtype)) if sizes else total


define("sum", "data", _type, _reduce(R.sum), "relay", *AXES,
       kind=COMM_REDUCE, level=4, precision=NEVER,
       doc="The reduction `sum` over `axis`, by default over all axes.")  # fmt: skip
define("mean", "data", _type, _mean, "numpy", *AXES, kind=COMM_REDUCE, level=4, precision=NEVER,
       doc="The reduction `mean` over `axis`, by default over all axes.")  # fmt: skip
for _name, _builder, _precision in (
    ("max", _extremum(R.max), FOLLOW), ("min", _extremum(R.min), FOLLOW),
    ("prod", _reduce(R.prod), None),
):  # fmt: skip
    define(_name, "data", _type, _builder, "numpy", *AXES,
           kind=COMM_REDUCE, level=4, precision=_precision,
           doc=f"The reduction `{_name}` over `axis`, by default over all axes.")  # fmt: skip
define("all", "data", _bool_type, _all, "numpy", *AXES, kind=COMM_REDUCE, level=4,
       doc="The reduction `all` over `axis`, by default over all axes.")  # fmt: skip
define("any", "data", _bool_type, _any, "numpy", *AXES, kind=COMM_REDUCE, level=4,
       doc="The reduction `any` over `axis`, by default over all axes.")  # fmt: skip
define("argmax", "data", _arg_type, _arg(R.argmax), "numpy", *ARG_AXES,
       kind=COMM_REDUCE, precision=FOLLOW,
       signature="data, axis, keepdims, exclude, select_last_index",
       doc="The index (int32) of the maximum along `axis`.")  # fmt: skip
define("argmin", "data", _arg_type, _arg(R.argmin), "numpy", *ARG_AXES,
       kind=COMM_REDUCE, precision=FOLLOW,
       signature="data, axis, keepdims, exclude, select_last_index",
       doc="The index (int32) of the minimum along `axis`.")  # fmt: skip
define("variance", "data mean", _variance_type, _variance, "numpy",
       *AXES, Attr("unbiased", False, "bool"),
       kind=COMM_REDUCE, level=4, precision=NEVER)  # fmt: skip
