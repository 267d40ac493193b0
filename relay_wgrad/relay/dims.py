"""A dimension of a tensor's type: an int, a symbolic size, or `ANY`, Relay's `?`.

A symbolic size is an expression of variables (`te.var`, `size_var`) whose values the run knows: it
is the same wherever it stands.  Each `?` may be another size.  Expressions are simplified when they
are made, and equal when TVM's analyzer or their polynomials prove it, so `(n + n) // 2 == n`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from typing import Any as Any_
from typing import TypeAlias

from tvm import ir, tirx
from tvm.sym import Analyzer

from .polynomials import is_multiple, polynomial

SIZES = 2**63
_SIZE, _OPEN = "size_var", "?"


class AnyDim:
    """A dimension that only the run knows; printed as `?`.  There is one, `ANY`: `AnyDim()`."""

    _one: AnyDim | None = None

    def __new__(cls) -> AnyDim:
        cls._one = cls._one or super().__new__(cls)
        return cls._one

    def __repr__(self) -> str:
        return "?"


ANY = AnyDim()


def _binary(function: Callable[[Any_, Any_], Any_]) -> Any_:
    def of_two(self: SymDim, other: object) -> Any_:
        if other is ANY:
            return ANY
        raw = _operand(other)
        return NotImplemented if raw is None else _simplified(function(self.expr, raw))

    return of_two


def _reflected(function: Callable[[Any_, Any_], Any_]) -> Any_:
    return _binary(lambda a, b: function(b, a))


class SymDim:
    """A size that is an expression of variables; `expr` is TVM's, of integers.

    It has `+ - * // %`, whose results are simplified, and an int where they are one.  What only the
    run knows of it, an order or a truth, is a TypeError.
    """

    __slots__ = ("expr",)

    def __init__(self, expr: Any_) -> None:
        self.expr = expr

    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)

    def __neg__(self) -> Any_:
        return 0 - self

    def __eq__(self, other: object) -> bool:
        raw = _operand(other)
        if raw is None or isinstance(raw, int):
            return False  # a constant would have been simplified to an int
        if self.expr.same_as(raw) or polynomial(self.expr) == polynomial(raw):
            return True
        return bool(Analyzer().can_prove_equal(self.expr, raw))

    def __hash__(self) -> int:
        return hash(SymDim)  # what is equal may be spelled in two ways

    def __tvm_ffi_object__(self) -> Any_:
        return self.expr  # so TVM's functions take a size

    def __bool__(self) -> bool:
        raise TypeError(f"only the run knows whether {self} is zero")

    def __str__(self) -> str:
        return str(self.expr)

    __repr__ = __str__


Dim: TypeAlias = "int | SymDim | AnyDim"


def size_var(name: str = "size", dtype: str = "int32") -> Any_:
    """A variable for a size, `te.size_var` of TVM 0.19; its text is `meta[tir.SizeVar][…]`."""
    return _marked(name, dtype, _SIZE)


def is_size_var(var: Any_) -> bool:
    """Whether `size_var` made the variable."""
    return _mark(var) == _SIZE


def open_dim(name: str) -> Dim:
    """A variable of 64 bits for a `?`, which fits whatever a `?` does."""
    return SymDim(_marked(name, "int64", _OPEN))


def is_open(dim: Dim) -> bool:
    """Whether a size is `?`, or a variable for one."""
    return dim is ANY or (is_variable(dim) and _mark(dim.expr) == _OPEN)  # type: ignore[union-attr]


def _marked(name: str, dtype: str, mark: str) -> Any_:
    # TVM has one kind of variables left; a span stays with the variable.
    return tirx.Var(name, dtype, span=ir.Span(ir.SourceName(mark), 0, 0, 0, 0))


def _mark(var: Any_) -> str | None:
    return None if var.span is None else str(var.span.source_name.name)


def is_expression(value: object) -> bool:
    """Whether a value is an integer expression of TVM's."""
    ty = getattr(value, "ty", None)
    return isinstance(ty, ir.PrimType) and str(ty.dtype).startswith(("int", "uint"))


def as_dim(value: object) -> Dim:
    """A size as a type holds it; TypeError or ValueError for what is none."""
    if isinstance(value, (SymDim, AnyDim)) or (type(value) is int and 0 <= value < SIZES):
        return value
    if is_expression(value):
        value = _simplified(value)
        if isinstance(value, SymDim):
            return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(
            "a size must be an integer, an integer expression of te.var or relay.Any(),"
            f" got {value!r}"
        )
    size = int(value)
    if not 0 <= size < SIZES:
        raise ValueError(f"a size must be at least 0 and fit into 64 bits, got {size}")
    return size


def same(a: Dim, b: Dim) -> bool:
    """Whether two sizes are one: equal numbers, or expressions that are proved equal; no `?` is."""
    return a is not ANY and b is not ANY and a == b


