"""Calls of operators in a Relax module become calls of functions that a `direct.Family` generates.

A call becomes `call_dps_packed` of a symbol, and the C++ that exports the symbols is a module of
the module's attributes, where TVM's own code generators put theirs.  Which calls go, and what goes
from one to another in place of a tensor, such as a mask, is a family's plan of a function (`Plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import get_global_func, relax

from relay_wgrad import keys
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import normal, rebuilt, substitute, variable_of
from relay_wgrad.graph.walk import Block, bindings_of, dataflow_block, functions_in, variables_of
from relay_wgrad.ir import is_closed, op_name
from relay_wgrad.pipeline.overwrites import with_symbols
from relay_wgrad.relation import as_size

from .direct import Family

_EXTERNAL = "external_mods"
Expr = Any
# Symbols by the names of their calls' variables go with a function.
Rewrite = Callable[[relax.Function, "Symbols"], tuple[relax.Function, dict[str, str]]]


@dataclass(frozen=True)
class DirectEntry:
    """A call that kernels of our own are for: its function and variable, and what computes it.

    `symbol` is "" where none does, for `reason`; then it is compiled as TVM or we lower its
    operator.
    """

    function: str
    node: str
    op: str
    symbol: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Field:
    """As an operand: a field of what a site's call gives now."""

    site: relax.Var
    index: int


@dataclass
class Site:
    """A call that goes: the record without a symbol, and how the call is written.

    args : what it takes instead of the operator's operands.
    fields : the types of its results, where they are others than the operator's; the first is the
        variable's, where that is one tensor.
    extra : the type of one more result, the last.
    narrow : casts of the result to the operands' dtype, which are all that uses it: it is that.
    """

    call: Any
    args: list[Expr | Field]
    fields: list[relax.TensorType] = field(default_factory=list)
    extra: relax.TensorType | None = None
    narrow: tuple[relax.Var, ...] = ()


@dataclass
class Plan:
    """Of a function: what goes, what another call computes, and who takes whose extra result.

    takes : of a site the place of an operand, and the site whose extra result it is.
    fields : of a site whose results are others now, or of a call that a site computes too: the
        site, and for each old field the new one.
    renamed : a variable that is a field of what a site's call gives now; what is made of it before
        that comes behind it, unless it is a site's itself.
    """

    function: Graph
    sites: dict[relax.Var, Site] = field(default_factory=dict)
    refused: dict[relax.Var, str] = field(default_factory=dict)
    dropped: set[relax.Var] = field(default_factory=set)
    takes: dict[relax.Var, tuple[int, relax.Var]] = field(default_factory=dict)
    fields: dict[relax.Var, tuple[relax.Var, dict[int, int]]] = field(default_factory=dict)
    renamed: dict[relax.Var, tuple[relax.Var, int]] = field(default_factory=dict)


Planner = Callable[[Graph], Plan]


