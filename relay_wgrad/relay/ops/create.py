"""Operators that make tensors of given values."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..types import TensorType, Type
from .relations import target
from .shape import SHAPE
from .table import Attr, Call, Site, define

R = relax.op


def _full_type(call: Call) -> Type:
    fill = call.tensor()
    if fill.shape:
        call.fail(f"Fill value should be a scalar but has dimension {len(fill.shape)}.")
    return target(call)


def _full(s: Site) -> Any:
    assert isinstance(s.out, TensorType)
    return R.full(s.sizes(s.out), s.args[0], s.out.dtype)


def _full_like_type(call: Call) -> Type:
    fill = call.tensor(1)
    if fill.shape:
        call.fail(f"The fill value should be a scalar but here it has dimension {len(fill.shape)}.")
    return call.tensor(0)


def _filled(value: float) -> Any:
    def build(s: Site) -> Any:
        assert isinstance(s.out, TensorType)
        return (R.ones if value else R.zeros)(s.sizes(s.out), s.out.dtype)

    return build


def _one_hot_type(call: Call) -> Type:
    indices, depth = call.tensor(), call.attrs["depth"]
    if depth < 1:
        call.fail(f"depth must be positive, got {depth}")
    axis = call.axis(call.attrs["axis"], len(indices.shape) + 1)
    dtype = call.attrs["dtype"] or call.same_dtype(1, 2)
    return TensorType((*indices.shape[:axis], depth, *indices.shape[axis:]), dtype)


def _one_hot(s: Site) -> Any:
    """Indices compared with 0 … depth - 1."""
    assert isinstance(s.out, TensorType)
    ndim = len(s.out.shape)
    axis = s.axis(s.attrs["axis"], ndim)
    count = s.emit(R.arange(0, s.attrs["depth"], 1, s.tensor().dtype))
    count = s.emit(R.reshape(count, [-1 if i == axis else 1 for i in range(ndim)]))
    here = s.emit(R.equal(s.emit(R.expand_dims(s.args[0], axis)), count))
    on, off = (s.emit(R.astype(x, s.out.dtype)) for x in s.args[1:])
    return R.where(here, on, off)


define("zeros", "", target, _filled(0), "relay", *SHAPE)
define("ones", "", target, _filled(1), "relay", *SHAPE)
define("full", "fill_value", _full_type, _full, "numpy", *SHAPE, grad=False)
define("full_like", "data fill_value", _full_like_type,
       lambda s: R.full_like(s.args[0], s.args[1], s.tensor().dtype), "numpy",
       grad=False)  # fmt: skip
define("one_hot", "indices on_value off_value", _one_hot_type, _one_hot, "numpy",
       Attr("depth", 1, "int"), Attr("axis", -1, "int"), Attr("dtype", None, "dtype"),
       grad=False)  # fmt: skip
