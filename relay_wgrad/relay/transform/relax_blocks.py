"""The scopes of a Relay function as Relax blocks, node by node: for analyses that know Relax.

A scope is a function's body, a branch, or a `let` that is an operand.  Its nodes are those that it
needs and no scope around it; what comes from elsewhere is a parameter of the block, and what is
needed elsewhere is one of its results.  A tensor of the block is one node's value, however the
scope is written: with `let`, with shared nodes, or with both.

What has no form in a block (a branch, a call of a function, a nested `let`, an operator that Relax
can't say) is a call of something unknown, with the operands that it has in the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ...graph.walk import bindings_of
from ..ast import Call, Constant, Expr, Function, GlobalVar, If, Let, Op, Tuple, TupleGetItem, Var
from ..iterative_walks import order
from ..records import lookup
from ..records.annotation import BEGIN, END
from ..sizes import identifier, relax_type
from ..types import FuncType, Type

# In Relax these may be their operand.  A program that has them means them: the end of a region, of
# a broadcast's gradient.
_THEMSELVES = frozenset({BEGIN, END, "collapse_sum_to", "collapse_sum_like"})


@dataclass(frozen=True)
class Block:
    """One scope.

    `func` : a Relax function of one block; `nodes` : the node that a tensor of it is, the first if
    several are the same one; `source` : the node by which what comes later in the scope can use it;
    `hidden` : variables that are no node, but a step of one.
    """

    func: relax.Function
    nodes: Mapping[Any, Expr]
    source: Mapping[Any, Expr]
    hidden: frozenset[relax.Var]


def type_of(node: Expr) -> Type:
    """The type that inference found."""
    assert node.checked_type is not None, node
    return node.checked_type


def relax_blocks(
    function: Function, wanted: Callable[[Expr], bool], closed: Callable[[Function], bool]
) -> Iterator[Block]:
    """The scopes that have a `wanted` node.  Needs types.

    Functions that are `closed` are not entered.  Time is linear in the number of nodes and uses.
    """
    for scope in _Scopes(closed).all(function):
        if any(map(wanted, scope.steps)):
            yield _Writer(scope).block()


@dataclass(eq=False)
class _Scope:
    """Nodes in the order in which they are computed; a `let` stands where it binds.

    `inputs` : nodes of other scopes; `shared` : nodes that other scopes need, and the result;
    `named` : the variables of values that nothing uses before they are bound.
    """

    steps: list[Expr] = field(default_factory=list)
    inputs: dict[Expr, None] = field(default_factory=dict)
    shared: list[Expr] = field(default_factory=list)
    named: dict[Expr, Var] = field(default_factory=dict)


class _Scopes:
    """Finds a function's scopes, each before those within it: so a shared node is the outer's."""

    def __init__(self, closed: Callable[[Function], bool]) -> None:
        self.closed = closed
        self.owner: dict[Expr, _Scope] = {}
        self.waiting: list[Expr] = []

    def all(self, function: Function) -> list[_Scope]:
        found = []
        self._within(function)
        while self.waiting:
            found.append(self._scope(self.waiting.pop()))
        return found

    def _scope(self, body: Expr) -> _Scope:
        scope = _Scope()
        while isinstance(body, Let) and body.var not in self.owner:
            if body.value not in self.owner and not isinstance(body.value, Var):
                scope.named[body.value] = body.var
            self._add(scope, body.value)
            self.owner[body.var] = scope
            scope.steps.append(body)
            body = body.body
        self._add(scope, body)
        scope.shared.append(body)
        return scope

    def _add(self, scope: _Scope, root: Expr) -> None:
        for node in order(root, lambda n: () if n in self.owner else _operands(n)):
            owner = self.owner.get(node)
            if owner is None:
                self.owner[node] = scope
                scope.steps.append(node)
                self._within(node)
            elif owner is not scope:
                scope.inputs[node] = None
                owner.shared.append(node)

    def _within(self, node: Expr) -> None:
        if isinstance(node, If):
            self.waiting += (node.true_branch, node.false_branch)
        elif isinstance(node, Let):
            self.waiting.append(node)
        elif isinstance(node, Function) and not self.closed(node):
            self.waiting.append(node.body)


def _operands(node: Expr) -> tuple[Expr, ...]:
    """What a node needs in its own scope."""
    if isinstance(node, Call):
        return node.args if isinstance(node.op, (Op, GlobalVar)) else (node.op, *node.args)
    if isinstance(node, If):
        return (node.cond,)
    if isinstance(node, Tuple):
        return node.fields
    return (node.tuple_value,) if isinstance(node, TupleGetItem) else ()


class _Writer:
    """Writes one scope's block.  Functions are no values in it."""

    def __init__(self, scope: _Scope) -> None:
        self.scope = scope
        self.bb = relax.BlockBuilder()
        self.values: dict[Expr, Any] = {}
        self.nodes: dict[Any, Expr] = {}
        self.source: dict[Any, Expr] = {}

    def block(self) -> Block:
        params = []
        for node in [*(n for n in self.scope.steps if isinstance(n, Var)), *self.scope.inputs]:
            if not isinstance(type_of(node), FuncType):
                name = identifier(_name(node))
                params.append(relax.Var(name, relax_type(name, type_of(node))))
                self._is(node, params[-1])
        with self.bb.function("main", params):
            for node in self.scope.steps:
                if isinstance(node, Let):
                    if node.value in self.values:
                        self.values[node.var] = self.values[node.value]
                elif not isinstance(node, (Var, Function, GlobalVar)):
                    self._is(node, self._value(node))
            shared = [self.values[n] for n in self.scope.shared if n in self.values]
            self.bb.emit_func_output(relax.Tuple(shared))
        func = self.bb.get()["main"]
        variables = (binding.var for binding in bindings_of(func))
        hidden = frozenset(var for var in variables if var not in self.nodes)
        return Block(func, self.nodes, self.source, hidden)

    def _is(self, node: Expr, value: Any) -> None:
        self.values[node] = value
        if not isinstance(value, relax.Tuple):
            self.nodes.setdefault(value, node)
            self.source.setdefault(value, self.scope.named.get(node, node))

    def _value(self, node: Expr) -> Any:
        """A node's value, with the bindings that it needs."""
        operands = [self.values[n] for n in _operands(node) if n in self.values]
        known = len(operands) == len(_operands(node))
        if isinstance(node, Constant):
            return relax.const(tvm.runtime.tensor(node.data))
        if isinstance(node, Tuple) and known:
            return relax.Tuple(operands)
        if isinstance(node, TupleGetItem) and known:
            (value,) = operands
            if isinstance(value, relax.Tuple):
                return value.fields[node.index]
            return self._bound(node, relax.TupleGetItem(value, node.index))
        if isinstance(node, Call) and isinstance(node.op, Op) and known:
            name, types = node.op.name, [type_of(arg) for arg in node.args]
            # What has no form (an unknown size, say) is like what is no operator.
            with suppress(TypeError, ValueError):
                if name not in _THEMSELVES:
                    made = lookup(name).build(self.bb, operands, node.attrs, types, type_of(node))
                    return self._bound(node, made)
        ty = relax_type(identifier(_name(node)), type_of(node))
        return self._bound(node, relax.op.call_pure_packed("unknown", *operands, ty_args=ty))

    def _bound(self, node: Expr, value: Any) -> Any:
        var = self.scope.named.get(node)
        return self.bb.emit(value, identifier(var.name if var is not None else _name(node)))


def _name(node: Expr) -> str:
    """What a node is called in reports, unless a `let` names it."""
    if isinstance(node, (Var, GlobalVar)):
        return node.name
    if isinstance(node, Call):
        return node.op.name.rpartition(".")[2] if isinstance(node.op, Op) else "call"
    return type(node).__name__.lower()
