"""Global functions in place of their calls, function values as global ones, and `fn`s added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...keys import COMPILER, INLINE
from ..ast import Call, Expr, Function, GlobalVar, IRModule, Let, Var, children, post_order
from ..call_graph import CallGraph
from ..rewrite import rewrite, with_children
from ..types import FuncType
from ..variables import free_vars
from .user_hooks import is_kernel

EXTERN = "Extern"


def inline_globals(mod: IRModule) -> IRModule:
    """The module with functions that are marked `Inline` in place of their calls.

    One that calls itself, or a function that stays, stays too.  One for a compiler is inlined as
    a function value.  What nothing calls any more is gone.
    """
    graph = CallGraph(mod)
    functions = dict(mod.functions)
    ready: set[str] = set()
    for name in graph.order():
        functions[name] = _inlined(functions[name], {n: functions[n] for n in ready})
        calls = any(isinstance(n, GlobalVar) for n in post_order(functions[name]))
        if functions[name].attrs.get(INLINE) and not calls:
            ready.add(name)
    still = {
        node.name
        for name, function in functions.items()
        if name not in ready
        for node in post_order(function)
        if isinstance(node, GlobalVar)
    }
    gone = {name for name in ready if graph.ref_count(name) and name not in still}
    kept = {name: functions[name] for name in mod.functions if name not in gone}
    return replace(mod, functions=kept)


def _inlined(function: Function, ready: dict[str, Function]) -> Function:
    def change(old: Expr, node: Expr) -> Expr:
        if isinstance(node, GlobalVar) and node.name in ready:
            return fresh(ready[node.name])
        if not (isinstance(node, Call) and isinstance(old, Call)):
            return node
        if not (isinstance(old.op, GlobalVar) and isinstance(node.op, Function)):
            return node
        callee = node.op
        if callee.attrs.get(COMPILER) or callee.attrs.get(EXTERN):
            return replace(node, op=replace(callee))
        known: dict[Expr, Expr] = dict(zip(callee.params, node.args, strict=True))
        # Bound anew for each call: a variable is bound once.
        return copied(callee.body, known)

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


def fresh(function: Function) -> Function:
    """The function with variables of its own."""
    out = copied(function, {})
    assert isinstance(out, Function)
    return out


def copied(root: Expr, known: dict[Expr, Expr]) -> Expr:
    """An expression of new nodes, but for leaves and what is known."""
    new = dict(known)
    for node in post_order(root):
        bound = (node.var,) if isinstance(node, Let) else ()
        for var in node.params if isinstance(node, Function) else bound:
            if var not in known:
                new[var] = replace(var)
    for node in post_order(root):
        if node in new:
            continue
        below = children(node)
        new[node] = with_children(node, new) if below else node
    return new[root]


def lambda_lift(mod: IRModule) -> IRModule:
    """The module with a global function for each function value.

    One that needs variables from around it becomes a function of these, whose result is the
    function.  One that a `let` gives a name, and that calls itself by it, calls the global one.
    """
    functions: dict[str, Function] = {}
    count = 0

    def name() -> str:
        nonlocal count
        count += 1
        while f"lifted_name{count}" in mod.functions:
            count += 1
        return f"lifted_name{count}"

    for key, function in mod.functions.items():
        functions[key] = function
        if not (is_kernel(function) or function.attrs.get(COMPILER)):
            functions[key] = _lifted(function, name, functions)
    return replace(mod, functions=functions)


def _lifted(
    function: Function, name: Callable[[], str], functions: dict[str, Function]
) -> Function:
    bound = {n.value: n.var for n in post_order(function) if isinstance(n, Let)}

    def change(old: Expr, node: Expr) -> Expr:
        if not isinstance(node, Function) or old is function or is_kernel(node):
            return node
        own = bound.get(old)
        captured = [var for var in free_vars(node) if var is not own]
        lifted = GlobalVar(name())
        made: Expr = Call(lifted, tuple(captured)) if captured else lifted
        inner = node
        if own is not None and own in free_vars(node):
            renamed = rewrite(node.body, lambda _, rebuilt: rebuilt, {own: made})
            inner = replace(node, body=renamed)
        if captured:
            ret = old.checked_type
            inner = Function(tuple(captured), inner, ret if isinstance(ret, FuncType) else None)
        functions[lifted.name] = inner if not captured else fresh(inner)
        return made

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


def eta_expand(function: Function, mod: IRModule) -> Function:
    """The function with `fn (x) { @f(x) }` for a global function that stands for a value."""
    called = {n.op for n in post_order(function) if isinstance(n, Call)}

    def change(old: Expr, node: Expr) -> Expr:
        if not isinstance(old, GlobalVar) or old in called or old.name not in mod.functions:
            return node
        callee = mod.functions[old.name]
        params = tuple(Var(p.name, p.type_annotation or p.checked_type) for p in callee.params)
        return Function(params, Call(old, params), callee.ret_type)

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out
