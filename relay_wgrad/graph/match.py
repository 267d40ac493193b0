"""Patterns of calls, written as programs are, and why one does not match.

    CENTRED = call("relax.subtract", "x", call("relax.mean", "x", name="mean"), name="centred")

is x - mean(x).  A string is any expression, the same wherever it stands again; a number is a
constant of one element with that value, `Constant` one with any.  What a call, or a constant, is
bound to has its `name` in the match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import tvm
from tvm import relax

from ..ir import op_name
from .def_use import Graph

Pattern: TypeAlias = Union[str, float, "Constant", "Call", "OneOf"]
Found = dict[str, Any]


@dataclass(frozen=True)
class Constant:
    """A constant of one element, with a value if one is given."""

    name: str
    value: float | None = None


@dataclass(frozen=True)
class Call:
    """A call of one of some operators; `either` : its two operands in either order."""

    operators: tuple[str, ...]
    operands: tuple[Pattern, ...]
    name: str = ""
    either: bool = False


@dataclass(frozen=True)
class OneOf:
    """The first of some patterns that matches."""

    patterns: tuple[Pattern, ...]


@dataclass(frozen=True)
class Match:
    """What the names of a pattern are, or why it does not match; false then.

    The reason is of the try that went furthest.
    """

    found: Found = field(default_factory=dict)
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def number(self, name: str) -> float:
        """The value of a `Constant`."""
        value = number_of(self.found[name])
        assert value is not None
        return value


def call(operator: str, *operands: Pattern, name: str = "", either: bool = False) -> Call:
    """A call of one operator."""
    return Call((operator,), operands, name, either)


def match(graph: Graph, pattern: Pattern, expr: Any) -> Match:
    """Whether an expression of a function is as a pattern says."""
    failures: list[tuple[int, str, Any]] = []
    for found in _matches(graph, pattern, expr, {}, failures):
        return Match(found)
    _, wanted, got = max(failures, key=lambda failure: failure[0])
    return Match(reason=f"{_described(graph, got)} is not {wanted}")


def number_of(expr: Any) -> float | None:
    """The value of a constant of one element."""
    if not isinstance(expr, tvm.ir.Constant):
        return None
    value = expr.value.numpy()
    return float(value.reshape(())) if value.size == 1 else None


def _matches(
    graph: Graph, pattern: Pattern, expr: Any, found: Found, failures: list[tuple[int, str, Any]]
) -> Iterator[Found]:
    """All ways in which a pattern matches, beside what is found; what fails goes to `failures`."""

    def fail(wanted: str) -> None:
        failures.append((len(found), wanted, expr))

    if isinstance(pattern, OneOf):
        for one in pattern.patterns:
            yield from _matches(graph, one, expr, found, failures)
        return
    if isinstance(pattern, float):
        pattern = Constant("", pattern)
    name = pattern if isinstance(pattern, str) else pattern.name
    if name in found and not found[name].same_as(expr):
        fail(f"{name}, which is {_described(graph, found[name])}")
        return
    known = {**found, name: expr} if name else found
    if isinstance(pattern, str):
        yield known
    elif isinstance(pattern, Constant):
        number = number_of(expr)
        if number is not None and pattern.value in (None, number):
            yield known
        else:
            fail("a number" if pattern.value is None else f"{pattern.value:g}")
    else:
        made = graph.call(expr, *pattern.operators)
        if made is None or len(made.args) != len(pattern.operands):
            fail(f"a call of {' or '.join(pattern.operators)}")
            return
        orders = (pattern.operands, pattern.operands[::-1])
        for operands in orders if pattern.either else orders[:1]:
            yield from _all(graph, operands, made.args, known, failures)


def _all(
    graph: Graph, patterns: Sequence[Pattern], exprs: Sequence[Any], found: Found,
    failures: list[tuple[int, str, Any]],
) -> Iterator[Found]:  # fmt: skip
    if not patterns:
        yield found
        return
    for more in _matches(graph, patterns[0], exprs[0], found, failures):
        yield from _all(graph, patterns[1:], exprs[1:], more, failures)


def _described(graph: Graph, expr: Any) -> str:
    """A variable with what it is, or a number, for a reason."""
    if not isinstance(expr, relax.Var):
        number = number_of(expr)
        return f"a {type(expr).__name__}" if number is None else f"{number:g}"
    made = op_name(graph.value.get(expr))
    return f"%{expr.name} ({made})" if made else f"%{expr.name}"
