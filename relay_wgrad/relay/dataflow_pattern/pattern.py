"""What a pattern is: a small tree (or a graph) that says what an expression must look like.

Patterns are compared by identity, as nodes are: one pattern object that stands in two places must
match one expression in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ast import Expr, as_node
from ..op.registration import get
from ..types import Type


class DFPattern:
    """A pattern.  `pattern(args)` is a call of it; `a | b` is `a`, and where that fails `b`."""

    def __call__(self, *args: DFPattern | None) -> CallPattern:
        """A call with these arguments; of any arguments with None as the only one."""
        return CallPattern(self, None if len(args) == 1 and args[0] is None else _patterns(args))

    def __or__(self, other: DFPattern) -> AltPattern:
        return AltPattern(self, other)

    def __add__(self, other: DFPattern) -> CallPattern:
        return is_op("add")(self, other)

    def __sub__(self, other: DFPattern) -> CallPattern:
        return is_op("subtract")(self, other)

    def __mul__(self, other: DFPattern) -> CallPattern:
        return is_op("multiply")(self, other)

    def __truediv__(self, other: DFPattern) -> CallPattern:
        return is_op("divide")(self, other)

    def has_attr(self, attrs: Mapping[str, Any]) -> AttrPattern:
        """With these attributes: a call's (defaults count), an operator's, or a function's."""
        return AttrPattern(self, dict(attrs))

    def has_type(self, ttype: Type) -> TypePattern:
        """Of this type."""
        return TypePattern(self, ttype)

    def has_dtype(self, dtype: str) -> DataTypePattern:
        """A tensor of this dtype."""
        return DataTypePattern(self, dtype)

    def has_shape(self, shape: Sequence[Any]) -> ShapePattern:
        """A tensor of this shape."""
        return ShapePattern(self, tuple(shape))

    def optional(self, option_constructor: Callable[[DFPattern], DFPattern]) -> AltPattern:
        """This, with or without what `option_constructor(self)` puts behind it."""
        return self | option_constructor(self)

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DominatorPattern:
        """This where all that it is computed from comes, by `path`, from `parent`."""
        return DominatorPattern(parent, wildcard() if path is None else path, self)

    def match(self, expr: Any) -> bool:
        """Whether an expression, as a whole, looks like this."""
        from .matcher import match  # it imports this file

        return match(self, expr)

    def partition(
        self,
        expr: Any,
        attrs: Mapping[str, Any] | None = None,
        check: Callable[[Expr], Any] = lambda _: True,
    ) -> Expr:
        """See `dataflow_pattern.partition`."""
        from .partition import partition

        return partition(self, expr, attrs, check)

    def parts(self) -> tuple[DFPattern, ...]:
        """The patterns that this one is made of, in the order in which they are numbered."""
        return ()


def _pattern(value: Any, where: str) -> DFPattern:
    if not isinstance(value, DFPattern):
        raise TypeError(f"{where} must be a pattern, got {value!r}")
    return value


def _patterns(values: Any) -> tuple[Any, ...]:
    return tuple(_pattern(value, "a part of a pattern") for value in values)


@dataclass(eq=False)
class ExprPattern(DFPattern):
    """An expression that is structurally equal to `expr`."""

    expr: Expr

    def __post_init__(self) -> None:
        self.expr = as_node(self.expr, "is_expr: the expression")


@dataclass(eq=False)
class VarPattern(DFPattern):
    """A variable, of this name unless it is empty."""

    name: str = ""


@dataclass(eq=False)
class ConstantPattern(DFPattern):
    """A constant."""


@dataclass(eq=False)
class WildcardPattern(DFPattern):
    """Anything, or what it is redirected to: so a pattern can contain itself."""

    pattern: DFPattern | None = None

    def redirect_to(self, pat: DFPattern) -> None:
        """From now on this means `pat`."""
        self.pattern = _pattern(pat, "redirect_to: what it leads to")

    def parts(self) -> tuple[DFPattern, ...]:
        return () if self.pattern is None else (self.pattern,)


@dataclass(eq=False)
class CallPattern(DFPattern):
    """A call.  `args` None: of any arguments.  `add` and `multiply` match in both orders."""

    op: DFPattern
    args: tuple[DFPattern, ...] | None

    def __post_init__(self) -> None:
        _pattern(self.op, "a call's operator")
        self.args = None if self.args is None else _patterns(self.args)

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.op, *(self.args or ()))


@dataclass(eq=False)
class FunctionPattern(DFPattern):
    """A function that is a value.  `params` None: with any parameters."""

    params: tuple[DFPattern, ...] | None
    body: DFPattern

    def __post_init__(self) -> None:
        self.params = None if self.params is None else _patterns(self.params)
        _pattern(self.body, "a function's body")

    def parts(self) -> tuple[DFPattern, ...]:
        return (*(self.params or ()), self.body)


