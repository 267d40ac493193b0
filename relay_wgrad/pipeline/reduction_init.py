"""Sums, products and extrema over nothing: their first value is written before the loop over terms.

TVM writes a reduction's first value together with its first term, so where there is no term, which
sizes of the run may make so, the result stays as it was allocated.  Here the first value has a loop
nest of its own before, in kernels whose terms may be none; all others are left alone.  TVM's
schedules could do it (`decompose_reduction`) where indices are affine, which those of fused loops
over symbolic sizes are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_map, structural_walk

from ..graph.rebuild import kernel_pass

_SHARED = tirx.ForKind.THREAD_BINDING


def first_values() -> tvm.transform.Pass:
    """A pass over the kernels of a module, after they are scheduled."""
    return kernel_pass("first_values", with_first_values)


def with_first_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel, right also where a reduction has no term; itself where each has one."""
    found: list[Any] = []
    structural_walk(func.body, (SBlock, found.append))
    if not any(map(_may_have_no_term, found)):
        return func
    return func.with_body(_Writer().stmt(func.body, []))


def _may_have_no_term(block: Any) -> bool:
    """Whether an axis of a block's terms has no length that is known, or none at all."""
    return block.init is not None and any(
        not isinstance(axis.dom.extent, tirx.IntImm) or int(axis.dom.extent) < 1
        for axis in block.iter_vars
        if _is_term(axis)
    )


def _is_term(axis: Any) -> bool:
    return bool(axis.iter_type == tirx.IterVar.CommReduce)


@dataclass
class _First:
    """A first value that is to be written before a loop: `outermost`, the first over its terms."""

    realize: Any
    terms: list[Any]  # variables of loops over them
    loops: list[Any] = field(default_factory=list)  # within the outermost, over results

    def nest(self) -> Any:
        """The loops over results, in which the first value is written."""
        block = self.realize.block
        pairs = [
            (axis, value)
            for axis, value in zip(block.iter_vars, self.realize.iter_values, strict=True)
            if not _is_term(axis)
        ]
        own = {v: _renamed(v) for v in (*(axis.var for axis, _ in pairs), *self._variables())}

        def within(node: Any) -> Any:
            return structural_map(node, (tirx.Var, lambda var: own.get(var, var)))

        made = SBlock(
            [tirx.IterVar(axis.dom, own[axis.var], axis.iter_type) for axis, _ in pairs],
            [], [within(region) for region in block.writes],
            f"{block.name_hint}_init", within(block.init),
        )  # fmt: skip
        predicate = within(_without(self.realize.predicate, self.terms))
        stmt = SBlockRealize([within(value) for _, value in pairs], predicate, made)
        for loop in reversed(self.loops):
            bounds = within(loop.min), within(loop.extent)
            stmt = tirx.For(own[loop.loop_var], *bounds, tirx.ForKind.SERIAL, stmt)
        return stmt

    def _variables(self) -> list[Any]:
        return [loop.loop_var for loop in self.loops]


def _renamed(var: Any) -> Any:
    return tirx.Var(f"{var.name}_init", str(var.ty.dtype))


def _without(predicate: Any, terms: Sequence[Any]) -> Any:
    """What of a predicate is of results alone."""
    if isinstance(predicate, tirx.And):
        return tirx.all(*(_without(part, terms) for part in (predicate.a, predicate.b)))
    used = tirx.analysis.undefined_vars(predicate)
    return tirx.const(True, "bool") if any(v in terms for v in used) else predicate


class _Writer:
    """Writes statements anew; `waiting` are first values whose loop is around what is written."""

    def __init__(self) -> None:
        self.waiting: list[_First] = []
        self.around: list[Any] = []  # variables of all loops

    def stmt(self, node: Any, loops: Sequence[Any]) -> Any:
        """A statement; `loops`: variables of those around it, with nothing but loops between."""
        if isinstance(node, tirx.SeqStmt):
            return tirx.SeqStmt([self.stmt(part, loops) for part in node.seq])
        if isinstance(node, tirx.For):
            return self._loop(node, loops)
        if isinstance(node, SBlockRealize):
            return self._realize(node, loops)
        parts = {x: getattr(node, x, None) for x in ("body", "then_case", "else_case")}
        made = {x: self.stmt(part, []) for x, part in parts.items() if part is not None}
        return _with(node, **made) if made else node

    def _loop(self, node: Any, loops: Sequence[Any]) -> Any:
        var = node.loop_var
        outside, self.waiting = self.waiting, []
        self.around.append(var)
        body = self.stmt(node.body, [] if node.kind == _SHARED else [*loops, var])
        self.around.pop()
        here = [first for first in self.waiting if first.terms[0] is var]
        rest = [first for first in self.waiting if first.terms[0] is not var]
        for first in rest:
            if var not in first.terms:
                first.loops.insert(0, node)
        self.waiting = [*outside, *rest]
        loop = _with(node, body=body)
        return tirx.SeqStmt([*(first.nest() for first in here), loop]) if here else loop

    def _realize(self, node: Any, loops: Sequence[Any]) -> Any:
        block = node.block
        if not _may_have_no_term(block):
            return _with(node, block=_with(block, body=self.stmt(block.body, [])))
        pairs = zip(block.iter_vars, node.iter_values, strict=True)
        used = [tirx.analysis.undefined_vars(value) for axis, value in pairs if _is_term(axis)]
        terms = [v for v in self.around if any(v in some for some in used)]
        # Terms that a GPU's threads share, or that a condition chooses, stay as they are.
        if not terms or not all(v in loops for v in terms):
            return node
        self.waiting.append(_First(node, terms))
        return _with(node, block=_with(block, init=None))


_FIELDS: dict[Any, tuple[str, ...]] = {
    tirx.For: (
        "loop_var", "min", "extent", "kind", "body", "thread_binding", "annotations", "step",
    ),
    tirx.IfThenElse: ("condition", "then_case", "else_case"),
    tirx.AttrStmt: ("node", "attr_key", "value", "body"),
    tirx.While: ("condition", "body"),
    SBlockRealize: ("iter_values", "predicate", "block"),
    SBlock: (
        "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers",
        "match_buffers", "annotations",
    ),
}  # fmt: skip


def _with(node: Any, **new: Any) -> Any:
    """A statement with other parts; itself where it is of a kind that no schedule makes."""
    names = _FIELDS.get(type(node))
    return type(node)(**{x: getattr(node, x) for x in names} | new) if names else node
