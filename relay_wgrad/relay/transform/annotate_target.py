"""AnnotateTarget: marks at the operands and results of what other compilers take.

What a node's own compiler does not take is marked as `default`, which is TVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...keys import COMPOSITE
from ..ast import Attrs, Call, Expr, Function, If, Let, Op, Tuple, TupleGetItem, Var
from ..records.annotation import BEGIN, END
from ..rewrite import rewrite

DEFAULT = "default"


def mark_of(node: Expr, name: str) -> str | None:
    """The compiler of a mark (`BEGIN` or `END`); None for another node."""
    if isinstance(node, Call) and isinstance(node.op, Op) and node.op.name == name:
        return str(node.attrs["compiler"])
    return None


def marked(node: Any, name: str, compiler: str) -> Call:
    """A node with a mark."""
    attrs = Attrs({"compiler": compiler}, name)
    return Call(Op(name), (node,), attrs, checked_type=node.checked_type)


def annotate_target(function: Function, targets: Sequence[str], non_calls: bool) -> Function:
    """The function with marks."""
    out = rewrite(function, _Annotate(targets, non_calls).change)
    assert isinstance(out, Function)
    return out


class _Annotate:
    def __init__(self, targets: Sequence[str], non_calls: bool) -> None:
        self.targets = targets
        self.non_calls = non_calls
        self.chosen: dict[Expr, str] = {}  # the compilers of new nodes

    def change(self, old: Expr, new: Any) -> Any:
        if isinstance(old, Call):
            return self._call(old, new)
        if isinstance(old, Tuple):
            if not self.non_calls:
                return replace(new, fields=tuple(map(self._ended, new.fields)))
            target, fields = self._operands(new.fields, "")
            return self._known(replace(new, fields=fields), target)
        if isinstance(old, TupleGetItem):
            if not self.non_calls:
                return replace(new, tuple_value=self._ended(new.tuple_value))
            target, fields = self._operands((new.tuple_value,), "")
            return self._known(replace(new, tuple_value=fields[0]), target)
        if isinstance(old, Function):
            # A composite function is taken as a whole.
            return old if COMPOSITE in old.attrs else replace(new, body=self._ended(new.body))
        if isinstance(old, Let):
            # Relay begins a region at the value too, which nothing would end.
            return replace(new, value=self._ended(new.value), body=self._ended(new.body))
        if isinstance(old, If):
            return replace(
                new,
                cond=self._ended(new.cond),
                true_branch=self._ended(new.true_branch),
                false_branch=self._ended(new.false_branch),
            )
        return new

    def _call(self, old: Call, new: Call) -> Expr:
        if mark_of(new, BEGIN) is not None:
            return new  # seen with the call that it belongs to
        compiler = mark_of(new, END)
        if compiler is not None:
            inner = new.args[0]
            target = self.chosen.setdefault(inner, compiler)
            return new if compiler != DEFAULT else marked(inner, END, target)
        if new.args and mark_of(new.args[0], BEGIN) not in (None, DEFAULT):
            return new  # another run has marked it
        if isinstance(old.op, Var) and not self.non_calls:
            return replace(new, args=tuple(map(self._ended, new.args)))
        target = self._supported(old)
        return self._known(replace(new, args=self._operands(new.args, target)[1]), target)

    def _supported(self, call: Call) -> str:
        """The first of the targets that takes a call."""
        if isinstance(call.op, Op):
            for target in self.targets:
                takes = call.op.get_attr(f"target.{target}")
                if takes is None:
                    continue
                if not callable(takes):
                    raise TypeError(
                        f"AnnotateTarget: target.{target} of {call.op.name} must be a function of"
                        f" a call, got {takes!r}"
                    )
                if takes(call):
                    return target
        elif isinstance(call.op, Function):
            compiler, dot, _ = str(call.op.attrs.get(COMPOSITE, "")).partition(".")
            if dot and compiler in self.targets:
                return compiler
        return DEFAULT

    def _known(self, node: Expr, target: str) -> Expr:
        if target:
            self.chosen[node] = target
        return node

    def _operands(self, args: Sequence[Expr], target: str) -> tuple[str, tuple[Expr, ...]]:
        """Operands with marks, and the compiler: `target`, or else the one that they all have."""
        ends: list[Expr] = []
        common = ""
        for arg in args:
            compiler = DEFAULT
            if mark_of(arg, BEGIN) is not None:
                assert isinstance(arg, Call)
                ends.append(arg if mark_of(arg, BEGIN) != DEFAULT else arg.args[0])
                compiler = mark_of(arg.args[0], END) or DEFAULT
            elif arg in self.chosen:
                compiler = self.chosen[arg]
                # A call without operands, of zeros say, belongs to no region.
                alone = isinstance(arg, Call) and not arg.args
                ends.append(arg if alone else marked(arg, END, compiler))
            else:
                ends.append(arg)
            common = compiler if common in ("", compiler) else DEFAULT
        target = target or common
        return target, tuple(
            end if mark_of(end, BEGIN) is not None else marked(end, BEGIN, target) for end in ends
        )

    def _ended(self, node: Expr) -> Expr:
        """A node with the mark of its end, if it has operands with marks."""
        has_operands = (
            isinstance(node, TupleGetItem)
            or (isinstance(node, Call) and node.args)
            or (isinstance(node, Tuple) and node.fields)
        )
        if node in self.chosen and has_operands:
            return self._known(marked(node, END, self.chosen[node]), self.chosen[node])
        return node
