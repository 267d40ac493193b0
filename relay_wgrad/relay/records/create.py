"""Operators that make tensors of given values."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...dtypes import numpy_dtype
from ..types import TensorType, Type
from .facts import ELEMWISE, FOLLOW, OUT_ELEMWISE_FUSABLE
from .relations import target
from .shape import SHAPE
from .table import REQUIRED, Attr, Call, Site, constant_value, define

R = relax.op


def _full_type(call: Call) -> Type:
    fill = call.tensor()
    if fill.shape:
        call.fail(f"Fill value should be a scalar but has dimension {len(fill.shape)}.")
    return target(call)


def _of_value(s: Site, fill: Any) -> Any:
    """The result, of one value.  TVM's `full` does not compile with infinities and NaN."""
    value = constant_value(fill)
    if value is None or np.isfinite(value.astype("float64")):
        if s.op == "full_like":
            return R.full_like(s.args[0], fill, s.result_type.dtype)
        return R.full(s.sizes(s.out), fill, s.result_type.dtype)
    with np.errstate(all="ignore"):  # as `cast`
        one = relax.const(tvm.runtime.tensor(value.astype(numpy_dtype(s.result_type.dtype))))
    return R.broadcast_to(one, s.sizes(s.out)) if s.result_type.shape else one


def _full_like_type(call: Call) -> Type:
    fill = call.tensor(1)
    if fill.shape:
        call.fail(f"The fill value should be a scalar but here it has dimension {len(fill.shape)}.")
    return call.tensor(0)


def _filled(value: float) -> Any:
    def build(s: Site) -> Any:
        return (R.ones if value else R.zeros)(s.sizes(s.out), s.result_type.dtype)

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
    ndim = len(s.result_type.shape)
    axis = s.axis(s.attrs["axis"], ndim)
    count = s.emit(R.arange(0, s.attrs["depth"], 1, s.tensor().dtype))
    count = s.emit(R.reshape(count, [-1 if i == axis else 1 for i in range(ndim)]))
    here = s.emit(R.equal(s.emit(R.expand_dims(s.args[0], axis)), count))
    on, off = (s.emit(R.astype(x, s.result_type.dtype)) for x in s.args[1:])
    return R.where(here, on, off)


define("zeros", "", target, _filled(0), "relay", *SHAPE, kind=ELEMWISE, level=3, precision=FOLLOW,
       fills=0, doc="A tensor of zeros.")  # fmt: skip
define("ones", "", target, _filled(1), "relay", *SHAPE, kind=ELEMWISE, level=3,
       fills=1, doc="A tensor of ones.")  # fmt: skip
define("full", "fill_value", _full_type, lambda s: _of_value(s, s.args[0]), "numpy", *SHAPE,
       kind=ELEMWISE, level=3, precision=FOLLOW,
       signature="fill_value, shape=(), dtype=''",
       doc="A tensor of one value, a scalar; its dtype is by default the value's.")  # fmt: skip
define("full_like", "data fill_value", _full_like_type,
       lambda s: _of_value(s, s.args[1]), "numpy",
       kind=ELEMWISE, level=3,
       doc="A tensor of one value in the shape and dtype of `data`.")  # fmt: skip
define("one_hot", "indices on_value off_value", _one_hot_type, _one_hot, "numpy",
       Attr("depth", 1, "int", asked=REQUIRED), Attr("axis", -1, "int", asked=REQUIRED),
       Attr("dtype", None, "dtype", asked=REQUIRED),
       kind=OUT_ELEMWISE_FUSABLE, level=10,
       doc="`on_value` where a new axis of size `depth` has the index, `off_value` "
           "elsewhere.")  # fmt: skip
