"""Does an expression look like a pattern?

A search with a list of goals and a list of choices to come back to: alternatives, and both orders
of `add` and `multiply`.  A later goal that fails sends it back to the last choice, so a pattern
that can match does.  Where the first choices lead to a match, it is the one that Relay finds; Relay
does not come back to a choice within an operand that has matched.  Nothing recurses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..ast import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    If,
    IRModule,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    as_node,
    operator_of,
)
from ..equal import structural_equal
from ..infer import infer_types
from ..types import TensorType, Type
from .graph import Graph
from .pattern import (
    AltPattern,
    AttrPattern,
    CallPattern,
    ConstantPattern,
    DataTypePattern,
    DFPattern,
    DominatorPattern,
    ExprPattern,
    FunctionPattern,
    IfPattern,
    LetPattern,
    ShapePattern,
    TupleGetItemPattern,
    TuplePattern,
    TypePattern,
    VarPattern,
    WildcardPattern,
)
from .walk import operators

NodeMap = dict[DFPattern, list[Expr]]
_COMMUTATIVE = ("add", "multiply")


@dataclass(frozen=True)
class _Match:
    """`pattern` matches `node`.  `fresh`: whatever it has matched elsewhere."""

    pattern: DFPattern
    node: Expr
    fresh: bool = False


@dataclass(frozen=True)
class _Bind:
    """`pattern` has matched `node`."""

    pattern: DFPattern
    node: Expr


@dataclass(frozen=True)
class _Operands:
    """All ways to `node` come over the path from the parent."""

    pattern: DominatorPattern
    node: Expr


@dataclass(frozen=True)
class _Way:
    """`node` is the parent, or of the path and so are all ways to it."""

    pattern: DominatorPattern
    node: Expr


@dataclass(frozen=True)
class _Over:
    """`node` dominates the parent that was found."""

    pattern: DominatorPattern
    node: Expr


Goal = _Match | _Bind | _Operands | _Way | _Over
Goals = tuple[Goal, ...]
# What is left to do: a goal and what comes after it.
Left = tuple[Goal, Any] | None


class Matcher:
    """Matches within one expression, whose graph and types it knows."""

    def __init__(self, root: Expr, mod: IRModule | None = None) -> None:
        self.root = root
        self._mod = mod
        self._types: Mapping[Expr, Type] | None = None
        self._bound: NodeMap = {}
        self._marks: set[Goal] = set()  # ways that are known or under way
        self._trail: list[DFPattern | _Way] = []  # what to take back at a choice
        self._candidates: dict[DFPattern, frozenset[str] | None] = {}

    @cached_property
    def graph(self) -> Graph:
        """The expression's graph: only dominators and partitions ask for it."""
        return Graph(self.root)

    def match(self, pattern: DFPattern, node: Expr) -> NodeMap | None:
        """What each part of the pattern has matched; None if the node does not look like it."""
        if pattern not in self._candidates:
            self._candidates[pattern] = operators(pattern)
        names = self._candidates[pattern]
        if names is not None and operator_of(node) not in names:
            return None
        self._bound, self._marks, self._trail = {}, set(), []
        left: Left = (_Match(pattern, node), None)
        choices: list[tuple[Iterator[Goals], Left, int]] = []
        while left is not None:
            goal, rest = left
            found = self._try(self._alternatives(goal), rest, choices)
            while found is None and choices:
                alternatives, rest, length = choices.pop()
                self._take_back(length)
                found = self._try(alternatives, rest, choices)
            if found is None:
                return None
            left = found[0]
        return self._bound

    def _try(
        self,
        alternatives: Iterator[Goals],
        rest: Left,
        choices: list[tuple[Iterator[Goals], Left, int]],
    ) -> tuple[Left] | None:
        """What is left to do with the next alternative; None if there is none."""
        length = len(self._trail)
        for goals in alternatives:
            # It may have more, which are asked for when this one has failed.
            choices.append((alternatives, rest, length))
            for goal in reversed(goals):
                rest = (goal, rest)
            return (rest,)
        return None

    def _take_back(self, length: int) -> None:
        while len(self._trail) > length:
            last = self._trail.pop()
            if isinstance(last, _Way):
                self._marks.remove(last)
            else:
                nodes = self._bound[last]
                nodes.pop()
                if not nodes:
                    del self._bound[last]

    def _alternatives(self, goal: Goal) -> Iterator[Goals]:
        """The lists of goals of which each would do for this one."""
        if isinstance(goal, _Bind):
            self._bound.setdefault(goal.pattern, []).append(goal.node)
            self._trail.append(goal.pattern)
            yield ()
        elif isinstance(goal, _Match):
            known = self._bound.get(goal.pattern)
            if known is not None and not goal.fresh:
                if known[0] is goal.node or known[0] == goal.node:
                    yield ()
                return
            bind = _Bind(goal.pattern, goal.node)
            for goals in _RULES[type(goal.pattern)](self, goal.pattern, goal.node):
                if goal.fresh:
                    goals = tuple(
                        _Match(g.pattern, g.node, True) if isinstance(g, _Match) else g
                        for g in goals
                    )
                yield (*goals, bind)
        elif isinstance(goal, _Operands):
            operands = self._operands(goal.node)
            if operands:
                yield tuple(_Way(goal.pattern, node) for node in operands)
        elif isinstance(goal, _Way):
            if goal in self._marks:
                yield ()
                return
            self._marks.add(goal)
            self._trail.append(goal)
            yield (_Match(goal.pattern.parent, goal.node),)
            self._marks.add(goal)
            self._trail.append(goal)
            yield (
                _Match(goal.pattern.path, goal.node, fresh=True),
                _Operands(goal.pattern, goal.node),
            )
        elif self.graph.dominates(goal.node, self._bound[goal.pattern.parent][0]):
            yield ()

    def _operands(self, node: Expr) -> list[Expr]:
        """Where the ways to a node come from: its inputs, but for a call's variables, constants."""
        inputs = self.graph.inputs[node]
        if not isinstance(node, Call):
            return inputs
        return [n for n in inputs if n != node.op and not isinstance(n, (Var, Constant))]

    # ---- one rule for each kind of pattern -----------------------------------------------------

    def _expr(self, p: ExprPattern, node: Expr) -> Iterator[Goals]:
        if p.expr == node or (not isinstance(node, Op) and structural_equal(p.expr, node)):
            yield ()

    def _var(self, p: VarPattern, node: Expr) -> Iterator[Goals]:
        if isinstance(node, Var) and p.name in ("", node.name):
            yield ()

    def _constant(self, p: ConstantPattern, node: Expr) -> Iterator[Goals]:
        if isinstance(node, Constant):
            yield ()

    def _wildcard(self, p: WildcardPattern, node: Expr) -> Iterator[Goals]:
        yield () if p.pattern is None else (_Match(p.pattern, node),)

    def _alt(self, p: AltPattern, node: Expr) -> Iterator[Goals]:
        yield (_Match(p.left, node),)
        yield (_Match(p.right, node),)

    def _call(self, p: CallPattern, node: Expr) -> Iterator[Goals]:
        if not isinstance(node, Call):
            return
        callee = _Match(p.op, node.op)
        if p.args is None:
            yield (callee,)
            return
        if len(p.args) == len(node.args):
            yield (callee, *_pairs(p.args, node.args))
            if _operator_name(p) in _COMMUTATIVE:
                yield (callee, *_pairs(p.args[::-1], node.args))
        for other in _associated(p, node):
            yield (_Match(other, node),)

    def _function(self, p: FunctionPattern, node: Expr) -> Iterator[Goals]:
        if not isinstance(node, Function):
            return
        params = node.params if p.params is not None else ()
        if len(p.params or ()) == len(params):
            yield (*_pairs(p.params or (), params), _Match(p.body, node.body))

    def _tuple(self, p: TuplePattern, node: Expr) -> Iterator[Goals]:
        if not isinstance(node, Tuple):
            return
        if p.fields is None:
            yield ()
        elif len(p.fields) == len(node.fields):
            yield _pairs(p.fields, node.fields)

    def _item(self, p: TupleGetItemPattern, node: Expr) -> Iterator[Goals]:
        if isinstance(node, TupleGetItem) and p.index in (None, node.index):
            yield (_Match(p.tuple, node.tuple_value),)

    def _if(self, p: IfPattern, node: Expr) -> Iterator[Goals]:
        if isinstance(node, If):
            yield _pairs(p.parts(), (node.cond, node.true_branch, node.false_branch))

    def _let(self, p: LetPattern, node: Expr) -> Iterator[Goals]:
        if isinstance(node, Let):
            yield _pairs(p.parts(), (node.var, node.value, node.body))

    def _attr(self, p: AttrPattern, node: Expr) -> Iterator[Goals]:
        if all(_same(value, _attribute(node, name)) for name, value in p.attrs.items()):
            yield (_Match(p.pattern, node),)

    def _type(self, p: TypePattern, node: Expr) -> Iterator[Goals]:
        if self.type_of(node) == p.type:
            yield (_Match(p.pattern, node),)

    def _shape(self, p: ShapePattern, node: Expr) -> Iterator[Goals]:
        ty = self.type_of(node)
        if isinstance(ty, TensorType) and ty.shape == p.shape:
            yield (_Match(p.pattern, node),)

    def _dtype(self, p: DataTypePattern, node: Expr) -> Iterator[Goals]:
        ty = self.type_of(node)
        if isinstance(ty, TensorType) and ty.dtype == p.dtype:
            yield (_Match(p.pattern, node),)

    def _dominator(self, p: DominatorPattern, node: Expr) -> Iterator[Goals]:
        yield (_Match(p.child, node), _Operands(p, node), _Over(p, node))

    def type_of(self, node: Expr) -> Type | None:
        """A node's type, inferred for the whole expression where the node does not have it."""
        if node.checked_type is not None or isinstance(node, Op):
            return node.checked_type
        if self._types is None:
            self._types = infer_types(self.root, self._mod)
        return self._types.get(node)


