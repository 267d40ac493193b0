"""How deep a network is."""

from __future__ import annotations

from collections.abc import Collection

from .ast import Call, Expr, IRModule, Let, Op, Var, children, post_order
from .iterative_walks import order


def count_layers(expr: Expr | IRModule, valid_ops: Collection[str]) -> int:
    """The most calls of these operators on one way through a program: of `@main`, for a module.

    Raises KeyError for a module without `@main`.
    """
    root: Expr = expr["main"] if isinstance(expr, IRModule) else expr
    values = {node.var: node.value for node in post_order(root) if isinstance(node, Let)}
    depth: dict[Expr, int] = {}

    def below(node: Expr) -> tuple[Expr, ...]:
        return (node.value, node.body) if isinstance(node, Let) else children(node)

    for node in order(root, below):
        if isinstance(node, Var) and node in values:
            depth[node] = depth[values[node]]
        elif node not in depth:
            is_layer = isinstance(node, Call) and isinstance(node.op, Op)
            own = int(is_layer and node.op.name in valid_ops)  # type: ignore[union-attr]
            depth[node] = own + max((depth[child] for child in below(node)), default=0)
    return depth[root]
