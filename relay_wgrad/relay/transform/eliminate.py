"""Common subexpressions, dead bindings and unused functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Let,
    MetaAttrs,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from ..iterative_walks import order
from ..op.registration import is_stateful
from ..rewrite import rewrite
from .normal_forms import without_lets


def eliminate_common_subexpr(function: Function, fskip: Callable[[Expr], bool] | None) -> Function:
    """The function with one node for all calls of an operator with the same operands.

    Operands are the same if they are one node, scalars of one value, or tuples of such; likewise
    the fields of a tuple.  As in Relay a call without operands (`zeros`) stays as it is.  A
    function that is a value shares no node with what is around it.  Two calls of a stateful
    operator (dropout) are two.
    """
    scope = owners(function)
    first: dict[Any, Expr] = {}

    def change(old: Expr, node: Expr) -> Expr:
        if isinstance(node, Call) and isinstance(node.op, Op) and node.args:
            if is_stateful(node.op.name):
                return node
            key: Any = (node.op.name, _frozen(node.attrs), tuple(map(_operand, node.args)))
        elif isinstance(node, TupleGetItem):
            key = (node.tuple_value, node.index)
        else:
            return node
        if fskip is not None and fskip(node):
            return node
        return first.setdefault((scope[old], key), node)

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


def owners(root: Function) -> dict[Expr, Function]:
    """The function in whose body a node stands; of several, one."""
    found: dict[Expr, Function] = {}
    for function in post_order(root):
        if isinstance(function, Function):
            for node in post_order(function.body, lambda n: not isinstance(n, Function)):
                found[node] = function
    return found


def _operand(node: Expr) -> Any:
    """What two operands that are the same have in common."""
    if isinstance(node, Tuple):
        return tuple(map(_scalar, node.fields))
    return _scalar(node)


def _scalar(node: Expr) -> Any:
    if isinstance(node, Constant) and node.data.ndim == 0:
        return (str(node.data.dtype), node.data.tobytes())
    return node


def _frozen(value: Any) -> Any:
    """A hashable value; 1, 1.0 and True are three."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_frozen, value))
    if hasattr(value, "items"):
        key = value.type_key if isinstance(value, MetaAttrs) else None
        return (key, *sorted((name, _frozen(item)) for name, item in value.items()))
    return (type(value).__name__, repr(value))


def dead_code_elimination(
    function: Function, inline_once: bool, ignore_impurity: bool = False
) -> Function:
    """The function without bindings that its result does not need.

    A value that calls a stateful operator stays bound where it is, but with `ignore_impurity`.

    With `inline_once`, a value that is used once takes its variable's place, but not within another
    function than the `let`.
    """
    uses: dict[Expr, int] = {}
    users: dict[Expr, Expr] = {}
    bound: dict[Expr, Let] = {}
    impure = set() if ignore_impurity else _impure(function)

    def below(node: Expr) -> tuple[Expr, ...]:
        # A variable leads to its value: what is reached so is what the result needs.
        user = node
        if isinstance(node, Let):
            bound[node.var] = node
            kept = node.value in impure
            down: tuple[Expr, ...] = (node.var, node.body) if kept else (node.body,)
        elif node in bound:
            user = bound[node]
            down = (bound[node].value,)
        else:
            down = children(node)
        for child in down:
            uses[child] = uses.get(child, 0) + 1
            users[child] = user
        return down

    for _ in order(function, below):
        pass
    scope = owners(function) if inline_once else {}

    def chosen(var: Var) -> bool:
        if bound[var].value in impure:
            return False
        if var not in uses:
            return True
        if not inline_once or uses[var] > 1:
            return False
        user = users[var]
        here = user if isinstance(user, Function) else scope[user]
        return here is scope[bound[var]]

    return without_lets(function, chosen)


def _impure(function: Function) -> set[Expr]:
    """The nodes that call a stateful operator, or are computed from one that does."""
    out: set[Expr] = set()
    for node in post_order(function):
        own = isinstance(node, Call) and isinstance(node.op, Op) and is_stateful(node.op.name)
        if own or any(child in out for child in children(node)):
            out.add(node)
    return out


def remove_unused_functions(mod: IRModule, entries: Sequence[str]) -> IRModule:
    """The module without functions that none of the entries calls, however far away."""
    missing = [name for name in entries if name not in mod.functions]
    if missing:
        raise ValueError(
            f"RemoveUnusedFunctions: no function @{missing[0]};"
            f" there are {', '.join(mod.functions)}"
        )
    seen: set[str] = set()
    stack = list(entries)
    while stack:
        name = stack.pop()
        if name in seen or name not in mod.functions:
            continue
        seen.add(name)
        stack += [n.name for n in post_order(mod.functions[name]) if isinstance(n, GlobalVar)]
    kept = {name: function for name, function in mod.functions.items() if name in seen}
    return replace(mod, functions=kept)
