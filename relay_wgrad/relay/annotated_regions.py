"""The regions between marks of other compilers, as a user asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .ast import Call, Expr, Function, Op
from .records.annotation import BEGIN, END
from .transform.regions import Regions


@dataclass(frozen=True)
class AnnotatedRegion:
    """What one compiler is to compute.

    `args` and `rets` are the marks of its operands and results, `nodes` all its nodes with these.
    """

    target: str
    args: tuple[Call, ...]
    rets: tuple[Call, ...]
    nodes: tuple[Expr, ...]


class AnnotatedRegionSet:
    """The regions of a function, in the order of their first marks.

    Raises ValueError for other marks than `compiler_begin` and `compiler_end`, and for ones that
    make no region.
    """

    def __init__(self, expr: Function, region_begin_op: Op, region_end_op: Op) -> None:
        given = (region_begin_op.name, region_end_op.name)
        if given != (BEGIN, END):
            raise ValueError(f"AnnotatedRegionSet: the marks are {BEGIN} and {END}, got {given}")
        found = Regions(expr)
        members = found.members()
        self._of: dict[Expr, AnnotatedRegion] = {}
        self._all: list[AnnotatedRegion] = []
        for region in found.all():
            nodes = members[region]
            made = AnnotatedRegion(
                region.target, tuple(region.inputs), tuple(region.outputs), tuple(nodes)
            )
            self._all.append(made)
            self._of.update(dict.fromkeys(nodes, made))

    def get_region(self, expr: Expr) -> AnnotatedRegion | None:
        """The region of a node; None if it is in none."""
        return self._of.get(expr)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[AnnotatedRegion]:
        return iter(self._all)