_RULES: Mapping[type, Callable[[Matcher, Any, Expr], Iterator[Goals]]] = {
    ExprPattern: Matcher._expr,
    VarPattern: Matcher._var,
    ConstantPattern: Matcher._constant,
    WildcardPattern: Matcher._wildcard,
    AltPattern: Matcher._alt,
    CallPattern: Matcher._call,
    FunctionPattern: Matcher._function,
    TuplePattern: Matcher._tuple,
    TupleGetItemPattern: Matcher._item,
    IfPattern: Matcher._if,
    LetPattern: Matcher._let,
    AttrPattern: Matcher._attr,
    TypePattern: Matcher._type,
    ShapePattern: Matcher._shape,
    DataTypePattern: Matcher._dtype,
    DominatorPattern: Matcher._dominator,
}


def match(pattern: DFPattern, expr: Any) -> bool:
    """Whether an expression, as a whole, looks like a pattern.

    Raises TypeError for what is no expression; ValueError, TypeError where a type is asked for
    and can't be inferred.
    """
    if not isinstance(pattern, DFPattern):
        raise TypeError(f"match: expected a pattern, got {pattern!r}")
    node = as_node(expr, "match: the expression")
    return Matcher(node).match(pattern, node) is not None


def _pairs(patterns: tuple[DFPattern, ...], nodes: tuple[Any, ...]) -> Goals:
    return tuple(_Match(p, n) for p, n in zip(patterns, nodes, strict=True))


