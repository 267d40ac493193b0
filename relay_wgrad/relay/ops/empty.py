"""Results of nothing: tensors without elements, and sums, means and maxima over none.

TVM's kernels for these leave a result as it was allocated, or divide by a literal zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...dtypes import numpy_dtype
from ...pipeline.fold_constant import is_worth
from ..types import TensorType, TupleType, Type

# What an operator gives where a tensor that it reduces has no elements.
_OVER_NONE: Mapping[str, float] = {
    **dict.fromkeys(("sum", "collapse_sum_like", "collapse_sum_to", "any"), 0),
    **dict.fromkeys(("nn.dense", "nn.matmul", "nn.batch_matmul"), 0),
    **dict.fromkeys(("prod", "all"), 1),
    **dict.fromkeys(("mean", "variance", "nn.global_avg_pool2d", "nn.adaptive_avg_pool2d"), nan),
    **dict.fromkeys(("nn.cross_entropy", "nn.cross_entropy_with_logits"), nan),
}
_HAS_NONE = ("max", "min", "argmax", "argmin", "nn.global_max_pool2d", "nn.adaptive_max_pool2d")


def of_nothing(name: str, types: Sequence[Type], out: Type) -> Any | None:
    """The result as constants where it is empty, or is of a reduction over nothing.

    None where the operator's own form computes it.  Raises ValueError for a maximum of nothing.
    """
    if isinstance(out, TupleType):
        if not out.fields or not all(_is_empty(ty) for ty in out.fields):
            return None
        return relax.Tuple([_full(ty, 0) for ty in out.fields if isinstance(ty, TensorType)])
    if _is_empty(out):
        assert isinstance(out, TensorType)
        return _full(out, 0)
    # The first is what is reduced; collapse_sum_to's second is a shape, empty for a scalar.
    if not types or not _is_empty(types[0]):
        return None
    if not isinstance(out, TensorType) or not _is_known(out):
        return None
    if name in _HAS_NONE:
        raise ValueError(f"{name}: no element to choose of {types[0]}")
    value = _OVER_NONE.get(name)
    if value is None:
        return None
    if math.isnan(value) and out.dtype.startswith(("int", "uint", "bool")):
        raise ValueError(f"{name}: no integer is the mean of {types[0]}")
    return _full(out, value)


def _is_known(ty: TensorType) -> bool:
    return all(isinstance(size, int) for size in ty.shape)


def _is_empty(ty: Type) -> bool:
    return isinstance(ty, TensorType) and _is_known(ty) and 0 in ty.shape


def _full(ty: TensorType, value: float) -> Any:
    shape = [size for size in ty.shape if isinstance(size, int)]
    if 0 in shape:
        # No constant: TVM writes one without elements into a library, and can't read it back.
        return relax.op.zeros(shape, ty.dtype)
    is_small = is_worth(bytes_of(ty), 0)
    array = np.full(shape if is_small else (), value, numpy_dtype(ty.dtype))
    constant = relax.const(tvm.runtime.tensor(array))
    return constant if is_small else relax.op.broadcast_to(constant, shape)


def check_size(name: str, out: Type, largest: int) -> None:
    """Raises ValueError for a result of more bytes than `largest`."""
    for ty in out.fields if isinstance(out, TupleType) else (out,):
        if isinstance(ty, TensorType) and (size := bytes_of(ty)) > largest:
            raise ValueError(
                f"{name}: a result of {size:,} bytes, more than {largest:,}, of type {ty}"
            )


def bytes_of(ty: TensorType) -> int:
    """What a tensor takes in memory, with 1 for each size that only the run knows."""
    count = math.prod(size if isinstance(size, int) else 1 for size in ty.shape)
    return count * numpy_dtype(ty.dtype).itemsize if ty.dtype != "handle" else count
