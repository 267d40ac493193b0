"""All matches of a pattern in an expression: found, checked against each other, put into functions.

Nodes are asked from the result upwards, so the match that ends last comes first.  A match becomes a
group unless it shares a node with an earlier one, or something outside needs one of its inner nodes
in such a way that the group would have to run both before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...keys import FROM_PATTERN
from ..ast import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Op,
    Tuple,
    Var,
    as_node,
    post_order,
)
from ..rewrite import rewrite as rebuild
from .matcher import Matcher, NodeMap
from .pattern import (
    CallPattern,
    ConstantPattern,
    DFPattern,
    DominatorPattern,
    ExprPattern,
    FunctionPattern,
    TuplePattern,
)
from .walk import post_order as parts_of

Check = Callable[[Expr], Any]


@dataclass(frozen=True)
class Group:
    """One match.

    `inputs` are the nodes that the group's parameters stand for; `body` is the match over them.
    """

    root: Expr
    matched: NodeMap
    inputs: Mapping[Expr, Var]
    body: Expr
    name: str

    def function(self, attrs: Mapping[str, Any]) -> Function:
        """The match as a function of its inputs."""
        given = Attrs({FROM_PATTERN: self.name, **attrs})
        out = self.root.checked_type
        return Function(tuple(self.inputs.values()), self.body, out, attrs=given)


class Grouper:
    """The groups of one expression, pattern after pattern; it has no groups that overlap."""

    def __init__(self, root: Expr, mod: IRModule | None = None) -> None:
        self.root = root
        self.matcher = Matcher(root, mod)

    def groups(self, pattern: DFPattern) -> dict[Expr, Group]:
        """All groups of a pattern, by their last node."""
        found: dict[Expr, Group] = {}
        taken: set[Expr] = set()
        number = 0
        for node in reversed(self.matcher.graph.nodes):
            if node in taken or node in self._partitioned:
                continue
            matched = self.matcher.match(pattern, node)
            if matched is None:
                continue
            group, inner = _group(pattern, node, matched, number)
            number += 1  # a match that is refused has its number too
            if self._is_sound(group, inner):
                found[node] = group
                taken |= inner
        return found

    @cached_property
    def _partitioned(self) -> set[Expr]:
        """What is within functions that a partition has made."""
        found: set[Expr] = set()
        for node in self.matcher.graph.nodes:
            if isinstance(node, Function) and FROM_PATTERN in node.attrs:
                found.update(post_order(node))
        # Operators are one node wherever they stand.
        return {node for node in found if not isinstance(node, Op)}

    def _is_sound(self, group: Group, inner: set[Expr]) -> bool:
        """Whether nothing outside needs an inner node, but for what flows back into the group.

        So groups don't overlap: of a node in two, a user in one would flow into the other over its
        root, which would be in the first then, and so taken.
        """
        graph = self.matcher.graph
        for node in inner:
            if node is group.root:
                continue
            for user in graph.users[node]:
                # What is dominated by the root flows back into the group as an input of it.
                if user not in inner and not graph.dominates(group.root, user):
                    return False
        return True


def _group(
    pattern: DFPattern, root: Expr, matched: NodeMap, number: int
) -> tuple[Group, set[Expr]]:
    """A match as a group, and the nodes that are computed in it."""
    within = _within(pattern, matched)
    inputs: dict[Expr, Var] = {}

    def add(node: Expr, part: DFPattern) -> None:
        embedded = isinstance(node, Constant) and isinstance(part, (ConstantPattern, ExprPattern))
        if embedded or node in within or isinstance(node, (Op, Function)) or node in inputs:
            return
        ty = node.checked_type
        inputs[node] = Var(f"FunctionVar_{number}_{len(inputs)}", ty, checked_type=ty)

    for part in parts_of(pattern):
        for node in matched.get(part, ()):
            if isinstance(part, TuplePattern) and part.fields is None:
                assert isinstance(node, Tuple)
                for operand in node.fields:
                    add(operand, part)
            elif isinstance(part, CallPattern) and part.args is None:
                assert isinstance(node, Call)
                for operand in node.args:
                    add(operand, part)
            elif not part.parts():
                add(node, part)
    names: list[str] = []
    inner: set[Expr] = set()

    def visit(old: Expr, rebuilt: Expr) -> Expr:
        names.append(_name(old))
        if not isinstance(old, (Op, GlobalVar, Function, Constant)):
            inner.add(old)
        return rebuilt

    new: dict[Expr, Expr] = dict(inputs)
    body = rebuild(root, visit, new)
    return Group(root, matched, inputs, body, "".join(names)), inner


def _within(pattern: DFPattern, matched: NodeMap) -> set[Expr]:
    """What a dominator's parent and path, and functions' bodies, have matched: no inputs."""
    found: set[Expr] = set()
    for part in parts_of(pattern):
        if isinstance(part, DominatorPattern):
            found.update(matched.get(part.parent, ()))
            found.update(matched.get(part.path, ()))
        elif isinstance(part, FunctionPattern):
            for node in matched.get(part, ()):
                assert isinstance(node, Function)
                found.update(post_order(node.body))
    return found


def _name(node: Expr) -> str:
    """What a node adds to the name of its group."""
    if isinstance(node, Call):
        return f"{node.op.name}_" if isinstance(node.op, Op) else "Call_"
    return _NAMES.get(type(node).__name__, "").format(node)


_NAMES = {
    "Tuple": "Tuple_",
    "Function": "Function",
    "Let": "Let_",
    "If": "If_",
    "TupleGetItem": "TupleGetItem{0.index}_",
}


def partition(
    pattern: DFPattern,
    expr: Any,
    attrs: Mapping[str, Any] | None = None,
    check: Check = lambda _: True,
) -> Expr:
    """The expression with each match in a function of its own, which is called in its place.

    Parameters
    ----------
    attrs : attributes of these functions, beside `PartitionedFromPattern`.
    check : whether a match, given by its last node, becomes a function.

    A match that shares a node with a later one stays, and one of which something outside needs an
    inner node; constants that the pattern asks for go along, other operands become parameters.

    Raises
    ------
    TypeError : for what is no pattern, or no expression.
    """
    if not isinstance(pattern, DFPattern):
        raise TypeError(f"partition: expected a pattern, got {pattern!r}")
    node = as_node(expr, "partition: the expression")
    return partition_groups(node, Grouper(node).groups(pattern), attrs or {}, check)


def extract(pattern: DFPattern, expr: Expr) -> Function | None:
    """The match of a pattern at an expression as a function of its inputs; None without one.

    Only what the pattern looks at is looked at, however large the expression is.
    """
    matched = Matcher(expr).match(pattern, expr)
    return None if matched is None else _group(pattern, expr, matched, 0)[0].function({})


def partition_groups(
    root: Expr, groups: Mapping[Expr, Group], attrs: Mapping[str, Any], check: Check
) -> Expr:
    """`partition` of groups that are known."""
    chosen = {node: group for node, group in groups.items() if check(node)}
    if not chosen:
        return root
    new: dict[Expr, Expr] = {}

    def change(old: Expr, rebuilt: Expr) -> Expr:
        group = chosen.get(old)
        if group is None:
            return rebuilt
        # A pattern that is a leaf has matched its own input.
        args = tuple(rebuilt if node is old else new[node] for node in group.inputs)
        return Call(group.function(attrs), args, checked_type=old.checked_type)

    return rebuild(root, change, new)
