"""MergeCompilerRegions: neighbouring regions of one compiler as one.

A region may not join one that it depends on over a third: the two as one would have to run both
before and after that.  So each region knows, as bits of an integer, the regions that it depends on
over others.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ast import Call, Expr, Function, Let, children, post_order
from ..ops.annotation import BEGIN, END
from ..rewrite import order, rewrite
from .annotate_target import mark_of
from .regions import Region, Regions, merge


@dataclass
class _Facts:
    """Of a region, as it grows: its parts, and what it depends on over others, both as bits."""

    parts: int
    behind: int = 0


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
    facts = {region: _Facts(1 << i) for i, region in enumerate(initial)}
    bound: dict[Expr, Expr] = {n.var: n.value for n in post_order(function) if isinstance(n, Let)}
    outside: dict[Expr, int] = {}  # a node in no region: what it depends on
    done: set[Region] = set()

    def operands(node: Expr) -> tuple[Expr, ...]:
        return (bound[node],) if node in bound else children(node)

    def below(node: Expr) -> tuple[Expr, ...]:
        # All that a region needs comes before its first result.
        needs = begins[of[node]] if mark_of(node, END) is not None else ()
        return (*(begin.args[0] for begin in needs), *operands(node))

    def behind(node: Expr) -> int:
        """What a node in no region depends on, or an end's region and what that depends on."""
        if mark_of(node, END) is None:
            return outside.get(node, 0)
        region = regions.find(node)
        assert region is not None
        return facts[region].parts | facts[region].behind

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
            else:
                own.behind |= behind(node)
        for parent in feeding:
            if not facts[parent].parts & own.behind:
                merge(parent, region)
                own.parts |= facts[parent].parts

    for node in order(function, below):
        if mark_of(node, END) is not None:
            if of[node] not in done:
                done.add(of[node])
                join(of[node])
        elif regions.find(node) is None:
            known = 0
            for operand in operands(node):
                known |= behind(operand)
            if known:
                outside[node] = known
