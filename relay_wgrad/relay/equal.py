"""Whether two programs are the same but for names, types that were inferred, and places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .adt import (
    Clause,
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    TypeData,
    subpatterns,
)
from .alpha_equivalence import Renamed
from .ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    MetaAttrs,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    bound_here,
    children,
)
from .boxed_values import unboxed
from .records import REGISTRY
from .types import TYPES, Type, TypeRelation

_LEAVES = (Constant, GlobalVar, Op, Constructor)


def structural_equal(
    a: IRModule | Expr | Type | TypeData | TypeRelation | Pattern | Clause,
    b: IRModule | Expr | Type | TypeData | TypeRelation | Pattern | Clause,
    map_free_vars: bool = False,
) -> bool:
    """Equal up to the names of variables, `checked_type` and `span`; types, when their parts are.

    Sharing counts: a node that is used twice isn't equal to two nodes that are alike (constants,
    operators, empty tuples and fields of one tuple aside).  A variable that nothing binds equals
    only itself; with `map_free_vars` it equals one other of the same annotation.  A size's variable
    stands for one other throughout.  An
    operator's attribute that is left out has its default.
    Time is linear in the number of nodes and of their uses.
    """
    if isinstance(a, IRModule) or isinstance(b, IRModule):
        if not (isinstance(a, IRModule) and isinstance(b, IRModule)):
            return False
        return (
            a.functions.keys() == b.functions.keys()
            and a.type_definitions.keys() == b.type_definitions.keys()
            and _same_attrs(a.attrs, b.attrs)
            and all(_same_data(d, b.type_definitions[h]) for h, d in a.type_definitions.items())
            and all(_same(f, b.functions[name], map_free_vars) for name, f in a.functions.items())
        )
    if isinstance(a, TypeRelation) or isinstance(b, TypeRelation):
        return a == b
    if isinstance(a, TypeData) and isinstance(b, TypeData):
        return _same_data(a, b)
    if isinstance(a, TYPES) and isinstance(b, TYPES):
        return a == b or (map_free_vars and Renamed(free=True).same(a, b))
    if isinstance(a, (Pattern, Clause)) and isinstance(b, (Pattern, Clause)):
        return _same(_alone(a), _alone(b), map_free_vars)
    for given in (a, b):
        if not isinstance(given, (*_OTHERS, Expr)):
            raise TypeError(f"structural_equal: expected Relay programs, got {given!r}")
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        return False
    return _same(a, b, map_free_vars)


_OTHERS = (*TYPES, TypeData, TypeRelation, Pattern, Clause)


def _alone(part: Pattern | Clause) -> Expr:
    """A program that has nothing but that part of one."""
    clause = part if isinstance(part, Clause) else Clause(part, Tuple(()))
    return Match(Tuple(()), (clause,))


def _same_data(a: TypeData, b: TypeData) -> bool:
    names = Renamed()
    return (
        a.header == b.header
        and names.bind(a.type_vars, b.type_vars)
        and [c.name_hint for c in a.constructors] == [c.name_hint for c in b.constructors]
        and all(
            names.all_same(x.inputs, y.inputs)
            for x, y in zip(a.constructors, b.constructors, strict=True)
        )
    )


def _same(a: Expr, b: Expr, map_free: bool) -> bool:
    # Which node of one stands for which of the other, both ways: a bijection.
    forth: dict[Expr, Expr] = {}
    back: dict[Expr, Expr] = {}
    sizes = Renamed(free=map_free)
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
        if isinstance(x, _LEAVES):
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
        bound = bound_here(x), bound_here(y)
        below = children(x), children(y)
        if len(bound[0]) != len(bound[1]) or len(below[0]) != len(below[1]):
            return False
        functions = isinstance(x, Function) and isinstance(y, Function)
        if functions and not sizes.bind(x.type_params, y.type_params):  # type: ignore[union-attr]
            return False
        forth[x], back[y] = y, x
        for p, q in zip(*bound, strict=True):
            if p in forth or q in back or not sizes.same(p.type_annotation, q.type_annotation):
                return False
            forth[p], back[q] = q, p
        if not _same_node(_with_keys(x, forth), y, sizes):
            return False
        stack += zip(*below, strict=True)
    return True


def _with_keys(node: Expr, forth: Mapping[Expr, Expr]) -> Expr:
    """A function whose attributes hold mappings from its variables, with the other's in place."""
    if not isinstance(node, Function):
        return node
    held = {k: v for k, v in node.attrs.items() if isinstance(v, Mapping) and not _plain(v)}
    if not held:
        return node
    other: dict[Any, Any] = {}
    for param in node.params:
        partner = forth[param]
        assert isinstance(partner, Var)
        other |= {param: partner, param.vid: partner.vid}
    named = {k: {other.get(key, key): part for key, part in v.items()} for k, v in held.items()}
    return replace(node, attrs={**node.attrs, **named})


def _plain(mapping: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in mapping)


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
    if isinstance(x, Constructor):
        return x == y
    if isinstance(x, Match):
        return x.complete == y.complete and all(
            map(_same_pattern, (c.lhs for c in x.clauses), (c.lhs for c in y.clauses))
        )
    if isinstance(x, Call):
        # Of what has a name they tell nothing new: inference fills them in.
        same = isinstance(x.op, (Op, GlobalVar, Constructor)) or sizes.all_same(
            x.type_args, y.type_args
        )
        return same and _same_attrs(written(x), written(y))
    if isinstance(x, Function):
        return sizes.same(x.ret_type, y.ret_type) and _same_attrs(x.attrs, y.attrs)
    return True


def written(call: Call) -> Mapping[str, Any]:
    """A call's attributes, of an operator without those that have their default."""
    op = REGISTRY.get(call.op.name) if isinstance(call.op, Op) else None
    if op is None or isinstance(call.attrs, MetaAttrs):
        return call.attrs
    return op.written(call.attrs)


def _same_pattern(a: Pattern, b: Pattern) -> bool:
    """Of the same form; their variables are compared where they are bound."""
    x, y = list(subpatterns(a)), list(subpatterns(b))
    return len(x) == len(y) and all(map(_same_form, x, y))


def _same_form(a: Pattern, b: Pattern) -> bool:
    if isinstance(a, PatternConstructor) and isinstance(b, PatternConstructor):
        return a.constructor == b.constructor and len(a.patterns) == len(b.patterns)
    return type(a) is type(b)


def _same_attrs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    stack: list[tuple[Any, Any]] = [(a, b)]
    while stack:
        # A number means the same in a box and without one.
        x, y = map(unboxed, stack.pop())
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
