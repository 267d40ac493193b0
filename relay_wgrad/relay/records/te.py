"""Operators that TVM's operator library (TOPI) computes: their Relax form is one tensor program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ...relation import Checks
from ..dims import SymDim
from ..types import ANY, Dim, TensorType, TupleType
from .relations import agree, bounds
from .table import Builder, Call, Site, constant_value, show

R = relax.op
# (the call, TE tensors of its arguments) -> one TE tensor, or one for each field of the result
Compute = Callable[..., Any]


def tensor_program(compute: Compute, empty: Sequence[int] = ()) -> Builder:
    """A builder from a function of the call and the arguments' TE tensors.

    No argument may be without elements where the result has some, but those that `empty` names.
    """

    def build(s: Site) -> Any:
        refuse_empty(s, empty)
        return program(s, compute, *s.args)

    return build


def program(s: Site, compute: Compute, *args: Any) -> Any:
    """`compute(s, *tensors)` of Relax expressions; a tuple is one list of tensors."""

    def on_tensors(*given: Any) -> Any:
        return compute(s, *given)

    on_tensors.__name__ = s.op.replace(".", "_")
    return s.bb.call_te(on_tensors, *args)


def refuse_empty(s: Site, besides: Sequence[int] = ()) -> None:
    """No kernel may read of a tensor that has nothing, for a result that has something."""
    fields = s.out.fields if isinstance(s.out, TupleType) else (s.out,)
    made = [n for ty in fields if isinstance(ty, TensorType) for n in ty.shape if n is not ANY]
    result = relax.ShapeExpr([n.expr if isinstance(n, SymDim) else n for n in made])

    def rule(checks: Checks, _: Any, args: Sequence[Any]) -> None:
        for index, arg in enumerate(args):
            for ty in () if index in besides else _parts(arg.ty):
                if isinstance(ty.shape, relax.ShapeExpr):
                    _has_elements(checks, s.inputs[index], ty.shape, result)

    s.compare(rule)


def _has_elements(checks: Checks, name: str, shape: Any, result: Any) -> None:
    sizes, made = checks.sizes(shape), checks.sizes(result)
    # Where a size that the result has is 0, nothing is read.
    rest = [n for n in sizes if not any(checks.equal(n, m) is True for m in made)]
    some = checks.at_least(math.prod(rest, start=1), 1)
    checks.must(
        checks.either(some, checks.equal(math.prod(made, start=1), 0)),
        lambda: f"{name} has no elements, got ({', '.join(map(str, sizes))})",
    )


def long_enough(s: Site, axis: int, least: int, rule: str) -> None:
    """The first argument must have so many elements along an axis."""

    def compared(checks: Checks, _: Any, args: Sequence[Any]) -> None:
        if isinstance(args[0].ty.shape, relax.ShapeExpr):
            checks.long_enough(checks.sizes(args[0].ty.shape), axis, least, rule)

    s.compare(compared)


def _parts(ty: Any) -> Sequence[Any]:
    return ty.fields if isinstance(ty, relax.TupleType) else [ty]


def integer_indices(call: Call, *indices: int) -> None:
    """These arguments must be tensors of integers."""
    for index in indices:
        if not call.tensor(index).dtype.startswith(("int", "uint")):
            call.fail(f"{call.inputs[index]} must be of integers, got {show(call.tensor(index))}")


def choice(call: Call, name: str, values: Sequence[str]) -> str:
    """An attribute that must be one of some strings."""
    value = call.attrs[name]
    if value not in values:
        call.fail(f"{name} must be one of {', '.join(map(repr, values))}, got {value!r}")
    return str(value)


def count(call: Call, name: str, size: int) -> None:
    """An attribute that must be a list of so many positive integers."""
    values = call.attrs[name]
    known = [value for value in values or () if isinstance(value, int)]
    if values is None or len(values) != size or min(known, default=1) < 1:
        got = None if values is None else list(values)
        call.fail(f"{name} must be {size} positive integers, got {got}")


def rank(call: Call, index: int, *ndims: int) -> TensorType:
    """An argument's type, of one of these ranks."""
    ty = call.tensor(index)
    if len(ty.shape) not in ndims:
        wanted = " or ".join(map(str, ndims))
        call.fail(f"{call.inputs[index]} must have {wanted} axes, got {show(ty)}")
    return ty


def clipped(s: Site, x: Any, dtype: str, size: int) -> Any:
    """Indices held within [0, size), so that a wrong one reaches no memory but the tensor's."""
    if _fit(x, 0, size):
        return x
    low, high = bounds(dtype)
    x = s.emit(R.maximum(x, relax.const(max(low, 0), dtype)))
    return s.emit(R.minimum(x, relax.const(min(high, size - 1), dtype)))


def counted(s: Site, x: Any, dtype: str, size: int) -> Any:
    """Indices where those below zero are counted from the end."""
    if not dtype.startswith("int") or _fit(x, 0, None):
        return x
    if size > bounds(dtype)[1]:
        s.fail(f"indices of {dtype} cannot count {size} elements from the end")
    below = s.emit(R.less(x, relax.const(0, dtype)))
    return s.emit(R.where(below, s.emit(R.add(x, relax.const(size, dtype))), x))


def wrapped_and_clipped(s: Site, x: Any, dtype: str, size: int) -> Any:
    """As `counted`, then as `clipped`."""
    return clipped(s, counted(s, x, dtype, size), dtype, size)


def known_within(x: Any, low: int, high: int) -> bool:
    """Whether indices are constants within [low, high)."""
    return _fit(x, low, high)


def _fit(x: Any, low: int, high: int | None) -> bool:
    known = constant_value(x)
    if known is None or not known.size:
        return False
    return bool(known.min() >= low and (high is None or known.max() < high))


def known_size(s: Call, size: Dim, index: int = 0) -> int:
    """A size that must be known."""
    if not isinstance(size, int):
        s.fail(f"cannot be built with an unknown size, got {show(s.tensor(index))}")
    return size


def same(call: Call, dims: Sequence[Dim], others: Sequence[Dim], why: str) -> None:
    """Shapes that must be the same."""
    if len(dims) != len(others) or not all(map(agree, dims, others)):
        call.fail(f"{why}, got {', '.join(map(show, call.types))}")
