"""Graph normal form, A-normal form, and functions inlined where they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...keys import COMPILER, PRIMITIVE
from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
)
from ..infer import fail
from ..iterative_walks import order, run
from ..rewrite import with_children

_DEPTH = 200  # of calls of functions within functions


def to_graph_normal_form(function: Function) -> Function:
    """The function without `let`: what a variable is bound to becomes a shared node.

    A binding that nothing uses is gone.
    """
    return without_lets(function, lambda var: True)


def without_lets(function: Function, chosen: Callable[[Var], bool]) -> Function:
    """The function with the value in place of each chosen variable that a `let` binds."""
    bound: dict[Expr, Expr] = {}

    def below(node: Expr) -> tuple[Expr, ...]:
        if isinstance(node, Let) and chosen(node.var):
            bound[node.var] = node.value
            return (node.body,)
        return (bound[node],) if node in bound else children(node)

    new: dict[Expr, Expr] = {}
    for node in order(function, below):
        if isinstance(node, Let) and node.var in bound:
            new[node] = new[node.body]
        elif node in bound:
            if bound[node] not in new:
                fail(node, f"{node!r} is bound to a value that needs it: recursion")
            new[node] = new[bound[node]]
        else:
            new[node] = with_children(node, new)
    out = new[function]
    assert isinstance(out, Function)
    return out


def _outwards(scope: Any) -> Iterator[Any]:
    """A scope, and those around it."""
    while scope is not None:
        yield scope
        scope = scope.outer


@dataclass
class _Scope:
    """The bindings of one body: a function's, or a branch's.  `outer` is the body around it."""

    outer: _Scope | None = None
    bindings: list[tuple[Var, Expr]] = field(default_factory=list)
    known: dict[Expr, Expr] = field(default_factory=dict)
    taken: set[Expr] = field(default_factory=set)  # variables and values bound in any scope

    def __post_init__(self) -> None:
        if self.outer is not None:
            self.taken = self.outer.taken

    def find(self, node: Expr) -> Expr | None:
        return next((s.known[node] for s in _outwards(self) if node in s.known), None)

    def bind(self, var: Var, value: Expr) -> Var:
        if var in self.taken:
            # A `let` that two branches share: each gets one of its own.
            self.known[var] = var = replace(var)
        if value in self.taken and isinstance(value, (Call, Tuple, TupleGetItem)):
            value = replace(value)
        self.taken |= {var, value}
        self.bindings.append((var, value))
        return var

    def close(self, result: Expr) -> Expr:
        for var, value in reversed(self.bindings):
            result = Let(var, value, result)
        return result


def to_a_normal_form(function: Function) -> Function:
    """The function with a `let` for each value, in the order of evaluation; operands are variables.

    Functions that are one operator's kernel (`Primitive`) and those for a compiler stay whole.
    """
    out: Function = run(_function(function, None))
    return out


def _function(function: Function, outer: _Scope | None) -> Any:
    if function.attrs.get(PRIMITIVE) or function.attrs.get(COMPILER):
        return function
    body = yield _body(function.body, outer)
    return replace(function, body=body)


def _body(node: Expr, outer: _Scope | None) -> Any:
    scope = _Scope(outer)
    result = yield _atom(node, scope, None)
    return scope.close(result)


def _atom(node: Expr, scope: _Scope, var: Var | None) -> Any:
    """The variable of a node's value, bound in this scope: `var` if a `let` has it already."""
    found = scope.find(node)
    if found is not None:
        return found if var is None else scope.bind(var, found)
    if isinstance(node, (Var, GlobalVar, Op)):
        return node if var is None else scope.bind(var, node)
    first, lets = node, []
    while isinstance(node, Let):
        lets.append(node)
        yield _atom(node.value, scope, node.var)
        node = node.body
    if lets:
        result = yield _atom(node, scope, var)
        scope.known[first] = result
        return result
    value: Expr
    if isinstance(node, Function):
        value = yield _function(node, scope)
    elif isinstance(node, If):
        cond = yield _atom(node.cond, scope, None)
        true = yield _body(node.true_branch, scope)
        false = yield _body(node.false_branch, scope)
        value = replace(node, cond=cond, true_branch=true, false_branch=false)
    elif isinstance(node, Constant):
        value = node
    else:
        new: dict[Expr, Expr] = {}
        for child in children(node):
            new[child] = yield _atom(child, scope, None)
        value = with_children(node, new)
    bound = scope.bind(var if var is not None else Var("x", node.checked_type), value)
    scope.known[node] = bound
    return bound