_assumed: ContextVar[list[tuple[Dim, Dim]] | None] = ContextVar("assumed", default=None)


@contextmanager
def assumptions() -> Iterator[list[tuple[Dim, Dim]]]:
    """Collects the pairs of sizes that `agree` takes for equal though nothing proves it."""
    pairs: list[tuple[Dim, Dim]] = []
    token = _assumed.set(pairs)
    try:
        yield pairs
    finally:
        _assumed.reset(token)


def agree(a: Dim, b: Dim) -> bool:
    """Whether two sizes may be the same: all but those that differ by a constant, as in Relay."""
    if a is ANY or b is ANY or a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    if isinstance(a - b, int):  # type: ignore[operator]
        return False
    pairs = _assumed.get()
    if pairs is not None:
        pairs.append((a, b))
    return True


def divides(part: int, dim: Dim) -> bool:
    """Whether a size may be a multiple of a positive number; what nothing proves is assumed."""
    if dim is ANY:
        return True
    rest = dim % part  # type: ignore[operator]
    if isinstance(rest, int):
        return rest == 0
    if isinstance(dim, SymDim) and is_multiple(dim.expr, part):
        return True
    pairs = _assumed.get()
    if pairs is not None:
        pairs.append((rest, 0))
    return True


def unified(a: Dim, b: Dim) -> Dim | None:
    """The size of what has both: `?` where either is, and a number where one is a variable.

    None where they can't be the same, or nothing says so of two expressions.
    """
    if a is ANY or b is ANY:
        return ANY
    if a == b:
        return a
    for one, other in ((a, b), (b, a)):
        if is_open(other) or (isinstance(one, int) and is_variable(other)):
            return one if agree(a, b) else None
    return None


def is_variable(dim: Dim) -> bool:
    """Whether a size is a variable itself."""
    return isinstance(dim, SymDim) and isinstance(dim.expr, tirx.Var)


def variables(dim: Dim) -> list[Any_]:
    """TVM's variables in a size."""
    return list(tirx.analysis.undefined_vars(dim.expr)) if isinstance(dim, SymDim) else []


def substituted(dim: Dim, values: Mapping[Any_, Dim]) -> Dim:
    """A size with other sizes for its variables (TVM's, by identity); `?` where one is `?`."""
    used = {v: values[v] for v in variables(dim) if v in values and values[v] != v}
    if not used or not isinstance(dim, SymDim):
        return dim
    if ANY in used.values():
        return ANY
    if any(v in used for value in used.values() for v in variables(value)):
        # By way of new variables: the analyzer would replace what it has put in.
        new = {v: SymDim(tirx.Var("new", str(_dtype(used[v], v)))) for v in used}
        back = {new[v].expr: value for v, value in used.items()}
        return substituted(substituted(dim, new), back)
    # Also a change of width: variables of Relay's sizes have 32 bits, those of Relax' shapes 64.
    analyzer = Analyzer()
    for var, value in used.items():
        raw = tirx.IntImm(str(var.ty.dtype), value) if isinstance(value, int) else _operand(value)
        analyzer.bind(var, raw)
    made = analyzer.simplify(dim.expr)
    return int(made.value) if isinstance(made, tirx.IntImm) else SymDim(made)


def _dtype(dim: Dim, default: Any_) -> Any_:
    return (dim.expr if isinstance(dim, SymDim) else default).ty.dtype


def rounded_product(dim: Any_, factor: float) -> Any_:
    """So many times a size, rounded: halves go away from zero."""
    if isinstance(dim, int):
        return math.floor(dim * factor + 0.5)
    if factor == int(factor):
        return dim * int(factor)
    times = tirx.Cast("float64", dim.expr) * tirx.const(factor, "float64")
    return SymDim(tirx.Cast(str(dim.expr.ty.dtype), tirx.round(times)))


def _operand(value: object) -> Any_:
    if isinstance(value, SymDim):
        return value.expr
    if isinstance(value, Integral):
        return int(value)
    return value if is_expression(value) else None


def _simplified(expr: Any_) -> Any_:
    """A size of an expression: an int where it is constant."""
    if not isinstance(expr, (tirx.Var, tirx.IntImm)):
        expr = Analyzer().simplify(_unrounded(expr))
    return int(expr.value) if isinstance(expr, tirx.IntImm) else SymDim(expr)


def _unrounded(expr: Any_) -> Any_:
    """A whole multiple of a size without the rounding in which Relay writes it."""
    if not isinstance(expr, tirx.Cast) or not isinstance(expr.value, ir.Call):
        return expr
    times = expr.value.args[0]
    if expr.value.op.name != "tirx.round" or not isinstance(times, tirx.Mul):
        return expr
    size, factor = times.a, times.b
    is_scaled = isinstance(size, tirx.Cast) and isinstance(factor, tirx.FloatImm)
    if is_scaled and float(factor.value).is_integer() and is_expression(size.value):
        return size.value * int(factor.value)
    return expr
