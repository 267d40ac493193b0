"""A backward part in pieces, one after another: each gives the gradients that are ready by its end.

So what several processes do with gradients, such as averaging them, begins while the rest of the
backward part runs.  A piece ends where enough bytes of gradients are ready, before an operator that
is not fused with what makes its operands: what crosses there lies in memory in any case.

A gradient is ready when nothing reads its parameter any more.  Who has a gradient may update the
parameter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from .. import keys
from ..graph.def_use import Graph
from ..graph.walk import variables_of
from ..ir import bytes_of, op_name
from .cut import FUSING, function_of, needed, saved_and_recomputed


@dataclass(frozen=True)
class Piece:
    """A function: (`given`…, `takes`…) to (`gradients`…, `hands`…).

    name : the function's.
    given : the places of the backward part's arguments, without the direction.
    takes : numbers of values that are handed on: 0 is the direction, the others are pieces'.
    gradients : the places of the gradients that it gives.
    hands : the numbers of the values that it gives for later pieces.
    """

    name: str
    given: tuple[int, ...]
    takes: tuple[int, ...]
    gradients: tuple[int, ...]
    hands: tuple[int, ...] = ()


def in_pieces(
    func: relax.Function,
    parameters: Sequence[relax.Var | None],
    waits: Sequence[bool],
    limits: tuple[int, int],
) -> tuple[dict[str, relax.Function], tuple[Piece, ...]]:
    """A function (arguments…, direction) to (gradients…) as functions by name, and its pieces.

    parameters : of each gradient the argument that it is by, if it is one.
    waits : of each gradient whether it comes with the last piece.
    limits : the bytes of gradients from which the first piece ends, and each later one.
    """
    graph = Graph(func)
    values = {binding.var: binding.value for binding in graph.bindings}
    gradients = [graph.resolved(gradient) for gradient in func.body.body.fields]
    late = _late(func, values) & needed(gradients, graph, ())
    ready = [
        math.inf if wait else place
        for place, wait in zip(_ready(graph, late, gradients, parameters), waits, strict=True)
    ]
    starts, given = _starts(graph, late, gradients, ready, limits)
    slices = [
        {b.var for b in graph.bindings[start:end] if b.var in late}
        for start, end in itertools.pairwise([*starts, len(values)])
    ]
    wanted = [[gradients[g] for g in some] for some in given]
    parts, takes, hands = _parts(graph, values, slices, wanted)
    *arguments, direction = func.params
    numbers = {direction: 0}
    for some in hands:
        numbers |= {var: len(numbers) + i for i, var in enumerate(some)}
    functions, pieces = {}, []
    for number, (mine, kept) in enumerate(zip(parts, takes, strict=True)):
        read = {v for var in mine for v in variables_of(values[var])} | {*wanted[number]}
        params = [var for var in arguments if var in read]
        taken = [var for var in (direction, *kept) if var in read]
        name = str(func.attrs[keys.SYMBOL]) + (f"_{number + 1}" if number else "")
        functions[name] = function_of(
            name, [*params, *taken], [*params, *taken], [v for v in values if v in mine], values,
            [*wanted[number], *hands[number]],
        )  # fmt: skip
        pieces.append(Piece(
            name, tuple(arguments.index(var) for var in params),
            tuple(numbers[var] for var in taken), tuple(given[number]),
            tuple(numbers[var] for var in hands[number]),
        ))  # fmt: skip
    return functions, tuple(pieces)


Variables = list[list[relax.Var]]


def _parts(
    graph: Graph, values: dict[Any, Any], slices: Sequence[set[Any]], wanted: Sequence[list[Any]]
) -> tuple[list[set[Any]], Variables, Variables]:
    """(the variables of each piece, those that it takes of earlier ones, that it hands on).

    slices : of each piece what depends on the direction; wanted : its gradients.
    """
    # Where each variable is made: what does not depend on the direction, where it is read first.
    where: dict[relax.Var, int] = {}
    parts, takes = [], []
    for number, (some, results) in enumerate(zip(slices, wanted, strict=True)):
        roots = [*(some - where.keys()), *results]
        mine = needed(roots, graph, where)
        for var, value in values.items():  # a part of a tuple is as good as made
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in mine:
                mine.add(var)
        kept, again = saved_and_recomputed(graph, values, set(where), mine, [*roots, *mine])
        where |= dict.fromkeys(mine, number)
        parts.append(mine | again)
        takes.append(kept)
    handed = {var for kept in takes for var in kept}
    hands = [[v for v in values if v in handed and where[v] == n] for n in range(len(parts))]
    return parts, takes, hands


def _late(func: relax.Function, values: dict[Any, Any]) -> set[relax.Var]:
    """The variables that depend on the direction."""
    late = {func.params[-1]}
    for var, value in values.items():
        if not late.isdisjoint(variables_of(value)):
            late.add(var)
    return late


def _ready(
    graph: Graph, late: set[Any], gradients: Sequence[Any], parameters: Sequence[Any]
) -> list[int]:
    """Of each gradient the last binding that makes it, or that reads its parameter."""
    # What is made of parameters alone is made where it is read, or before.
    made_of = {var: {var} for var in parameters if var is not None}
    last: dict[Any, int] = {}
    for place, binding in enumerate(graph.bindings):
        read = set().union(*(made_of.get(var, ()) for var in variables_of(binding.value)))
        if binding.var in late:
            last |= dict.fromkeys(read, place)
        else:
            made_of[binding.var] = read
    return [
        max(graph.index.get(gradient, -1), last.get(parameter, -1))
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


def _starts(
    graph: Graph, late: set[Any], gradients: Sequence[Any], ready: Sequence[float],
    limits: tuple[int, int],
) -> tuple[list[int], list[list[int]]]:  # fmt: skip
    """(the bindings at which pieces begin, the places of the gradients that each of them gives)."""
    starts, given, rest = [0], list[list[int]](), list(range(len(gradients)))
    for place, binding in enumerate(graph.bindings):
        if binding.var not in late or op_name(binding.value) in {"", *FUSING}:
            continue
        due = [g for g in rest if ready[g] < place]
        size = sum(bytes_of(gradients[g].ty) for g in due)
        if len(due) < len(rest) and size >= limits[bool(given)]:
            starts.append(place)
            given.append(due)
            rest = [g for g in rest if ready[g] >= place]
    return starts, [*given, rest]
