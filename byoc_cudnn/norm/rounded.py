"""Rows that are normalized in float32 for products in half: y is written, and dy read, as halves.

A cast of y, which is all that reads it, and one that makes dy are kernels that read and write what
the normalization has in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax

from relay_wgrad.dtypes import HALVES
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import normal, rebuilt, substitute, variable_of
from relay_wgrad.graph.walk import Block
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.table import RESHAPES

from ..codegen.lowering import Symbols
from .call import NormCall, check
from .codegen import NORMS
from .places import record_of

_CAST = "relax.astype"


def take_rounded(func: relax.Function, symbols: Symbols) -> tuple[relax.Function, dict[str, str]]:
    """The function whose normalizations of rows read and write halves, and the symbols of their
    calls by the names of the calls' variables; `symbols` are added to."""
    view = Graph(func)
    writer = _Writer(view, {call.symbol: call for call in symbols.calls.values()}, symbols)
    return (rebuilt(func, writer.bindings), writer.names) if writer.taken else (func, {})


@dataclass
class _Taken:
    """A call of halves: its record, and of a backward one what dy is made of."""

    call: NormCall
    dy: Any = None
    casts: list[relax.Var] = field(default_factory=list)


class _Writer:
    def __init__(self, view: Graph, calls: Mapping[str, NormCall], symbols: Symbols) -> None:
        self.view, self.symbols = view, symbols
        self.changed: dict[relax.Var, relax.Var] = {}
        self.casts: set[relax.Var] = set()
        self.names: dict[str, str] = {}
        self.taken: dict[relax.Var, _Taken] = {}
        for binding in view.bindings:
            call = record_of(view, binding.var, calls)
            one = None if call is None else self._one(binding, call)
            if one is not None and check(replace(one.call, symbol=NORMS.codegen)):
                self.taken[binding.var] = one
                self.casts.update(one.casts)

    def _one(self, binding: Any, call: NormCall) -> _Taken | None:
        if not call.by_row or call.dtype != "float32":
            return None
        if not call.forward:
            half = self._made_of(binding)
            return None if half is None else _Taken(replace(call, rounded=_dtype(half)), half)
        found = [v for index, v in self.view.fields_of(binding.var) if index == 0]
        if self.view.is_whole(binding.var):
            return None
        casts = self._casts(found)
        kinds = {_dtype(cast) for cast in casts or ()}
        if not casts or len(kinds) != 1:
            return None
        return _Taken(replace(call, rounded=kinds.pop()), casts=casts)

    def _made_of(self, binding: Any) -> Any:
        """The halves that dy is, by way of a cast and reshapes."""
        at = self.view.resolved(binding.value.args[1].fields[0])
        while (call := self.view.call(at, _CAST, *RESHAPES)) is not None:
            at = self.view.resolved(call.args[0])
            if op_name(call) == _CAST:
                there = at in self.view.params or (
                    self.view.block.get(at) == self.view.block[binding.var]
                )
                return at if _dtype(at) in HALVES and there else None
        return None

    def _casts(self, variables: Sequence[relax.Var]) -> list[relax.Var] | None:
        """The casts to half that alone use some variables, by way of reshapes; None where
        something else does."""
        found: list[relax.Var] = []
        for var in variables:
            users = self.view.users_of(var)
            if not isinstance(var, relax.DataflowVar) or var in self.view.results:
                return None
            for user in users:
                if op_name(user.value) == _CAST and _dtype(user.var) in HALVES:
                    found.append(user.var)
                elif op_name(user.value) in RESHAPES or isinstance(user.value, relax.Var):
                    more = self._casts([user.var])
                    if more is None:
                        return None
                    found += more
                else:
                    return None
        return found

    def bindings(self, block: Block) -> list[Any]:
        kind, out = variable_of(block), list[Any]()
        for binding in block.bindings:
            var, value = binding.var, binding.value
            if var in self.taken:
                out += self._call(binding, kind)
                continue
            new = substitute(value, self.changed) if self.changed else value
            if new.same_as(value):
                out.append(binding)
            elif var in self.casts:
                out.append(relax.VarBinding(var, new.args[0], binding.span))
            else:
                made = normal(new)
                same = str(made.ty) == str(var.ty)
                if not same:
                    self.changed[var] = kind(f"{var.name}_half", made.ty)
                out.append(relax.VarBinding(self.changed.get(var, var), made, binding.span))
        return out

    def _call(self, binding: Any, kind: type[relax.Var]) -> list[Any]:
        var, one = binding.var, self.taken[binding.var]
        symbol = self.symbols.of(one.call)
        self.names[str(var.name)] = symbol
        args, types = list(binding.value.args[1].fields), list(var.ty.fields)
        before: list[Any] = []
        if one.dy is None:
            types[0] = relax.TensorType(types[0].shape, one.call.rounded)
        else:
            rows = normal(relax.op.reshape(one.dy, args[0].ty.shape))
            before = [relax.VarBinding(kind(f"{one.dy.name}_rows", rows.ty), rows)]
            args[0] = before[0].var
        args = [substitute(arg, self.changed) for arg in args]
        made = normal(relax.call_dps_packed(symbol, args, types))
        if one.dy is not None:
            return [*before, relax.VarBinding(var, made, binding.span)]
        self.changed[var] = kind(var.name, made.ty)
        return [*before, relax.VarBinding(self.changed[var], made, binding.span)]


def _dtype(expr: Any) -> str:
    return str(expr.ty.dtype)