@dataclass(eq=False)
class TuplePattern(DFPattern):
    """A tuple.  `fields` None: of any fields."""

    fields: tuple[DFPattern, ...] | None

    def __post_init__(self) -> None:
        self.fields = None if self.fields is None else _patterns(self.fields)

    def __getitem__(self, index: int) -> DFPattern:
        return (self.fields or ())[index]

    def __len__(self) -> int:
        return len(self.fields or ())

    def parts(self) -> tuple[DFPattern, ...]:
        return self.fields or ()


@dataclass(eq=False)
class TupleGetItemPattern(DFPattern):
    """A tuple's field; of any index where `index` is None."""

    tuple: DFPattern
    index: int | None = None

    def __post_init__(self) -> None:
        _pattern(self.tuple, "a field's tuple")

    def parts(self) -> Any:
        return (self.tuple,)


@dataclass(eq=False)
class IfPattern(DFPattern):
    """An `if`."""

    cond: DFPattern
    true_branch: DFPattern
    false_branch: DFPattern

    def __post_init__(self) -> None:
        _patterns(self.parts())

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.cond, self.true_branch, self.false_branch)


@dataclass(eq=False)
class LetPattern(DFPattern):
    """A `let`."""

    var: DFPattern
    value: DFPattern
    body: DFPattern

    def __post_init__(self) -> None:
        _patterns(self.parts())

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.var, self.value, self.body)


@dataclass(eq=False)
class AltPattern(DFPattern):
    """`left`, or `right`."""

    left: DFPattern
    right: DFPattern

    def __post_init__(self) -> None:
        _patterns(self.parts())

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.left, self.right)


@dataclass(eq=False)
class Constrained(DFPattern):
    pattern: DFPattern

    def __post_init__(self) -> None:
        _pattern(self.pattern, "what a condition is on")

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.pattern,)


@dataclass(eq=False)
class AttrPattern(Constrained):
    """With attributes."""

    attrs: Mapping[str, Any]


@dataclass(eq=False)
class TypePattern(Constrained):
    """Of a type."""

    type: Type


@dataclass(eq=False)
class ShapePattern(Constrained):
    """A tensor of a shape."""

    shape: tuple[Any, ...]


@dataclass(eq=False)
class DataTypePattern(Constrained):
    """A tensor of a dtype."""

    dtype: str


@dataclass(eq=False)
class DominatorPattern(DFPattern):
    """`child`, whose operands all come from one `parent`, over nodes that match `path` alone."""

    parent: DFPattern
    path: DFPattern
    child: DFPattern

    def __post_init__(self) -> None:
        _patterns(self.parts())

    def parts(self) -> tuple[DFPattern, ...]:
        return (self.parent, self.path, self.child)


# ---- Relay's names --------------------------------------------------------------------------


def wildcard() -> WildcardPattern:
    """Anything."""
    return WildcardPattern()


def is_var(name: str = "") -> VarPattern:
    """A variable, of this name if one is given."""
    return VarPattern(name)


def is_constant() -> ConstantPattern:
    """A constant."""
    return ConstantPattern()


def is_expr(expr: Any) -> ExprPattern:
    """An expression that is structurally equal to this one."""
    return ExprPattern(expr)


def is_op(op_name: str) -> ExprPattern:
    """An operator; `is_op("add")(a, b)` is a call of it.

    Raises ValueError for an unknown name.
    """
    return ExprPattern(get(op_name))


def is_tuple(fields: Sequence[DFPattern] | None) -> TuplePattern:
    """A tuple of these fields; of any fields with None."""
    return TuplePattern(None if fields is None else tuple(fields))


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> TupleGetItemPattern:
    """A tuple's field; of any index without one."""
    return TupleGetItemPattern(tuple_value, index)


def is_if(cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> IfPattern:
    """An `if`."""
    return IfPattern(cond, true_branch, false_branch)


def is_let(var: DFPattern, value: DFPattern, body: DFPattern) -> LetPattern:
    """A `let`."""
    return LetPattern(var, value, body)


def has_attr(attrs: Mapping[str, Any], pattern: DFPattern | None = None) -> AttrPattern:
    """A pattern, by default anything, with attributes."""
    return (wildcard() if pattern is None else pattern).has_attr(attrs)


def has_type(ttype: Type, pattern: DFPattern | None = None) -> TypePattern:
    """A pattern, by default anything, of a type."""
    return (wildcard() if pattern is None else pattern).has_type(ttype)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DataTypePattern:
    """A pattern, by default anything, of a tensor of a dtype."""
    return (wildcard() if pattern is None else pattern).has_dtype(dtype)


def has_shape(shape: Sequence[Any], pattern: DFPattern | None = None) -> ShapePattern:
    """A pattern, by default anything, of a tensor of a shape."""
    return (wildcard() if pattern is None else pattern).has_shape(shape)


def dominates(parent: DFPattern, path: DFPattern, child: DFPattern) -> DominatorPattern:
    """`child.dominates(parent, path)`."""
    return DominatorPattern(parent, path, child)
