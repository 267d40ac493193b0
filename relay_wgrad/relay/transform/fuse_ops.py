"""Operators that one kernel computes as functions of their own (`Primitive`), and back again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...keys import PRIMITIVE
from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from ..infer import fail
from ..records import REGISTRY
from ..records.annotation import STOP
from ..rewrite import rewrite, with_children
from .fusion_groups import Node, groups
from .user_hooks import is_kernel

RESHAPE_ONLY = "relay.reshape_only"


@dataclass
class _Group:
    params: list[Var] = field(default_factory=list)
    args: list[Expr] = field(default_factory=list)

    def param(self, arg: Expr, old: Expr) -> Var:
        for param, known in zip(self.params, self.args, strict=True):
            if known is arg:
                return param
        self.params.append(Var(f"p{len(self.params)}", old.checked_type))
        self.args.append(arg)
        return self.params[-1]


def fuse_ops(function: Function, opt_level: int, most: int, link_params: bool) -> Function:
    """The function with a call of a `Primitive` function for each group of operators.

    Needs types.  `link_params` puts constants into the functions that take them.
    """
    nodes = groups(function, opt_level, most)
    made: dict[Node, _Group] = {}
    new: dict[Expr, Expr] = {}

    def inside(expr: Expr, root: Node, parts: Sequence[Expr]) -> Expr:
        """The expression over what its operands are within the group's function."""
        known: dict[Expr, Expr] = {}
        for part in parts:
            arg = new[part]
            if nodes[part].root() is root or (link_params and isinstance(arg, Constant)):
                known[part] = arg
            else:
                known[part] = made.setdefault(root, _Group()).param(arg, part)
        if isinstance(expr, Call):
            known[expr.op] = expr.op
        return replace(with_children(expr, known), checked_type=None)

    for expr in post_order(function, lambda n: not is_kernel(n)):
        if is_kernel(expr):
            new[expr] = expr
            continue
        root = nodes[expr].root()
        last = root is nodes[expr]
        if isinstance(expr, Call) and expr.op == Op(STOP):
            new[expr] = new[expr.args[0]]
        elif isinstance(expr, Call) and isinstance(expr.op, Op):
            body = inside(expr, root, expr.args)
            new[expr] = _kernel(made.pop(root, _Group()), expr, body) if last else body
        elif isinstance(expr, Tuple) and not last:
            new[expr] = inside(expr, root, expr.fields)
        elif isinstance(expr, TupleGetItem) and nodes[expr.tuple_value].root() is root:
            body = inside(expr, root, [expr.tuple_value])
            new[expr] = _kernel(made.pop(root, _Group()), expr, body) if last else body
        elif isinstance(expr, TupleGetItem) and not last:
            new[expr] = inside(expr, root, [expr.tuple_value])
        else:
            new[expr] = with_children(expr, {child: new[child] for child in children(expr)})
    out = new[function]
    assert isinstance(out, Function)
    return out


def _kernel(group: _Group, old: Expr, body: Expr) -> Call:
    calls = [n for n in post_order(body) if isinstance(n, Call)]
    attrs = {PRIMITIVE: int(bool(calls))}
    names = [c.op.name for c in calls if isinstance(c.op, Op)]
    if calls and all(name in REGISTRY and REGISTRY[name].reshapes for name in names):
        attrs[RESHAPE_ONLY] = 1
    function = Function(tuple(group.params), body, old.checked_type, attrs=attrs)
    return Call(function, tuple(group.args))


def defuse_ops(function: Function) -> Function:
    """The function with the body of each function value in place of its call.

    Raises ValueError where two parameters of such a function have one name, as in Relay.
    """

    def change(old: Expr, node: Expr) -> Expr:
        if not (isinstance(node, Call) and isinstance(node.op, Function)):
            return node
        names = [param.name for param in node.op.params]
        if len(set(names)) != len(names):
            fail(old, f"DefuseOps: two parameters of a function have one name, of {names}")
        known: dict[Expr, Expr] = dict(zip(node.op.params, node.args, strict=True))
        return rewrite(node.op.body, lambda _, rebuilt: rebuilt, known)

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out
