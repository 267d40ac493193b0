"""A Relay module as it was before its types were inferred."""

from __future__ import annotations

from dataclasses import replace

from relay_wgrad.relay import ast
from relay_wgrad.relay.rewrite import rewrite


def stripped(mod: ast.IRModule, annotations: bool = False) -> ast.IRModule:
    """Without what inference tells; on request without the types that lets state, too."""
    params = {p for f in mod.functions.values() for p in f.params}
    params |= {
        p
        for f in mod.functions.values()
        for n in ast.post_order(f)
        if isinstance(n, ast.Function)
        for p in n.params
    }

    def change(old: ast.Expr, node: ast.Expr) -> ast.Expr:
        # Constants keep their place in the metadata.
        if isinstance(node, (ast.Op, ast.GlobalVar, ast.Constant)):
            return node
        changes = {"checked_type": None}
        if isinstance(node, ast.Function):
            changes["ret_type"] = None
        if isinstance(node, ast.Var) and annotations and old not in params:
            changes["type_annotation"] = None
        return replace(node, **changes)

    new: dict[ast.Expr, ast.Expr] = {}
    functions = {k: rewrite(f, change, new) for k, f in mod.functions.items()}
    return ast.IRModule(functions, attrs=mod.attrs, metadata=mod.metadata)