def _operator_name(pattern: DFPattern) -> str | None:
    """The operator that a pattern of a call names."""
    if not isinstance(pattern, CallPattern) or not isinstance(pattern.op, ExprPattern):
        return None
    return pattern.op.expr.name if isinstance(pattern.op.expr, Op) else None


def _associated(p: CallPattern, node: Call) -> Iterator[CallPattern]:
    """(a * b) / c for a call that is (a / c) * b, and (a / c) * b for one that is (a * b) / c."""
    wanted, got = _operator_name(p), operator_of(node)
    if {wanted, got} != {"multiply", "divide"} or len(p.args or ()) != 2:
        return
    if not any(operator_of(arg) == wanted for arg in node.args):
        return
    assert p.args is not None
    for index in range(2 if wanted == "multiply" else 1):
        inner, other = p.args[index], p.args[1 - index]
        if not isinstance(inner, CallPattern) or _operator_name(inner) != got or inner.args is None:
            continue
        if wanted == "divide":
            for i in range(2):
                quotient = CallPattern(p.op, (inner.args[i], other))
                yield CallPattern(inner.op, (inner.args[1 - i], quotient))
        else:
            product = CallPattern(p.op, (inner.args[0], other))
            yield CallPattern(inner.op, (product, inner.args[1]))


class _Missing:
    """No attribute of that name: equal to no value."""


def _attribute(node: Expr, name: str) -> Any:
    if isinstance(node, Op):
        value = node.get_attr(name)
        return _Missing if value is None else value
    if isinstance(node, Call) and isinstance(node.attrs, Attrs):
        return getattr(node.attrs, name, _Missing)
    if isinstance(node, Function):
        return node.attrs.get(name, _Missing)
    return _Missing


def _same(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, (list, tuple)) or isinstance(got, (list, tuple)):
        lists = isinstance(wanted, (list, tuple)) and isinstance(got, (list, tuple))
        return lists and len(wanted) == len(got) and all(map(_same, wanted, got))
    return bool(wanted == got)
