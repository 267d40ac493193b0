"""Operators that share an operand as one wide operator, of whose result each takes its part.

Branches begin at one value with one operator (two convolutions of `x`) and go on with element-wise
operators that all of them have.  What is combined is concatenated along one axis, or stacked.

Left apart, where Relay 0.19 makes a wrong program or none: branches of which one needs another's
result, or a variable that a `let` binds; what follows with an axis of its own (`nn.prelu`, `tile`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..ast import Call, Expr, Function, Op, Var, children, post_order
from ..iterative_walks import order
from ..records import lookup
from ..rewrite import with_children
from ..types import TensorType
from .combine_families import Branch, Family, Group, ndim_of, shape_of
from .eliminate import owners
from .user_hooks import is_kernel


def combine(function: Function, family: Family, fewest: int) -> Function:
    """The function with groups of at least `fewest` branches combined.  Needs types."""
    new: dict[Expr, Expr] = {}  # what a branch's last call became, in terms of the old program
    scope = owners(function)
    bound = set(_bound(function))

    def below(node: Expr) -> Sequence[Expr]:
        return (new[node],) if node in new else children(node)

    for group in _groups(function, family, scope):
        apart = _independent(group, below, bound)
        if len(apart) < fewest:
            continue
        made = _combined(apart, family)
        new.update(made)
        if _circular(made, below):
            for key in made:
                del new[key]
    out: dict[Expr, Expr] = {}
    for node in order(function, below):
        if node in new:
            out[node] = out[new[node]]
        else:
            out[node] = with_children(node, {child: out[child] for child in children(node)})
    result = out[function]
    assert isinstance(result, Function)
    return result


def _bound(function: Function) -> list[Var]:
    """The variables that a `let` binds."""
    params = {p for n in post_order(function) if isinstance(n, Function) for p in n.params}
    return [n for n in post_order(function) if isinstance(n, Var) and n not in params]


# ---- groups --------------------------------------------------------------------------------------


def _groups(function: Function, family: Family, scope: Mapping[Expr, Function]) -> list[Group]:
    users: dict[Expr, list[Expr]] = {}
    roots: dict[Expr, list[Call]] = {}
    for node in post_order(function, lambda n: not is_kernel(n)):
        for child in () if is_kernel(node) else children(node):
            users.setdefault(child, []).append(node)
        if isinstance(node, Call) and node.op == Op(family.op) and _has_known_sizes(node):
            roots.setdefault(node.args[0], []).append(node)
    found: list[Group] = []
    for calls in roots.values():
        first = len(found)
        for one in calls:
            branch = _branch(one, users, family)
            for group in found[first:]:
                head = group[0][0]
                if scope[head] is scope[one] and family.alike(head, one):
                    group.append(branch)
                    break
            else:
                found.append([branch])
    return found


def _has_known_sizes(node: Call) -> bool:
    types = [node.checked_type, *(arg.checked_type for arg in node.args)]
    return all(
        isinstance(ty, TensorType) and all(isinstance(size, int) for size in ty.shape)
        for ty in types
    )


def _branch(first: Call, users: Mapping[Expr, list[Expr]], family: Family) -> Branch:
    branch = [first]
    while True:
        found = users.get(branch[-1], [])
        if len(found) != 1 or not isinstance(found[0], Call) or not _follows(found[0], family):
            return branch
        if branch[-1] not in found[0].args or not _has_known_sizes(found[0]):
            return branch
        branch.append(found[0])


def _follows(node: Call, family: Family) -> bool:
    if not isinstance(node.op, Op):
        return False
    if family.widens and node.op.name == "expand_dims":
        return True
    return lookup(node.op.name).operands == len(node.args)


def _independent(group: Group, below: Callable[[Expr], Sequence[Expr]], bound: set[Var]) -> Group:
    """The branches of which none needs what another gives."""
    kept: Group = []
    needs: set[Expr] = set()
    for branch in group:
        own: set[Expr] = set()
        for arg in branch[0].args[1:]:
            own.update(order(arg, below))
        if own & bound or any(b[0] in own for b in kept) or branch[0] in needs:
            continue
        kept.append(branch)
        needs |= own
    return kept


def _circular(made: Mapping[Expr, Expr], below: Callable[[Expr], Sequence[Expr]]) -> bool:
    """Whether what is made needs one of the results that it stands for."""
    reached: set[Expr] = set()
    for value in made.values():
        reached.update(order(value, lambda n: () if n in made else below(n)))
    return any(key in reached for key in made)


def _combined(group: Group, family: Family) -> dict[Expr, Expr]:
    data, axis = family.combined(group)
    depth = 1
    wide: Expr = data
    while depth < min(map(len, group)):
        level = [branch[depth] for branch in group]
        made = _level(wide, level, [b[depth - 1] for b in group], axis, family)
        if made is None:
            break
        wide, axis = made
        depth += 1
    parts = family.parts(wide, group, depth - 1, axis)
    return {branch[depth - 1]: part for branch, part in zip(group, parts, strict=True)}


def _level(
    wide: Expr, level: Sequence[Call], before: Sequence[Call], axis: int, family: Family
) -> tuple[Expr, int] | None:
    """What follows on all branches, once; None where they differ."""
    first = level[0]
    assert isinstance(first.op, Op)
    read = lookup(first.op.name).read
    places = {node.args.index(prev) for node, prev in zip(level, before, strict=True)}
    same = all(n.op == first.op and read(n.attrs) == read(first.attrs) for n in level)
    if not same or len(places) != 1:
        return None
    if first.op.name == "expand_dims":
        at = read(first.attrs)["axis"] % (ndim_of(before[0]) + 1)
        axis += read(first.attrs)["num_newaxis"] if at <= axis else 0
    else:
        grown = ndim_of(first) - ndim_of(before[0])  # axes that another operand brings, in front
        pairs = zip(level, before, strict=True)
        if (grown and not family.widens) or any(
            shape_of(n)[grown:] != shape_of(p) for n, p in pairs
        ):
            return None
        axis += grown
    place = places.pop()
    args: list[Expr] = []
    for index in range(len(first.args)):
        joined = wide if index == place else family.operand(level, index, place, axis)
        if joined is None:
            return None
        args.append(joined)
    return Call(first.op, tuple(args), first.attrs), axis
