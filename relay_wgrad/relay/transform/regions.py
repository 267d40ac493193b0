"""The regions of a function with marks: what stands between `compiler_begin` and `compiler_end`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ..ast import Call, Constant, Expr, Function, Tuple, TupleGetItem, post_order
from ..infer import fail
from ..records.annotation import BEGIN, END
from .annotate_target import mark_of


@dataclass(eq=False)
class Region:
    """One region.

    `number`: how many operands' marks came before its first; `inputs`, `outputs`: the marks of its
    operands and results.
    """

    number: int
    target: str
    inputs: deque[Call] = field(default_factory=deque)
    outputs: deque[Call] = field(default_factory=deque)
    into: Region | None = None


class Regions:
    """All regions of a function.

    Raises ValueError for marks that make no region: an end without a beginning or of another
    compiler, a node with marks at some of its operands only.
    """

    def __init__(self, function: Function) -> None:
        self._of: dict[Expr, Region] = {}
        count = 0
        for node in post_order(function):
            begins, ends = mark_of(node, BEGIN), mark_of(node, END)
            if begins is not None:
                assert isinstance(node, Call)
                region = Region(count, begins)
                count += 1
                region.inputs.append(node)
                self._of[node] = region
            elif ends is not None:
                assert isinstance(node, Call)
                found = self.find(node.args[0])
                if found is None:
                    _refuse(node, f"compiler_end of {ends} without a compiler_begin")
                if found.target != ends:
                    _refuse(node, f"compiler_end of {ends} in a region of {found.target}")
                found.outputs.append(node)
                self._of[node] = found
            elif isinstance(node, Call):
                self._join(node, node.args)
            elif isinstance(node, Tuple):
                self._join(node, node.fields)
            elif isinstance(node, TupleGetItem):
                self._join(node, (node.tuple_value,))

    def find(self, node: Expr) -> Region | None:
        """The region of a node; None if it is in none."""
        region = self._of.get(node)
        if region is None:
            return None
        top = _top(region)
        self._of[node] = top
        return top

    def all(self) -> list[Region]:
        """The regions, in their order."""
        found = {self.find(node): None for node in list(self._of)}
        return sorted((r for r in found if r is not None), key=lambda region: region.number)

    def members(self) -> dict[Region, list[Expr]]:
        """The nodes of each region, with its marks."""
        out: dict[Region, list[Expr]] = {}
        for node in list(self._of):
            region = self.find(node)
            assert region is not None
            out.setdefault(region, []).append(node)
        return out

    def _join(self, node: Expr, args: Sequence[Expr]) -> None:
        """The node belongs to its operands' region, in which they meet."""
        inside = {
            arg: region
            for arg in args
            if mark_of(arg, END) is None and (region := self.find(arg)) is not None
        }
        if not inside:
            return
        for arg in args:
            if arg not in inside and not isinstance(arg, Constant):
                _refuse(node, f"{node!r} has an operand without compiler_begin: {arg!r}")
        first, *others = inside.values()
        for other in others:
            merge(other, first)
        self._of[node] = _top(first)


def _top(region: Region) -> Region:
    top = region
    while top.into is not None:
        top = top.into
    while region is not top:
        assert region.into is not None
        region.into, region = top, region.into
    return top


def merge(source: Region, dest: Region) -> None:
    """`source` becomes a part of `dest`; its operands and results come after."""
    source, dest = _top(source), _top(dest)
    if source is dest:
        return
    if source.target != dest.target:
        raise ValueError(f"regions of {dest.target} and {source.target} meet in one operator")
    dest.inputs = _joined(dest.inputs, source.inputs)
    dest.outputs = _joined(dest.outputs, source.outputs)
    source.into = dest


def _joined(first: deque[Call], second: deque[Call]) -> deque[Call]:
    """Both, at the cost of the shorter."""
    if len(first) < len(second):
        second.extendleft(reversed(first))
        return second
    first.extend(second)
    return first


def _refuse(node: Expr, message: str) -> NoReturn:
    fail(node, f"regions: {message}")
