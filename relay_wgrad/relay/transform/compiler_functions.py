"""Functions for other compilers: out of @main as global ones, marked as done, and back in.

For a compiler that is to see a module's functions one by one before they are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...keys import COMPILER, COMPOSITE, SYMBOL
from ..ast import Call, Expr, Function, GlobalVar, IRModule, Let, Var, post_order
from ..infer import infer_module
from ..rewrite import rewrite
from ..variables import free_vars
from .inline import EXTERN, copied
from .normal_forms import without_lets
from .passes import INFER_TYPE, Pass, PassInfo


def OutlineCompilerFunctionsWithExistingGlobalSymbols(  # noqa: N802
    compiler_filter: str = "",
) -> Pass:
    """Function values with `Compiler` and `global_symbol` as global functions of that name.

    `compiler_filter` : of this compiler alone.  What needs variables from around it stays.

    Raises ValueError for two different functions of one name.
    """
    name = "OutlineCompilerFunctionsWithExistingGlobalSymbols"
    return _pass(name, lambda mod: _outlined(mod, compiler_filter))


def MarkCompilerFunctionsAsExtern(compiler_filter: str = "") -> Pass:  # noqa: N802
    """Global functions with `Compiler` with `Extern=1` instead of all their attributes."""

    def change(mod: IRModule) -> IRModule:
        functions = {
            name: replace(function, attrs={EXTERN: 1}) if _is_for(function, compiler_filter)
            else function
            for name, function in mod.functions.items()
        }  # fmt: skip
        return replace(mod, functions=functions)

    return _pass("MarkCompilerFunctionsAsExtern", change)


def InlineCompilerFunctionsBoundTo(global_vars: Sequence[GlobalVar]) -> Pass:  # noqa: N802
    """These functions, and the composite ones within them, in place of their calls."""
    names = {var.name if isinstance(var, GlobalVar) else str(var) for var in global_vars}
    return _pass("InlineCompilerFunctionsBoundTo", lambda mod: _inlined(mod, names))


def _pass(name: str, change: Callable[[IRModule], IRModule]) -> Pass:
    return Pass(lambda mod, _: infer_module(change(mod)), PassInfo(name, 0, (INFER_TYPE,)))


def _is_for(node: Expr, compiler: str) -> bool:
    found = node.attrs.get(COMPILER) if isinstance(node, Function) else None
    return bool(found) and compiler in ("", str(found))


def _outlined(mod: IRModule, compiler: str) -> IRModule:
    made: dict[str, Function] = {}
    origins: dict[str, Expr] = {}

    def is_one(node: Expr) -> bool:
        if not _is_for(node, compiler) or free_vars(node):
            return False
        return bool(node.attrs.get(SYMBOL))  # type: ignore[union-attr]

    def change(old: Expr, node: Expr) -> Expr:
        if not is_one(old):
            return node
        assert isinstance(node, Function)
        name = str(node.attrs[SYMBOL])
        if name in mod.functions or origins.setdefault(name, old) is not old:
            raise ValueError(
                f"OutlineCompilerFunctionsWithExistingGlobalSymbols: two functions are @{name}"
            )
        made[name] = node
        return GlobalVar(name)

    functions = {}
    for name, function in mod.functions.items():
        if is_one(function):
            functions[name] = function
            continue
        lets = {n.var: n.value for n in post_order(function) if isinstance(n, Let)}

        def names_one(var: Var, lets: dict[Var, Expr] = lets) -> bool:
            return is_one(lets[var])

        out = rewrite(without_lets(function, names_one), change)
        assert isinstance(out, Function)
        functions[name] = out
    return replace(mod, functions={**functions, **made})


def _inlined(mod: IRModule, names: set[str]) -> IRModule:
    bodies: dict[str, Function] = {}
    for name in names & set(mod.functions):
        out = rewrite(mod.functions[name], _without_composite)
        assert isinstance(out, Function)
        bodies[name] = out

    def change(old: Expr, node: Expr) -> Expr:
        if not isinstance(node, Call) or not isinstance(node.op, GlobalVar):
            return node
        function = bodies.get(node.op.name)
        if function is None:
            return node
        return copied(function.body, dict(zip(function.params, node.args, strict=True)))

    functions = {}
    for name, function in mod.functions.items():
        if name not in names:
            out = rewrite(function, change)
            assert isinstance(out, Function)
            functions[name] = out
    return replace(mod, functions=functions)


def _without_composite(old: Expr, node: Expr) -> Expr:
    is_call = isinstance(node, Call) and isinstance(node.op, Function)
    if not is_call or not node.op.attrs.get(COMPOSITE):  # type: ignore[union-attr]
        return node
    assert isinstance(node, Call)
    assert isinstance(node.op, Function)
    return copied(node.op.body, dict(zip(node.op.params, node.args, strict=True)))
