"""A pass that computes one sum of a product where others are that sum times something small.

Gradients sum the same large product several times: with n a number for each channel of an image, of

    sum(dy h n, images and pixels)      sum(dy h gamma, pixels)

both are made of sum(dy h, pixels), which reads dy and h once, and what makes them once.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..graph.def_use import Graph
from ..graph.rebuild import normal, rebuilt, variable_of, with_functions, without_unused
from ..graph.walk import Block
from ..layout_rules.in_layout import sizes_of

_SUM, _COLLAPSE, _PRODUCT = "relax.sum", "relax.collapse_sum_to", "relax.multiply"
_DTYPES = ("float32", "float64")  # halves would be rounded in another order
_LEAST = 4  # elements of a sum
_MOST = 8  # factors

Expr = Any


@dataclass
class _Sum:
    """One that may be written so: its call, factors of both kinds, and the axes summed first."""

    call: relax.Call
    large: tuple[relax.Var, ...]
    small: tuple[Expr, ...]
    first: tuple[int, ...]

    @property
    def key(self) -> Any:
        return frozenset(Counter(self.large).items()), self.first


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.factored_sums")
class FactoredSums:
    """For operators, before they are legalized."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with such sums by the one that they share."""
        return with_functions(mod, lambda _, func: _factored(func))


def _factored(func: relax.Function) -> relax.Function:
    graph = Graph(func)
    groups: dict[Any, list[tuple[relax.Var, _Sum]]] = defaultdict(list)
    for binding in graph.bindings:
        found = _read(graph, binding.var)
        if found is not None:
            groups[graph.block[binding.var], found.key].append((binding.var, found))
    chosen = {var: found for group in groups.values() if len(group) > 1 for var, found in group}
    if not chosen:
        return func
    return without_unused(rebuilt(func, lambda block: _written(block, chosen)))


def _read(graph: Graph, var: relax.Var) -> _Sum | None:
    """A sum of a product, some of whose factors are the same along some of what it is over."""
    call = graph.call(var, _SUM, _COLLAPSE)
    if call is None or str(call.ty.dtype) not in _DTYPES or not isinstance(var, relax.DataflowVar):
        return None
    sizes, axes = sizes_of(call.args[0].ty), _axes(call)
    if sizes is None or axes is None or not all(isinstance(n, int) for n in sizes):
        return None
    factors = _factors(graph, call.args[0])
    if not 1 < len(factors) <= _MOST:
        return None
    along = [_along(factor, sizes) for factor in factors]
    if any(one is None for one in along):
        return None
    whole = set(range(len(sizes)))
    large = tuple(f for f, one in zip(factors, along, strict=True) if one == whole)
    small = [(f, one) for f, one in zip(factors, along, strict=True) if one != whole]
    first = tuple(a for a in axes if not any(one and a in one for _, one in small))
    if not large or not all(isinstance(f, relax.Var) for f in large):
        return None
    if math.prod(sizes[a] for a in first) < _LEAST:
        return None
    return _Sum(call, large, tuple(f for f, _ in small), first)


def _axes(call: relax.Call) -> list[int] | None:
    """The axes that a call sums over, of which none has size 1."""
    sizes = sizes_of(call.args[0].ty)
    if sizes is None:
        return None
    if str(call.op.name) == _SUM:
        given = call.attrs.axis
        axes = range(len(sizes)) if given is None else (int(a) % len(sizes) for a in given)
        return sorted(a for a in axes if sizes[a] != 1)
    left = sizes_of(call.ty)
    if left is None:
        return None
    left = [1] * (len(sizes) - len(left)) + left
    return [a for a, (n, kept) in enumerate(zip(sizes, left, strict=True)) if n != kept]


def _factors(graph: Graph, expr: Expr) -> list[Expr]:
    """What a product is made of, in order; a value that is none is its only factor."""
    found: list[Expr] = []
    rest = [expr]
    while rest and len(found) <= _MOST:
        one = rest.pop()
        product = graph.call(one, _PRODUCT)
        if product is None:
            found.append(one)
        else:
            rest += reversed(product.args)
    return found


def _along(factor: Expr, sizes: list[int]) -> set[int] | None:
    """The axes of a product along which a factor is not one number."""
    own = sizes_of(factor.ty)
    if own is None or not isinstance(factor, relax.Var | tvm.ir.Constant):
        return None
    before = len(sizes) - len(own)
    return {before + i for i, n in enumerate(own) if n != 1} | {
        a for a, n in enumerate(sizes) if n == 1
    }


def _written(block: Block, chosen: dict[relax.Var, _Sum]) -> list[relax.Binding]:
    variable, bindings = variable_of(block), []
    shared: dict[Any, relax.Var] = {}

    def emit(name: str, value: Expr) -> relax.Var:
        value = normal(value)
        bindings.append(relax.VarBinding(variable(name, value.ty), value))
        return bindings[-1].var

    def product(name: str, factors: tuple[Expr, ...]) -> Expr:
        made = factors[0]
        for factor in factors[1:]:
            made = emit(name, relax.op.multiply(made, factor))
        return made

    for binding in block.bindings:
        found = chosen.get(binding.var)
        if found is None:
            bindings.append(binding)
            continue
        if found.key not in shared:
            terms = product("terms", found.large)
            shared[found.key] = emit(
                "shared", relax.op.sum(terms, list(found.first), keepdims=True)
            )
        scaled = product("scaled", (shared[found.key], *found.small))
        if str(found.call.op.name) == _COLLAPSE:
            total = relax.op.collapse_sum_to(scaled, found.call.args[1])
        else:
            given, keep = found.call.attrs.axis, bool(found.call.attrs.keepdims)
            total = relax.op.sum(scaled, None if given is None else list(given), keepdims=keep)
        bindings.append(relax.VarBinding(binding.var, normal(total), binding.span))
    return bindings
