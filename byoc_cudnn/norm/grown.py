"""Joins that grow: each begins with all that the one before has.

A dense block joins what it has made so far anew for each of its layers, and each joined tensor is
read by a normalization, forward and backward.  Here the block has one tensor from the start, as
wide as its last join, and each join adds its channels to it, over what is there
(`relay_wgrad.pipeline.overwrites`); normalizations read their channels of it.  So what is there is
neither copied for each layer nor kept for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import Writer, normal, rebuilt
from relay_wgrad.graph.walk import Block
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.problem import DTYPE_BYTES

from ..codegen.lowering import Symbols
from ..joins.channels import begins
from ..joins.lower import planned as joins
from .call import NormCall, check
from .codegen import NORMS
from .gates import VECTOR
from .places import LEAST, record_of

_CONCAT = "relax.concat"


@dataclass
class _Chain:
    """Joins of one block of a function, each of which begins with what the one before has.

    fields : all that the last one joins, one after another; ends : of each join the channels.
    """

    joins: list[relax.Var]
    fields: list[Any]
    ends: list[int]

    @property
    def total(self) -> int:
        return self.ends[-1]


@dataclass
class _Part:
    """Channels of a chain's tensor that a normalization reads."""

    chain: int
    first: int


def grow(func: relax.Function, symbols: Symbols) -> tuple[relax.Function, dict[str, str]]:
    """The function whose growing joins are one tensor, and the symbols of the normalizations that
    read it by the names of their calls' variables.

    func : as `lower_norms` has it, its joins still operators.
    symbols : of its calls; the new ones are added.
    """
    view = Graph(func)
    calls = {call.symbol: call for call in symbols.calls.values()}
    chains = _chains(view, calls)
    if not chains:
        return func, {}
    writer = _Writing(view, chains, calls, symbols)
    return rebuilt(func, writer.block), writer.names


def _chains(view: Graph, calls: Mapping[str, NormCall]) -> list[_Chain]:
    found: list[_Chain] = []
    if not any(op_name(binding.value) == _CONCAT for binding in view.bindings):
        return found
    sites = joins(view).sites
    for binding in view.bindings:
        var = binding.var
        if op_name(binding.value) != _CONCAT or var not in sites:
            continue
        if not isinstance(var, relax.DataflowVar) or not _is_static(var):
            continue
        chain = _extended(view, binding, found)
        if chain is None:
            found.append(_Chain([var], _fields(view, binding, found), [_width(var)]))
    return [chain for one in found if (chain := _useful(view, calls, one)) is not None]


def _fields(view: Graph, binding: Any, chains: list[_Chain]) -> list[Any]:
    """What is joined; of a join that a chain ends in what that joins."""
    flat: list[Any] = []
    for field in view.bound_to(binding.value.args[0]).fields:
        one = view.resolved(field)
        inner = next((c for c in chains if one.same_as(c.joins[-1])), None)
        flat += inner.fields if inner is not None else [one]
    return flat


def _extended(view: Graph, binding: Any, chains: list[_Chain]) -> _Chain | None:
    """The chain whose last join this one begins with; it ends in this one then."""
    fields = _fields(view, binding, chains)
    for chain in chains:
        count = len(chain.fields)
        same = len(fields) > count and all(
            a.same_as(b) for a, b in zip(chain.fields, fields, strict=False)
        )
        if same and view.block[chain.joins[-1]] == view.block[binding.var]:
            chain.joins.append(binding.var)
            chain.ends.append(_width(binding.var))
            chain.fields = fields
            return chain
    return None


def _useful(view: Graph, calls: Mapping[str, NormCall], chain: _Chain) -> _Chain | None:
    """A chain, if all but its last join are read by it and by normalizations alone, which read
    whole packs of its tensor, and less is copied than zeros are written at the start."""
    first, saved = chain.ends[0], 2 * sum(chain.ends[:-1])
    if saved <= chain.total - first:
        return None
    bytes_of = DTYPE_BYTES.get(str(chain.joins[0].ty.dtype), 0)
    if any(n * bytes_of % VECTOR or n * bytes_of < LEAST for n in chain.ends):
        return None
    for join in chain.joins[:-1]:
        for binding in view.users_of(join):
            if any(binding.var.same_as(other) for other in chain.joins):
                continue
            if _reading(view, calls, binding.var, join, (0, chain.total)) is None:
                return None
    return chain


