"""What a registered function gives in place of a call, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...keys import COMPILER, PRIMITIVE
from ..ast import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Op,
    Var,
    as_node,
    operator_of,
    post_order,
)
from ..infer import agree, infer_expr, span_text
from ..records import REGISTRY, lookup, show
from ..rewrite import rewrite

_LEAVES = (Op, GlobalVar, Constant)


def attributes(node: Call, op: str) -> Attrs:
    """All attributes of a call, as registered functions take them."""
    return Attrs(lookup(op).read(node.attrs), op)


def filling(node: Expr) -> int | None:
    """What each element of a node is by its form: of `zeros`, and of `ones`."""
    name = operator_of(node)
    return REGISTRY[name].fills if name in REGISTRY else None


def kernels(function: Function) -> dict[Expr, Expr]:
    """The functions within one that are a kernel or for a compiler, each for itself: left alone."""
    return {n: n for n in post_order(function, lambda n: not is_kernel(n)) if is_kernel(n)}


def is_kernel(node: Expr) -> bool:
    """Whether a node is a function that is one operator's kernel, or for a compiler."""
    if not isinstance(node, Function):
        return False
    return bool(node.attrs.get(PRIMITIVE) or node.attrs.get(COMPILER))


def replacement(
    given: Any, node: Call, what: str, known: Callable[[Expr], bool], mod: IRModule
) -> tuple[Expr, Sequence[Expr]]:
    """The expression that stands for a call, and the nodes below it that are `known` already.

    Raises
    ------
    TypeError : if it is no expression.
    ValueError : if it is not of the call's type, or has an invalid call.
    """
    made: Expr = as_node(given, what)
    reached = [n for n in post_order(made, lambda n: not known(n)) if known(n)]
    # Types need not be found again below what is known.
    stand_ins: dict[Expr, Expr] = {
        n: n if isinstance(n, _LEAVES) else Var("known", n.checked_type) for n in reached
    }
    alone = rewrite(made, lambda old, rebuilt: rebuilt, stand_ins)
    try:
        got = infer_expr(alone, mod).checked_type
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from error
    wanted = node.checked_type
    assert wanted is not None
    if got is None or not agree(got, wanted):
        found = "nothing" if got is None else show(got)
        raise ValueError(f"{what} must give {show(wanted)}, got {found}{span_text(node)}")
    return made, reached
