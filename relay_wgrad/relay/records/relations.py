"""Type relations that many operators share, and arithmetic on sizes that may be `?`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..dims import agree as agree
from ..dims import divides as divides
from ..dims import is_open
from ..types import ANY, AnyDim, Dim, TensorType, Type
from .table import Call, show


def bounds(dtype: str) -> tuple[int, int]:
    """The least and the largest number of an integer type, or bool."""
    if dtype == "bool":
        return 0, 1
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def product(dims: Iterable[Dim]) -> Dim:
    """`?` if any factor is."""
    factors: list[Any] = list(dims)
    return ANY if ANY in factors else math.prod(factors)


def total(dims: Iterable[Dim]) -> Dim:
    """`?` if any term is."""
    terms: list[Any] = list(dims)
    return ANY if ANY in terms else sum(terms)


def mapped(dim: Dim, function: Callable[[Any], Any]) -> Dim:
    """A function of a size, in `+ - * // %`; `?` stays `?`."""
    return dim if isinstance(dim, AnyDim) else function(dim)


def identity(call: Call) -> Type:
    """The first argument's type."""
    return call.tensor(0)


def broadcast(call: Call, a: TensorType, b: TensorType, dtype: str) -> TensorType:
    """NumPy's rule: shapes aligned at the right, 1 against anything; `?` against n is n."""
    ndim = max(len(a.shape), len(b.shape))
    left: Sequence[Dim] = (1,) * (ndim - len(a.shape)) + a.shape
    right: Sequence[Dim] = (1,) * (ndim - len(b.shape)) + b.shape
    out: list[Dim] = []
    for x, y in zip(left, right, strict=True):
        if x == 1:
            out.append(y)
        elif y == 1 or x == y or y is ANY:
            out.append(x)
        elif x is ANY:
            out.append(y)
        elif (is_open(x) or is_open(y)) and agree(x, y):
            out.append(y if is_open(x) else x)
        else:
            call.fail(f"Incompatible broadcast type {show(a)} and {show(b)}")
    return TensorType(tuple(out), dtype)


def _operands(call: Call, rule: str) -> tuple[TensorType, TensorType]:
    a, b = call.tensor(0), call.tensor(1)
    if a.dtype != b.dtype:
        call.fail(f"data types {a.dtype} and {b.dtype} do not match in {rule}")
    return a, b


def binary(call: Call) -> Type:
    """Two tensors of one dtype, broadcast."""
    a, b = _operands(call, "BroadcastRel")
    return broadcast(call, a, b, a.dtype)


def comparison(call: Call) -> Type:
    """Two tensors of one dtype, broadcast; the result is bool."""
    a, b = _operands(call, "BroadcastCompRel")
    return broadcast(call, a, b, "bool")


def predicate(call: Call) -> Type:
    """The argument's shape, of bools."""
    return TensorType(call.tensor(0).shape, "bool")


def like(call: Call) -> Type:
    """The second argument's shape and dtype."""
    call.tensor(0)
    return call.tensor(1)


def target(call: Call) -> TensorType:
    """The attribute `shape` with the attribute `dtype`, by default the first argument's."""
    dtype = call.attrs["dtype"]
    if dtype is None:
        if not call.types:
            call.fail("attribute dtype is missing")
        dtype = call.tensor(0).dtype
    shape = call.attrs["shape"]
    if shape is None:
        call.fail("attribute shape is missing: a shape known only when the program runs")
    if any(size < 0 for size in shape):
        call.fail(f"shape must have no negative size, got {list(shape)}")
    return TensorType(tuple(shape), dtype)
