"""Whether two programs are the same but for names, types that were inferred, and places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    MetaAttrs,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
)
from .boxes import plain
from .renamed import Renamed
from .types import FuncType, TensorType, TupleType, Type

_TYPES = (TensorType, TupleType, FuncType)


def structural_equal(
    a: IRModule | Expr | Type, b: IRModule | Expr | Type, map_free_vars: bool = False
) -> bool:
    """Equal up to the names of variables, `checked_type` and `span`; types, when their parts are.

    Sharing counts: a node that is used twice isn't equal to two nodes that are alike (constants,
    operators, empty tuples and fields of one tuple aside).  A variable that nothing binds equals
    only itself; with `map_free_vars` it equals one other of the same annotation.  A size's variable
    stands for one other throughout.  Attributes are
    compared as they are written, so one that is left out differs from its default written out.
    Time is linear in the number of nodes and of their uses.
    """
    if isinstance(a, IRModule) or isinstance(b, IRModule):
        if not (isinstance(a, IRModule) and isinstance(b, IRModule)):
            return False
        return (
            a.functions.keys() == b.functions.keys()
            and _same_attrs(a.attrs, b.attrs)
            and all(_same(f, b.functions[name], map_free_vars) for name, f in a.functions.items())
        )
    if isinstance(a, _TYPES) and isinstance(b, _TYPES):
        return a == b or (map_free_vars and Renamed().same(a, b))
    if isinstance(a, _TYPES) or isinstance(b, _TYPES):
        return False
    for given in (a, b):
        if not isinstance(given, Expr):
            raise TypeError(f"structural_equal: expected Relay programs, got {given!r}")
    return _same(a, b, map_free_vars)


def _same(a: Expr, b: Expr, map_free: bool) -> bool:
    # Which node of one stands for which of the other, both ways: a bijection.
    forth: dict[Expr, Expr] = {}
    back: dict[Expr, Expr] = {}
    sizes = Renamed()
    fields: set[tuple[Expr, Expr]] = set()  # fields of tuples that were compared
    stack = [(a, b)]
    while stack:
        x, y = stack.pop()
        if type(x) is not type(y):
            return False
        if isinstance(x, Tuple) and isinstance(y, Tuple) and not x.fields and not y.fields:
            continue
        if isinstance(x, TupleGetItem) and isinstance(y, TupleGetItem):
            # Two of one tuple are alike, as in Relay: the tuple itself is what is shared.
            if x.index != y.index:
                return False
            if (x, y) not in fields:
                fields.add((x, y))
                stack.append((x.tuple_value, y.tuple_value))
            continue
        if x in forth or y in back:
            if forth.get(x) is not y or back.get(y) is not x:
                return False
            continue
        if isinstance(x, (Constant, GlobalVar, Op)):
            # Leaves are alike by value, however often they are made.
            if not _same_node(x, y, sizes):
                return False
            continue
        if isinstance(x, Var):
            # Bound variables were paired where they are bound.
            if map_free and isinstance(y, Var) and sizes.same(x.type_annotation, y.type_annotation):
                forth[x], back[y] = y, x
            elif x is not y:
                return False
            continue
        bound = _bound(x), _bound(y)
        below = children(x), children(y)
        if len(bound[0]) != len(bound[1]) or len(below[0]) != len(below[1]):
            return False
        forth[x], back[y] = y, x
        for p, q in zip(*bound, strict=True):
            if p in forth or q in back or not sizes.same(p.type_annotation, q.type_annotation):
                return False
            forth[p], back[q] = q, p
        if not _same_node(x, y, sizes):
            return False
        stack += zip(*below, strict=True)
    return True


def _bound(node: Expr) -> tuple[Var, ...]:
    if isinstance(node, Let):
        return (node.var,)
    return node.params if isinstance(node, Function) else ()


def _same_node(x: Expr, y: Any, sizes: Renamed) -> bool:
    """Equal in all but what is below them."""
    if isinstance(x, Constant):
        return (
            x.data.dtype == y.data.dtype
            and x.data.shape == y.data.shape
            # Bit for bit: so a NaN equals itself, and 0.0 isn't -0.0.
            and x.data.tobytes() == y.data.tobytes()
        )
    if isinstance(x, (GlobalVar, Op)):
        return bool(x.name == y.name)
    if isinstance(x, Call):
        # An operator's are its arguments' types, which inference fills in.
        same = isinstance(x.op, Op) or sizes.all_same(x.type_args, y.type_args)
        return same and _same_attrs(x.attrs, y.attrs)
    if isinstance(x, Function):
        return sizes.same(x.ret_type, y.ret_type) and _same_attrs(x.attrs, y.attrs)
    assert isinstance(x, (Tuple, Let, If)), x
    return True


def _same_attrs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    stack: list[tuple[Any, Any]] = [(a, b)]
    while stack:
        # A number means the same in a box and without one.
        x, y = map(plain, stack.pop())
        if isinstance(x, Mapping):
            if not isinstance(y, Mapping) or x.keys() != y.keys():
                return False
            if _type_key(x) != _type_key(y):
                return False
            stack += [(x[name], y[name]) for name in x]
        elif isinstance(x, (tuple, list)):
            if not isinstance(y, (tuple, list)) or len(x) != len(y):
                return False
            stack += zip(x, y, strict=True)
        elif type(x) is not type(y):
            return False
        elif isinstance(x, (float, np.floating)):
            if not (x == y or (np.isnan(x) and np.isnan(y))):
                return False
        elif x != y:
            return False
    return True


def _type_key(attrs: Mapping[str, Any]) -> str | None:
    return attrs.type_key if isinstance(attrs, MetaAttrs) else None
