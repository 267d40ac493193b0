"""PartitionGraph: each region of another compiler as a global function, called in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...keys import COMPILER, INLINE, PRIMITIVE, SYMBOL
from ..ast import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    children,
)
from ..iterative_walks import order
from ..records.annotation import BEGIN, END
from ..rewrite import rewrite, with_children
from ..types import TupleType
from .annotate_target import DEFAULT, mark_of, marked
from .regions import Region, Regions


def partition_graph(mod: IRModule, mod_name: str, bind_constants: bool) -> IRModule:
    """The module with its regions as functions `tvmgen_<mod_name>_<compiler>_<function>_<n>`."""
    functions = dict(mod.functions)
    made: dict[str, Function] = {}

    def fresh(name: str) -> str:
        wanted = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        unique, count = wanted, 0
        while unique in functions or unique in made:
            count += 1
            unique = f"{wanted}_{count}"
        return unique

    for name, function in mod.functions.items():
        if COMPILER in function.attrs:
            continue  # of an earlier partition

        def named(region: Region, name: str = name) -> str:
            return fresh(f"tvmgen_{mod_name}_{region.target}_{name}_{region.number}")

        work = _Partition(_prepared(function), named, bind_constants)
        functions[name] = work.run()
        made.update(work.made)
    return replace(mod, functions={**functions, **dict(sorted(made.items()))})


def _prepared(function: Function) -> Function:
    """Ends of tuples at their fields, and no marks of the default compiler."""

    def change(old: Expr, new: Expr) -> Expr:
        compiler = mark_of(new, END)
        if compiler is None and mark_of(new, BEGIN) is None:
            return new
        assert isinstance(new, Call)
        inner = new.args[0]
        if DEFAULT in (compiler, mark_of(new, BEGIN)):
            return inner
        if compiler is not None and isinstance(inner, Tuple):
            return replace(inner, fields=tuple(marked(f, END, compiler) for f in inner.fields))
        return new

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


@dataclass
class _Made:
    """A region's function as it comes to be."""

    places: dict[Expr, int]  # of the operands' marks
    params: dict[Expr, Var] = field(default_factory=dict)  # by what they stand for
    args: list[Expr] = field(default_factory=list)
    results: dict[Expr, Expr] = field(default_factory=dict)  # the node that ends -> its value


class _Partition:
    """The partition of one function."""

    def __init__(
        self, function: Function, named: Callable[[Region], str], bind_constants: bool
    ) -> None:
        self.function = function
        self.named = named
        self.bind_constants = bind_constants
        self.regions = Regions(function)
        self.made: dict[str, Function] = {}
        self._of: dict[Region, _Made] = {}
        self._new: dict[Expr, Expr] = {}

    def run(self) -> Function:
        for node in order(self.function, self._below):
            if mark_of(node, BEGIN) is not None:
                assert isinstance(node, Call)
                self._new[node] = self._parameter(node)
            elif mark_of(node, END) is not None:
                assert isinstance(node, Call)
                self._new[node] = self._result(node)
            else:
                self._new[node] = with_children(node, self._new)
        out = self._new[self.function]
        assert isinstance(out, Function)
        return out

    def _region(self, node: Expr) -> Region:
        region = self.regions.find(node)
        assert region is not None, node
        return region

    def _below(self, node: Expr) -> tuple[Expr, ...]:
        # A region's function is made at its first result, with all of them.
        if mark_of(node, END) is None:
            return children(node)
        ends = self._region(node).outputs
        return (*children(node), *(end.args[0] for end in ends))

    def _parameter(self, begin: Call) -> Var:
        region = self._region(begin)
        if region not in self._of:
            self._of[region] = _Made({mark: i for i, mark in enumerate(region.inputs)})
        made = self._of[region]
        source: Expr = begin.args[0]
        while isinstance(source, Call) and (mark_of(source, BEGIN) or mark_of(source, END)):
            source = source.args[0]
        if source not in made.params:
            name = f"{region.target}_{region.number}_i{made.places[begin]}"
            ty = begin.checked_type
            made.params[source] = Var(name, ty, checked_type=ty)
            made.args.append(self._new[begin.args[0]])
        return made.params[source]

    def _result(self, end: Call) -> Expr:
        region = self._region(end)
        made = self._of[region]
        if not made.results:
            nodes = list(dict.fromkeys(mark.args[0] for mark in region.outputs))
            late = [node for node in nodes if node not in self._new]
            if late:
                raise ValueError(
                    f"PartitionGraph: a region of {region.target} needs its own result"
                    f" {late[0]!r}: its marks make a circle"
                )
            call = self._call(region, made, [self._new[node] for node in nodes])
            if len(nodes) == 1:
                made.results[nodes[0]] = call
            else:
                for i, node in enumerate(nodes):
                    ty = node.checked_type
                    made.results[node] = TupleGetItem(call, i, checked_type=ty)
        return made.results[end.args[0]]

    def _call(self, region: Region, made: _Made, results: list[Expr]) -> Call:
        """Makes the region's function; the call of it."""
        params, args = list(made.params.values()), made.args
        bound: dict[Expr, Expr] = {}
        if self.bind_constants:
            bound = {p: a for p, a in zip(params, args, strict=True) if _is_constant(a)}
        body: Any = results[0]
        if len(results) > 1:
            ty = TupleType(tuple(result.checked_type for result in results))  # type: ignore[misc]
            body = Tuple(tuple(results), checked_type=ty)
        if bound:
            body = rewrite(body, lambda _, new: new, dict(bound))
            args = [a for p, a in zip(params, args, strict=True) if p not in bound]
            params = [p for p in params if p not in bound]
        name = self.named(region)
        attrs = {COMPILER: region.target, PRIMITIVE: 1, INLINE: 1, SYMBOL: name}
        out = body.checked_type
        self.made[name] = Function(tuple(params), body, out, attrs=Attrs(attrs))
        return Call(GlobalVar(name), tuple(args), checked_type=out)


def _is_constant(node: Expr) -> bool:
    if isinstance(node, Tuple):
        return all(isinstance(f, Constant) for f in node.fields)
    return isinstance(node, Constant)