def lower(
    mod: tvm.IRModule, family: Family, plan: Planner, arch: int, then: Rewrite | None = None
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with the calls that a family's plan names as calls of generated functions.

    Functions that are a code generator's, or fused, stay.  `arch` is the oldest GPU that runs the
    module, as nvcc numbers it (90 of sm_90).  `then` changes some of a function's calls once all
    are written, and says which symbols they have now.
    """
    out, symbols, entries = mod.clone(), Symbols(family), []
    for var, func in functions_in(mod, by_name=True):
        if is_closed(func):
            continue
        made = plan(Graph(func))
        names = {v: symbols.of(site.call) for v, site in made.sites.items()}
        if made.sites:
            written = _Writer(made, names).function()
            if then is not None:
                written, changed = then(written, symbols)
                names = {v: changed.get(str(v.name), name) for v, name in names.items()}
            out.update_func(var, written)
        for binding in made.function.bindings:
            v = binding.var
            host = made.fields[v][0] if v in made.fields else v
            if host in names or v in made.refused:
                op = op_name(binding.value).rpartition(".")[2]
                reason = made.refused.get(v, "")
                name = str(var.name_hint)
                entries.append(DirectEntry(name, str(v.name), op, names.get(host, ""), reason))
    if then is not None:
        symbols.keep(_called(out))
    return with_source(out, symbols, arch), tuple(entries)


def _called(mod: tvm.IRModule) -> set[str]:
    """The symbols of all functions that a module's call."""
    return {
        str(binding.value.args[0].global_symbol)
        for _, func in functions_in(mod)
        for binding in bindings_of(func)
        if op_name(binding.value) == "relax.call_dps_packed"
    }


def lower_together(
    mod: tvm.IRModule, family: Family, op: str, rewrite: Rewrite, arch: int
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with calls that stand for many operators each, made a function at a time.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    op : what entries say that the calls are of.
    rewrite : a function, and the symbols that it may add to, to what it becomes and the symbols of
        the calls by the names of their variables; without any it stays.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each call that was made.
    """
    out, symbols, entries = mod.clone(), Symbols(family), []
    for var, func in functions_in(mod, by_name=True):
        if is_closed(func) or dataflow_block(func) is None:
            continue
        made, calls = rewrite(func, symbols)
        if calls:
            out.update_func(var, made)
            name = str(var.name_hint)
            entries += [DirectEntry(name, node, op, symbol) for node, symbol in calls.items()]
    return with_source(out, symbols, arch), tuple(entries)


def with_source(mod: tvm.IRModule, symbols: Symbols, arch: int) -> tvm.IRModule:
    """The module with the source of all symbols among what it is linked with."""
    calls = list(symbols.calls.values())
    if not calls:
        return mod
    source = symbols.family.generate(calls, arch)
    exported = [*(call.symbol for call in calls), symbols.family.plans]
    module = get_global_func("runtime.CSourceModuleCreate")(source, "cc", exported, [])
    mod = with_symbols(mod, {call.symbol: symbols.family.overwrites_of(call) for call in calls})
    if symbols.family.moves:
        known = list(mod.attrs[keys.MOVES]) if mod.attrs and keys.MOVES in mod.attrs else []
        mod = mod.with_attr(keys.MOVES, [*known, *(call.symbol for call in calls)])
    present = mod.attrs[_EXTERNAL] if mod.attrs and _EXTERNAL in mod.attrs else []
    return mod.with_attr(_EXTERNAL, [*present, module])


def written(
    symbol: str, args: Sequence[Expr], results: Sequence[relax.Var], name: str
) -> list[relax.Binding]:
    """A call of a generated function, bound to a new variable `name`, and behind it its results,
    each bound to its variable, which has its type."""
    types = [result.ty for result in results]
    call = normal(relax.call_dps_packed(symbol, list(args), types if types[1:] else types[0]))
    whole = relax.DataflowVar(name, call.ty)
    fields = [normal(relax.TupleGetItem(whole, i)) for i in range(len(types))] if types[1:] else (
        [whole]
    )  # fmt: skip
    own = [relax.VarBinding(var, field) for var, field in zip(results, fields, strict=True)]
    return [relax.VarBinding(whole, call), *own]


class Symbols:
    """Of a module: one function for all calls that differ in sizes alone."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.calls: dict[Any, Any] = {}  # without its symbol -> with it

    def of(self, call: Any) -> str:
        known = replace(call, symbol="")
        if known not in self.calls:
            symbol = f"{self.family.codegen}_{len(self.calls)}"
            self.calls[known] = replace(call, symbol=symbol)
        return str(self.calls[known].symbol)

    def keep(self, called: set[str]) -> None:
        """Forgets those that nothing calls any more."""
        self.calls = {known: call for known, call in self.calls.items() if call.symbol in called}


class _Writer:
    """Writes a function as its plan has it."""

    def __init__(self, plan: Plan, names: dict[relax.Var, str]) -> None:
        self.plan, self.names = plan, names
        self.variable: type[relax.Var] = relax.Var  # of the block that is written
        self.changed: dict[relax.Var, Any] = {}
        self.extras: dict[relax.Var, relax.Var] = {}
        self.narrowed: dict[relax.Var, relax.Var] = {}
        self.written: dict[relax.Var, relax.Var] = {}  # a site's call
        self.waiting: dict[relax.Var, list[Any]] = {}  # fields of a site that is not yet written
        self.gone: set[relax.Var] = set()  # fields that nothing has any more
        self.late: dict[relax.Var, relax.Var] = {}  # a variable that waits -> the site

    def function(self) -> relax.Function:
        return rebuilt(self.plan.function.func, self._block)

    def _block(self, block: Block) -> list[relax.Binding]:
        self.variable = variable_of(block)
        return [new for binding in block.bindings for new in self._binding(binding)]

    def _binding(self, binding: Any) -> Sequence[Any]:
        var, value = binding.var, binding.value
        site = self.plan.sites.get(var)
        if var in self.plan.dropped:
            return []
        if var in self.plan.renamed:
            host, index = self.plan.renamed[var]
            if host not in self.written:
                return self._wait(host, binding)
            item = normal(relax.TupleGetItem(self.written[host], index))
            return [relax.VarBinding(var, item)]
        if var in self.narrowed:
            return [] if isinstance(var, relax.DataflowVar) else [
                relax.VarBinding(var, self.narrowed[var])
            ]  # fmt: skip
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.plan.fields:
            return self._field(binding)
        waits = [v for v in variables_of(value) if v in self.late] if site is None else []
        if waits:
            return self._wait(self.late[waits[0]], binding)
        if isinstance(value, relax.Var) and value in self.gone:
            self.gone.add(var)
            return []
        if site is None:
            uses = any(v in self.changed for v in variables_of(value))
            if not uses or not isinstance(binding, relax.VarBinding):
                return [binding]
            return [relax.VarBinding(var, normal(substitute(value, self.changed)))]
        before: list[Any] = []
        args = [self._operand(arg, before) for arg in site.args]
        if var in self.plan.takes:
            place, source = self.plan.takes[var]
            args[place] = self.extras[source]
        ty = value.ty
        if site.narrow:
            ty = relax.TensorType(ty.shape, str(args[0].ty.dtype), ty.vdevice)
        single = not isinstance(ty, relax.TupleType)
        own = site.fields or ([ty] if single else list(ty.fields))
        types = [*own, *([site.extra] if site.extra else [])]
        name = self.names[var]
        made = relax.call_dps_packed(name, args, types[0] if len(types) == 1 else types)
        results = self._results(var, normal(made), site, single)
        self.written[var] = results[0].var
        later: list[Any] = []
        for waiting in self.waiting.pop(var, []):
            self.late.pop(waiting.var)
            later += self._binding(waiting)
        return [*before, *results, *later]

    def _operand(self, arg: Any, before: list[Any]) -> Expr:
        """An operand as it is now; a field becomes a binding of its own."""
        if not isinstance(arg, Field):
            return substitute(arg, self.changed)
        item = normal(relax.TupleGetItem(self.written[arg.site], arg.index))
        before.append(relax.VarBinding(self.variable("field", item.ty), item))
        return before[-1].var

    def _field(self, binding: Any) -> Sequence[Any]:
        """A field of a call that is another's now, once that is there; nothing where it is gone."""
        site, places = self.plan.fields[binding.value.tuple_value]
        if site not in self.written:
            return self._wait(site, binding)
        place = places.get(int(binding.value.index))
        if place is None:
            self.gone.add(binding.var)
            return []
        item = normal(relax.TupleGetItem(self.written[site], place))
        return [relax.VarBinding(binding.var, item)]

    def _wait(self, site: relax.Var, binding: Any) -> Sequence[Any]:
        self.waiting.setdefault(site, []).append(binding)
        self.late[binding.var] = site
        return []

    def _results(self, var: relax.Var, made: Expr, site: Site, single: bool) -> Sequence[Any]:
        if site.narrow:
            narrow = self.variable(var.name, made.ty)
            self.narrowed |= dict.fromkeys(site.narrow, narrow)
            self.changed |= dict.fromkeys(site.narrow, narrow)
            return [relax.VarBinding(narrow, made)]
        if site.extra is None and not site.fields:
            return [relax.VarBinding(var, made)]
        new = self.variable(f"{var.name}_all" if single else var.name, made.ty)
        if site.extra is None and single:
            first = normal(relax.TupleGetItem(new, 0))
            return [relax.VarBinding(new, made), relax.VarBinding(var, first)]
        if site.extra is None:
            self.changed[var] = new
            return [relax.VarBinding(new, made)]
        extra = self.variable(f"{var.name}_told", site.extra)
        self.extras[var] = extra
        last = normal(relax.TupleGetItem(new, len(made.ty.fields) - 1))
        bindings = [relax.VarBinding(new, made), relax.VarBinding(extra, last)]
        if single:
            return [*bindings, relax.VarBinding(var, normal(relax.TupleGetItem(new, 0)))]
        self.changed[var] = new
        return bindings


def same_type(a: Expr, b: Expr) -> bool:
    """Whether two tensors are of one shape and dtype, as far as it is known."""
    if not all(isinstance(x.ty, relax.TensorType) and x.ty.shape is not None for x in (a, b)):
        return False
    shapes = [[as_size(n) for n in x.ty.shape.values] for x in (a, b)]
    return str(a.ty.dtype) == str(b.ty.dtype) and bool(shapes[0] == shapes[1])
