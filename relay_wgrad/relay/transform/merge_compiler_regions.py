"""MergeCompilerRegions: neighbouring regions of one compiler as one.

A region may not join one that it depends on over a third: the two as one would have to run both
before and after that.  So each region knows, as bits of an integer, the regions that it depends on
over others.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ast import Call, Expr, Function, Let, children, post_order
from ..iterative_walks import order
from ..records.annotation import BEGIN, END
from ..rewrite import rewrite
from .annotate_target import mark_of
from .regions import Region, Regions, merge

_EVERYWHERE = 1 << 62  # the scope of what needs no variable that a `let` binds


@dataclass
class _Facts:
    """Of a region, as it grows, or of a node in none.

    `parts`: a region's own bits; `behind`: those that it depends on over others; `scope`: the
    innermost `let` or function within which it must stay, by its place in post-order.
    """

    parts: int = 0
    behind: int = 0
    scope: int = _EVERYWHERE


def merge_compiler_regions(function: Function) -> Function:
    """The function without marks between regions that became one."""
    regions = Regions(function)
    _merge_all(function, regions)

    def change(old: Expr, new: Expr) -> Expr:
        if mark_of(old, BEGIN) is None:
            return new
        assert isinstance(old, Call)
        assert isinstance(new, Call)
        end = old.args[0]
        if mark_of(end, END) is None or regions.find(old) is not regions.find(end):
            return new
        inner = new.args[0]
        assert isinstance(inner, Call)
        return inner.args[0]

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


def _merge_all(function: Function, regions: Regions) -> None:
    initial = regions.all()
    of: dict[Expr, Region] = {
        mark: region for region in initial for mark in (*region.inputs, *region.outputs)
    }
    begins = {region: tuple(region.inputs) for region in initial}
    facts: dict[Region, _Facts] = {r: _Facts(1 << i) for i, r in enumerate(initial)}
    outside: dict[Expr, _Facts] = {}  # of nodes in no region that depend on any, or on a scope
    bound, scopes = _binders(function)
    done: set[Region] = set()

    def operands(node: Expr) -> tuple[Expr, ...]:
        return (bound[node],) if node in bound else children(node)

    def below(node: Expr) -> tuple[Expr, ...]:
        # All that a region needs comes before its first result.
        needs = begins[of[node]] if mark_of(node, END) is not None else ()
        return (*(begin.args[0] for begin in needs), *operands(node))

    def depend(own: _Facts, node: Expr) -> None:
        """A region, or a node in none, needs a node that is in none or ends another region."""
        region = regions.find(node) if mark_of(node, END) is not None else None
        found = outside.get(node) if region is None else facts[region]
        if found is not None:
            own.behind |= found.parts | found.behind
            own.scope = min(own.scope, found.scope)

    def join(region: Region) -> None:
        """Merges the regions that feed a region into it, where that is possible."""
        own = facts[region]
        feeding: dict[Region, None] = {}
        for begin in begins[region]:
            node = begin.args[0]
            parent = regions.find(node) if mark_of(node, END) is not None else None
            if parent is not None and parent.target == region.target:
                feeding[parent] = None
                own.behind |= facts[parent].behind
                own.scope = min(own.scope, facts[parent].scope)
            else:
                depend(own, node)
        for parent in feeding:
            # A region that is needed outside of a scope can't move into it.
            same = facts[parent].scope == own.scope
            if same and not facts[parent].parts & own.behind:
                merge(parent, region)
                own.parts |= facts[parent].parts
            elif not same:
                own.behind |= facts[parent].parts

    for node in order(function, below):
        if mark_of(node, END) is not None:
            if of[node] not in done:
                done.add(of[node])
                join(of[node])
        elif regions.find(node) is None:
            own = _Facts(scope=scopes.get(node, _EVERYWHERE))
            for operand in operands(node):
                depend(own, operand)
            if own.behind or own.scope < _EVERYWHERE:
                outside[node] = own


def _binders(function: Function) -> tuple[dict[Expr, Expr], dict[Expr, int]]:
    """The values of `let`s' variables; variables' scopes, the inner ones with lower numbers."""
    bound: dict[Expr, Expr] = {}
    scopes: dict[Expr, int] = {}
    for place, node in enumerate(post_order(function)):
        if isinstance(node, Let):
            bound[node.var] = node.value
            scopes[node.var] = place
        elif isinstance(node, Function) and node is not function:
            scopes.update(dict.fromkeys(node.params, place))
    return bound, scopes
