"""`recast`: chosen operators in another dtype, with casts around each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ..ast import Call, Expr, Function, IRModule, Let, Op, Tuple, Var, children, operator_of
from ..infer import infer_module, infer_types
from ..iterative_walks import order
from ..layer_count import count_layers
from ..make import call
from ..records import lookup
from ..rewrite import rewrite
from ..types import TensorType


def recast(
    expr: Any,
    dtype: str,
    out_dtype: str,
    ops: Sequence[str] | None = None,
    skip_layers: Collection[int] | None = None,
) -> Any:
    """An expression, or a module's @main, with chosen operators in `dtype`; all else as it was.

    Their operands are cast to it, and their results back: for measurements, as integers lose most
    of what floats are.

    ops : names, by default `nn.conv2d` alone.
    out_dtype : of the sums of those that have the attribute `out_dtype`.
    skip_layers : which are left, counted from the parameters, or from the end if negative.

    Raises ValueError for an unknown operator.
    """
    names = ["nn.conv2d"] if ops is None else [str(name) for name in ops]
    for name in names:
        lookup(name)
    is_module = isinstance(expr, IRModule)
    mod = expr if is_module else None
    root: Expr = expr["main"] if is_module else expr
    depths = _depths(root, names)
    count = count_layers(root, names)
    left = {n + count if n < 0 else n for n in skip_layers or ()}
    types = infer_types(root, mod)

    def change(old: Expr, node: Expr) -> Expr:
        name = operator_of(node)
        made = types.get(old)
        if name not in names or count - depths[old] - 1 in left or not isinstance(made, TensorType):
            return node
        assert isinstance(node, Call)
        args = [_cast(arg, dtype) for arg in node.args]
        if None in args:
            return node
        attrs = lookup(name).read(node.attrs)
        if "out_dtype" in attrs:
            out = replace(call(name, *args, **{**attrs, "out_dtype": out_dtype}), span=node.span)
        else:
            out = replace(node, args=tuple(args))  # type: ignore[arg-type]
        return call("cast", out, dtype=made.dtype)

    out = rewrite(root, change)
    if not is_module:
        return out
    assert isinstance(out, Function)
    return infer_module(replace(expr, functions={**expr.functions, "main": out}))


def _cast(arg: Expr, dtype: str) -> Expr | None:
    """An argument in another dtype; None for a tuple of which the fields are not seen."""
    if isinstance(arg, Tuple):
        return replace(arg, fields=tuple(call("cast", f, dtype=dtype) for f in arg.fields))
    return call("cast", arg, dtype=dtype)


def _depths(root: Expr, names: Collection[str]) -> dict[Expr, int]:
    """How many calls of these operators are on the longest way from a node to the result."""
    lets: dict[Expr, Expr] = {}

    def below(node: Expr) -> tuple[Expr, ...]:
        if isinstance(node, Let):
            lets[node.var] = node.value
            return (node.body,)
        return (lets[node],) if isinstance(node, Var) and node in lets else children(node)

    depths: dict[Expr, int] = {root: 0}
    for node in reversed(list(order(root, below))):
        is_layer = isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in names
        for child in below(node):
            depths[child] = max(depths.get(child, 0), depths[node] + is_layer)
    return depths
