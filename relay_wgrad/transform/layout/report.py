"""`layout_changes`: every change of layout in a function, with the reason why it is there.

It looks at the program alone and knows nothing of the pass that made it, so it judges ours and the
stock one alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ...graph.def_use import Graph
from ...graph.walk import bindings_of
from ...ir import op_name
from ...layout_rules import table
from ...layout_rules.convs import CONVS
from ...layout_rules.in_layout import sizes_of
from ...layout_rules.perms import is_one, keeps_memory
from ..surface import kind_of

REASONS: dict[str, str] = {
    "input": "an activation among the function's parameters, converted on its way in",
    "parameter": "a weight, converted on its way in, once",
    "result": "a result of the function, converted on its way out",
    "vector": "a vector of channels, or another tensor in which nothing moves in memory",
    "reshape": "before or after a reshape of the program that takes a pixel's axes apart",
    "transpose": "the program's own transpose",
    "fixed": "before or after an op that has no layout rule",
    "between": "between two ops that could share a layout: left over",
}
CHANGES = ("relax.permute_dims", "relax.layout_transform")
_RULED = {*CONVS, *table.FOLLOW, *CHANGES}


@dataclass(frozen=True)
class LayoutChange:
    """One `permute_dims` or `layout_transform`: `reason` is a key of `REASONS`.

    `moves` is false where only axes of size 1 change places, as in a 1×1 convolution's weight.
    """

    name: str
    op: str
    reason: str
    shape: tuple[Any, ...]
    moves: bool = True
    neighbours: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether no layout of the tensors around it would have avoided it."""
        return self.reason != "between"


def layout_changes(
    func: relax.Function, original: relax.Function | None = None
) -> list[LayoutChange]:
    """The layout changes of a function in program order.

    `original` is the function before conversion, if it is at hand: its own transposes are told
    from those that a pass put in by their variables' names.  Without it, transposes of tensors
    that are not 4-dimensional count as the program's own.

    Raises TypeError for what is no Relax function.
    """
    for given in (func, *([original] if original is not None else [])):
        if not isinstance(given, relax.Function):
            raise TypeError(f"layout_changes: needs a Relax function, got {kind_of(given)}")
    before = bindings_of(original) if original is not None else []
    own = {b.var.name for b in before if op_name(b.value) in CHANGES}
    program = _Program(func)
    return [program.change(b, own) for b in program.bindings if op_name(b.value) in CHANGES]


def count_reasons(changes: Iterable[LayoutChange]) -> Counter[str]:
    """How many there are of each reason."""
    return Counter(change.reason for change in changes)


class _Program(Graph):
    """Who makes and who uses each variable; renamings, tuples and their fields looked through."""

    def made_by(self, expr: relax.Expr) -> str:
        """The op that made a tensor; "parameter" or "constant" for what no op made."""
        while isinstance(expr, relax.Var):
            if expr in self.params:
                return "parameter"
            value = getattr(self.maker(expr), "value", None)
            if isinstance(value, relax.Tuple) or value is None:
                return "tuple"
            if isinstance(value, relax.Call):
                return op_name(value) or "call"
            expr = value.tuple_value if isinstance(value, relax.TupleGetItem) else value
        return "constant" if isinstance(expr, tvm.ir.Constant) else type(expr).__name__

    def used_by(self, var: relax.Var) -> list[tuple[str, int]]:
        """(op, argument) of each use; ("result", 0) where it leaves the function."""
        found, stack, seen = list[tuple[str, int]](), [var], set[relax.Var]()
        while stack:
            item = stack.pop()
            if item in seen:
                continue
            seen.add(item)
            for use in self.uses.get(item, ()):
                value = use.binding.value
                if isinstance(value, relax.Call):
                    found.append((op_name(value) or "call", use.argument))
                else:
                    stack.append(use.binding.var)
            found += [("result", 0)] if item in self.results else []
        return found

    def change(self, binding: relax.Binding, own: set[str]) -> LayoutChange:
        call = binding.value
        operand = call.args[0]
        maker, users = self.made_by(operand), self.used_by(binding.var)
        sizes = sizes_of(operand.ty)
        reason = self._reason(call, binding.var.name in own, maker, users, sizes)
        shown = (maker, *sorted({name for name, _ in users}))
        moves = op_name(call) != table.PERMUTE or not _still(call, sizes)
        return LayoutChange(
            binding.var.name, op_name(call), reason, tuple(sizes or ()), moves, shown
        )

    def _reason(
        self,
        call: relax.Call,
        own: bool,
        maker: str,
        users: list[tuple[str, int]],
        sizes: list[Any] | None,
    ) -> str:
        names = [name for name, _ in users]
        is_permute = op_name(call) == table.PERMUTE
        if own or (is_permute and call.args[0].ty.ndim != 4 and not _still(call, sizes)):
            return "transpose"
        if is_permute and sizes is not None and sum(not is_one(n) for n in sizes) <= 1:
            return "vector"
        if maker in ("parameter", "constant"):
            weights = [n in CONVS and CONVS[n].weights[i] for n, i in users if i < 2]
            return "parameter" if any(weights) or maker == "constant" else "input"
        if names and all(name == "result" for name in names):
            return "result"
        if is_permute and _still(call, sizes):
            return "vector"
        around = [maker, *names]
        if any(name in table.RESHAPES for name in around):
            return "reshape"
        if any(name not in _RULED and name != "result" for name in around):
            return "fixed"
        return "between"


def _still(call: relax.Call, sizes: list[Any] | None) -> bool:
    return sizes is not None and keeps_memory(table.permute_axes(call), sizes)