# ---- inlining --------------------------------------------------------------------------------


@dataclass
class _Frame:
    """What the nodes of one activation of a function became; `outer` is around the function."""

    outer: _Frame | None = None
    depth: int = 0
    known: dict[Expr, Expr] = field(default_factory=dict)
    functions: dict[Expr, tuple[Function, _Frame]] = field(default_factory=dict)

    def find(self, node: Expr) -> Expr | None:
        return next((f.known[node] for f in _outwards(self) if node in f.known), None)

    def callee(self, node: Expr) -> tuple[Function, _Frame] | None:
        return next((f.functions[node] for f in _outwards(self) if node in f.functions), None)


def inlined(function: Function, mod: IRModule) -> Function:
    """The function as one graph: no `let`, and every function that it calls in place of the call.

    Raises ValueError for recursion, and a function that is used other than called.
    """
    body = run(_inlined(function.body, _Frame(), mod))
    return replace(function, body=body)


def _inlined(node: Expr, frame: _Frame, mod: IRModule) -> Any:
    found = frame.find(node)
    if found is not None:
        return found
    out: Expr
    if isinstance(node, Let):
        out = yield _inlined_lets(node, frame, mod)
    elif isinstance(node, Call) and not isinstance(node.op, Op):
        out = yield _inlined_call(node, frame, mod)
    elif isinstance(node, (Function, GlobalVar)) or frame.callee(node) is not None:
        fail(node, "a function that is not called where it stands has no gradient")
    else:
        new: dict[Expr, Expr] = {}
        for child in children(node):
            new[child] = child if isinstance(child, Op) else (yield _inlined(child, frame, mod))
        out = with_children(node, new)
    frame.known[node] = out
    return out


def _inlined_lets(node: Let, frame: _Frame, mod: IRModule) -> Any:
    body: Expr = node
    while isinstance(body, Let):
        callee = _callee(body.value, frame, mod)
        if callee is not None:
            frame.functions[body.var] = callee
        else:
            frame.known[body.var] = yield _inlined(body.value, frame, mod)
        body = body.body
    return (yield _inlined(body, frame, mod))


def _callee(node: Expr, frame: _Frame, mod: IRModule) -> tuple[Function, _Frame] | None:
    """The function that a node is, with the frame around it; None if it is none."""
    if isinstance(node, GlobalVar):
        if node.name not in mod.functions:
            fail(node, f"there is no function @{node.name}")
        return mod.functions[node.name], _Frame()
    return (node, frame) if isinstance(node, Function) else frame.callee(node)


def _inlined_call(node: Call, frame: _Frame, mod: IRModule) -> Any:
    callee = _callee(node.op, frame, mod)
    if callee is None:
        fail(node, "only functions that stand where they are called, or in a `let`, have gradients")
    function, outer = callee
    if frame.depth >= _DEPTH:
        fail(node, f"calls nest deeper than {_DEPTH}: recursion has no gradient")
    inner = _Frame(outer, frame.depth + 1)
    for param, arg in zip(function.params, node.args, strict=True):
        passed = _callee(arg, frame, mod)
        if passed is not None:
            inner.functions[param] = passed
        else:
            inner.known[param] = yield _inlined(arg, frame, mod)
    return (yield _inlined(function.body, inner, mod))
