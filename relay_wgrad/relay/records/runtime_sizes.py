"""Sizes that are values of the run: numbers of a tensor become variables of Relax' shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..dims import as_dim, open_dim
from ..types import ANY, Dim, TensorType
from .table import Call, Site, constant_value, show
from .te import integer_indices, program, rank

R = relax.op
# (which of the numbers, TE tensors) -> an int64 expression
Number = Callable[..., Any]


def number(value: int) -> Any:
    """An int64 constant."""
    return tirx.const(value, "int64")


def scalar(x: Any) -> Any:
    """The only element of a TE tensor."""
    return x[tuple(0 for _ in x.shape)]


def numbers(s: Site, count: int, one: Number, *args: Any) -> Any:
    """A vector of so many int64 numbers, which `one(i, *tensors)` gives each."""

    def on_tensors(s: Site, *tensors: Any) -> Any:
        def at(j: Any) -> Any:
            made = one(count - 1, *tensors)
            for i in range(count - 2, -1, -1):
                made = tirx.Select(j == i, one(i, *tensors), made)
            return made

        return te.compute((count,), at)

    return s.emit(program(s, on_tensors, *args))


def variables(s: Site, vector: Any, count: int) -> list[Any]:
    """The numbers of an int64 vector as sizes; the run refuses what is below zero."""
    known = constant_value(vector)
    if known is not None:
        return [int(size) for size in known]
    if not count:
        return []
    name = s.op.rpartition(".")[2]
    made = s.sizes(TensorType(tuple(open_dim(f"{name}_{i}") for i in range(count))))
    s.bb.match_cast(s.emit(R.tensor_to_shape(vector)), relax.ShapeType(made))
    return made


def sizes(s: Site, count: int, one: Number, *args: Any) -> list[Any]:
    """As `numbers`, as sizes."""
    return variables(s, numbers(s, count, one, *args), count) if count else []


def own_sizes(s: Site, index: int = 0) -> Any:
    """An argument's sizes as an int64 vector."""
    return vector_of(s, s.sizes(s.tensor(index)))


def stated(s: Site, index: int, integers: bool = True) -> list[Any]:
    """The sizes that a vector argument says."""
    vector = s.args[index]
    if s.tensor(index).dtype != "int64":
        vector = s.emit(R.astype(vector, "int64"))
    return variables(s, vector, length(s, index, integers))


def length(call: Call, index: int, integers: bool = True) -> int:
    """How many numbers a vector argument has, which its type must say."""
    ty = rank(call, index, 1)
    if integers:
        integer_indices(call, index)
    if not isinstance(ty.shape[0], int):
        call.fail(f"{call.inputs[index]} must be of known length, got {show(ty)}")
    return ty.shape[0]


def total(dims: Sequence[Any]) -> Any:
    """How many elements a shape has."""
    out: Any = number(1)
    for size in dims:
        out = out * (number(size) if isinstance(size, int) else size)
    return out


def vector_of(s: Site, dims: Sequence[Any]) -> Any:
    """Sizes as an int64 vector."""
    if all(isinstance(size, int) for size in dims):
        return relax.const(tvm.runtime.tensor(np.array(dims, "int64")))
    return s.emit(R.shape_to_tensor(relax.ShapeExpr(list(dims))))


def as_dims(dims: Sequence[Any]) -> tuple[Dim, ...]:
    """Relax' sizes as those of types."""
    return tuple(map(as_dim, dims))


def reshaped(s: Site, x: Any, old: Sequence[Any], new: Sequence[Any]) -> Any:
    """A reshape for which the run compares the numbers of elements."""
    if len(new) == 1 and isinstance(new[0], tirx.Var):
        # A compiler would put the number that there is for the variable, and leave the check out.
        def fits(_: int, size: Any, sizes: Any) -> Any:
            return size[0] == total([sizes[i] for i in range(len(old))])

        x = checked(s, x, old, fits, vector_of(s, new), vector_of(s, old))
        return R.reshape(x, [total(old)])
    flat = s.emit(R.reshape(x, [total(old)]))
    dtype = str(s.bb.normalize(x).ty.dtype)
    flat = s.bb.match_cast(flat, relax.TensorType([total(new)], dtype))
    return R.reshape(flat, list(new))


def checked(s: Site, x: Any, dims: Sequence[Any], fits: Number, *args: Any) -> Any:
    """The value where `fits(0, *tensors)` is true at the run, which refuses it otherwise.

    By a square: a compiler would put 1 for a variable that must be 1, and leave the check out.
    """
    (one,) = sizes(s, 1, lambda i, *t: tirx.Select(fits(i, *t), number(1), number(0)), *args)
    if isinstance(one, int):
        if one != 1:
            s.fail("the values do not fit")
        return x
    dtype = str(s.bb.normalize(x).ty.dtype)
    flat = s.emit(R.reshape(x, [total(dims)]))
    flat = s.bb.match_cast(flat, relax.TensorType([total(dims) * one * one], dtype))
    return s.emit(R.reshape(flat, list(dims)))


def unknown(count: int, dtype: str) -> TensorType:
    """A tensor's type of which only the rank is known."""
    return TensorType((ANY,) * count, dtype)


def slice_bounds(size: Any, step: Any) -> tuple[Any, Any, Any]:
    """Of an axis: (step, 1 where it is 0; the least and the most of a begin or end), as NumPy's."""
    step = tirx.Select(step == 0, number(1), step)
    low = tirx.Select(step < 0, number(-1), number(0))
    return step, low, tirx.Select(step < 0, size - 1, size)


def clamped_bound(value: Any, size: Any, low: Any, high: Any) -> Any:
    """A begin or end, counted from the axis's end where it is negative, within its bounds."""
    value = tirx.Select(value < 0, value + size, value)
    return tirx.Min(tirx.Max(value, low), high)