def _reading(
    view: Graph, calls: Mapping[str, NormCall], call: relax.Var, x: relax.Var,
    within: tuple[int, int],
) -> NormCall | None:  # fmt: skip
    """A normalization of x, as it reads x's channels of a wider tensor; None if it does not."""
    record = record_of(view, call, calls)
    if record is None or record.within:
        return None
    wanted = replace(record, symbol=NORMS.codegen, within=within)
    if not check(wanted):
        return None
    args = [view.resolved(arg) for arg in view.value[call].args[1].fields]
    places = [i for i, arg in enumerate(args) if arg.same_as(x)]
    return replace(wanted, symbol="") if places == [record.operands.index("x")] else None


def _is_static(var: relax.Var) -> bool:
    return all(isinstance(size, int) for size in sizes_of(var.ty) or [None])


def _width(var: Any) -> int:
    return int(var.ty.shape.values[-1])


class _Writing:
    """Writes the blocks of a function; `names` are the calls' new symbols."""

    def __init__(
        self, view: Graph, chains: list[_Chain], calls: Mapping[str, NormCall], symbols: Symbols
    ) -> None:
        self.view, self.chains, self.calls, self.symbols = view, chains, calls, symbols
        self.names: dict[str, str] = {}
        self.at = {join: (i, k) for i, c in enumerate(chains) for k, join in enumerate(c.joins)}
        self.so_far: dict[int, relax.Var] = {}  # of a chain its tensor now
        self.end: dict[int, int] = {}  # and how many channels it has so far
        self.parts: dict[Any, _Part] = {}
        for i, chain in enumerate(chains):
            for begin, field in begins(chain.fields):
                self.parts[field] = _Part(i, begin)
        for join, (i, k) in self.at.items():
            if k + 1 < len(chains[i].joins):
                self.parts[join] = _Part(i, 0)
        self.values: dict[relax.Var, Any] = {}

    def block(self, block: Block) -> list[relax.Binding] | None:
        if not isinstance(block, relax.DataflowBlock):
            return None
        writer = Writer(block)
        for binding in block.bindings:
            if binding.var in self.at:
                self._join(writer, binding, *self.at[binding.var])
            elif not self._norm(writer, binding):
                writer.keep(binding, self.values)
        return writer.bindings

    def _join(self, writer: Writer, binding: Any, number: int, step: int) -> None:
        chain, join = self.chains[number], binding.var
        others, total = list(join.ty.shape.values)[:-1], chain.total
        axis, end = len(others), chain.ends[step]
        there = chain.ends[step - 1] if step else 0
        new = [
            self.values.get(field, field)
            for begin, field in begins(chain.fields) if there <= begin < end
        ]  # fmt: skip
        if step:
            places = [there, *([end] if end < total else [])]
            cut = writer.emit(
                f"{join.name}_cut", normal(relax.op.split(self.so_far[number], places, axis))
            )
            fields = [
                writer.emit(f"{join.name}_part", relax.TupleGetItem(cut, i))
                for i in (0, *([2] if end < total else []))
            ]
            new = [fields[0], *new, *fields[1:]]
        elif end < total:
            zeros = relax.op.zeros([*others, total - end], str(join.ty.dtype))
            new.append(writer.emit(f"{join.name}_rest", normal(zeros)))
        whole = normal(relax.op.concat(new, axis))
        self.end[number] = end
        if end < total:
            self.so_far[number] = writer.emit(f"{join.name}_grown", whole)
        else:
            writer.bind(join, whole)
            self.so_far[number] = join

    def _norm(self, writer: Writer, binding: Any) -> bool:
        """Writes a normalization that reads channels of a chain's tensor, if it is one."""
        call = binding.var
        record = record_of(self.view, call, self.calls)
        if record is None:
            return False
        place = record.operands.index("x")
        x = self.view.resolved(binding.value.args[1].fields[place])
        part = self.parts.get(x)
        # Forward an operand of the join is read as it is: it was made just before.
        if part is None or (x not in self.at and record.forward):
            return False
        if self.end.get(part.chain, 0) < part.first + _width(x):
            return False
        within = (part.first, self.chains[part.chain].total)
        wanted = _reading(self.view, self.calls, call, x, within)
        bytes_of = DTYPE_BYTES[record.dtype]
        if wanted is None or any(n * bytes_of % VECTOR for n in (*within, _width(x))):
            return False
        symbol = self.symbols.of(wanted)
        self.names[str(call.name)] = symbol
        args = [self.values.get(arg, arg) for arg in binding.value.args[1].fields]
        args[place] = self.so_far[part.chain]
        ty = binding.value.ty
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else ty
        writer.bind(call, normal(relax.call_dps_packed(symbol, args, types)))
        return True
