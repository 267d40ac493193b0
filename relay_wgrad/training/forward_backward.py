"""A training graph as two functions: forward, and backward from a gradient of its first result.

The gradient of `sum(result * direction)` by the parameters is linear in `direction`.  What its
adjoint needs for the results is the forward part; all else is the backward part, which takes the
direction as its last argument.  Whatever scale that has is so in every half-precision tensor of the
backward part, as it is in PyTorch's.

Of the forward part's variables the backward part gets what convolutions and the like read, and what
cannot be made from those by element-wise operators; the others it computes again, fused with what
reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import tvm
from tvm import relax

from ..facts import Link, chain_attrs
from ..frontend import TrainingGraph
from ..graph.def_use import Graph
from ..ir import op_name
from ..transform.depth_forms import Wanted
from ..transform.grad_paths import NO_GRAD
from .cut import function_of, moved_again, needed, saved_and_recomputed
from .pieces import Piece, in_pieces
from .step import ADJOINT, converted, differentiated

FORWARD, BACKWARD, DIRECTION = "main_forward", ADJOINT, "output_gradient"


@dataclass(frozen=True)
class Source:
    """Where an argument of the backward part is from: the forward part's arguments, its outputs (of
    the graph), or what it keeps; `index` counts from the first of its kind."""

    kind: str  # "argument", "output" or "kept"
    index: int


@dataclass(frozen=True)
class Parts:
    """How parts are called: `main_forward`: (inputs…, parameters…) to (outputs…, kept…), and, where
    there are gradients, `main_adjoint`: (`sources`…, direction) to (gradients…), or that in
    `pieces`, of which it is the first."""

    outputs: int
    sources: tuple[Source, ...] = ()
    wrt: tuple[str, ...] = ()  # whose gradients there are
    pieces: tuple[Piece, ...] = ()

    @property
    def names(self) -> list[str]:
        """The functions', in the order in which they are called."""
        return [FORWARD, *(piece.name for piece in self.pieces)] if self.wrt else [ADJOINT]

    def told(self) -> dict[str, Any]:
        """In JSON."""
        return {
            "outputs": self.outputs, "sources": [*map(astuple, self.sources)], "wrt": self.wrt,
            "pieces": [*map(astuple, self.pieces)],
        }  # fmt: skip

    @staticmethod
    def of(told: Mapping[str, Any]) -> Parts:
        """What `told` said."""
        return Parts(
            told["outputs"], tuple(Source(*each) for each in told["sources"]), tuple(told["wrt"]),
            tuple(Piece(name, *map(tuple, numbers)) for name, *numbers in told["pieces"]),
        )  # fmt: skip


@dataclass(frozen=True)
class TwoParts(Parts):
    """Parts, and the module that has them.  They are a chain there: attributes say what each takes
    of the others."""

    module: tvm.IRModule = field(kw_only=True)


def two_parts(
    graph: TrainingGraph,
    *,
    wrt: Sequence[str],
    dtype: str | None = None,
    layout: str | None = None,
    checkpoint: str | Sequence[str] | None = None,
    wide_weight_gradients: bool = True,
    raise_norms: bool = False,
    blocks: Wanted = False,
    pieces: tuple[int, int] | None = None,
) -> TwoParts:
    """The two parts of a graph, differentiated by `wrt`, parameters or inputs by name.

    pieces : None, or the bytes of gradients from which the first piece of the backward part ends,
        and each later one; those of inputs come with the last.

    Those that the first result does not depend on, or only where gradients stop, are left out: they
    have none, and not one of zeros that an optimizer would go by.  Without any there is the forward
    part alone, under the name `main_adjoint`.  The other options are those of `step_module` and
    `converted`.

    Raises ValueError as `relay_wgrad.transform.grad` does.
    """
    module, parting = to_part(
        graph, wrt=wrt, dtype=dtype, layout=layout, checkpoint=checkpoint,
        wide_weight_gradients=wide_weight_gradients, raise_norms=raise_norms, blocks=blocks,
        pieces=pieces,
    )  # fmt: skip
    parting(module)
    return parting.parts


def to_part(
    graph: TrainingGraph,
    *,
    wrt: Sequence[str],
    dtype: str | None = None,
    layout: str | None = None,
    checkpoint: str | Sequence[str] | None = None,
    wide_weight_gradients: bool = True,
    raise_norms: bool = False,
    blocks: Wanted = False,
    pieces: tuple[int, int] | None = None,
) -> tuple[tvm.IRModule, Parting]:
    """The whole of which `two_parts` makes parts, as `main_adjoint`, and what makes them of it.

    What a forward call and its backward call have to do with each other is to be seen in the whole
    alone, so a compiler may do something with that before it is parted.
    """
    reached = _reached(graph, wrt)
    module = differentiated(
        graph, reached, DIRECTION if reached else None, dtype, checkpoint, wide_weight_gradients,
        raise_norms,
    )  # fmt: skip
    return converted(module, layout, blocks=blocks), Parting(graph, reached, pieces)


class Parting:
    """Makes the parts of a module with `main_adjoint`; `parts`: what became of it."""

    def __init__(
        self, graph: TrainingGraph, wrt: tuple[str, ...], pieces: tuple[int, int] | None
    ) -> None:
        self._graph, self._wrt, self._pieces = graph, wrt, pieces
        self.parts: TwoParts

    def __call__(self, module: tvm.IRModule) -> tvm.IRModule:
        """The module with the parts in the place of the whole."""
        count = len(self._graph.outputs)
        if not self._wrt:
            self.parts = TwoParts(count, module=module)
            return module
        made = _split(module, count, self._wrt)
        if self._pieces is not None:
            made = _cut(made, self._graph, self._pieces)
        self.parts = _chained(made)
        return self.parts.module


def _reached(graph: TrainingGraph, wrt: Sequence[str]) -> tuple[str, ...]:
    """Those of the names whose values the first result depends on, by a way that has a gradient."""
    func = graph.main
    view = Graph(func)
    seen = view.needed_for(
        [func.body.body.fields[0]], lambda var: op_name(view.value.get(var)) != NO_GRAD
    )
    names = {var.name for var in func.params if var in seen}
    return tuple(name for name in wrt if name in names)


def _split(module: tvm.IRModule, count: int, wrt: tuple[str, ...]) -> TwoParts:
    """The adjoint of a function with a direction in two; `count`: of the graph's outputs."""
    func = relax.transform.CanonicalizeBindings()(module)[ADJOINT]
    results, gradients = (list(field.fields) for field in func.body.body.fields)
    parts, sources = _in_two(module, func, results[:count], gradients, [len(func.params) - 1])
    whole = Piece(BACKWARD, tuple(range(len(sources))), (0,), tuple(range(len(wrt))))
    return TwoParts(count, sources, wrt, (whole,), module=parts)


def _in_two(
    module: tvm.IRModule, func: Any, outputs: list[Any], gradients: list[Any], late: Sequence[int]
) -> tuple[tvm.IRModule, tuple[Source, ...]]:
    """(the module with the two parts in the place of `func`, what the backward part takes).

    outputs : variables that the forward part is there for.
    late : the places of parameters that it has not, which the backward part takes behind its
        sources.
    """
    graph = Graph(func)
    values = {binding.var: binding.value for binding in graph.bindings}
    forward = needed(outputs, graph, frozenset())
    backward = needed(gradients, graph, forward)
    # A part of a tuple is as good as made.
    for var in values:
        value = values[var]
        is_part = var in backward and isinstance(value, relax.TupleGetItem)
        if is_part and value.tuple_value in forward:
            forward.add(var)
            backward.discard(var)
    kept, again = saved_and_recomputed(graph, values, forward, backward, gradients)
    backward |= again
    later = [var for var in values if var in backward]
    moved = moved_again(module, graph, values, kept, later)
    made = {var for some in moved.values() for var in some}
    backward |= made
    kept = [var for var in kept if var not in made]
    later = list(dict.fromkeys(one for var in later for one in (*moved.get(var, ()), var)))
    params = list(func.params)
    early = [var for i, var in enumerate(params) if i not in late]
    given = [
        var for var in early
        if var in gradients or any(user.var in backward for user in graph.users_of(var))
    ]  # fmt: skip
    sources = [Source("argument", params.index(var)) for var in given]
    saved: list[Any] = []
    for var in kept:
        if var in outputs:
            sources.append(Source("output", outputs.index(var)))
        else:
            sources.append(Source("kept", len(saved)))
            saved.append(var)
    order = [var for var in values if var in forward]
    parts = module.clone()
    del parts[ADJOINT]
    parts[FORWARD] = function_of(FORWARD, early, early, order, values, [*outputs, *saved])
    taken = [*given, *kept, *(params[i] for i in late)]
    parts[BACKWARD] = function_of(BACKWARD, taken, taken, later, values, gradients)
    return parts, tuple(sources)


class PartingJoint:
    """Makes the parts of a module with `main_adjoint` (arguments…, tangents…) to (results…), of
    someone else's forward and backward pass in one; `parts`: what became of it.

    outputs, gradients : the places of results of the forward and of the backward part.
    tangents : the places of the parameters that only the backward part takes.
    """

    def __init__(
        self, outputs: Sequence[int], gradients: Sequence[int], tangents: Sequence[int]
    ) -> None:
        self._outputs, self._gradients, self._tangents = outputs, gradients, tangents
        self.parts: TwoParts

    def __call__(self, module: tvm.IRModule) -> tvm.IRModule:
        """The module with the parts in the place of the whole.

        Raises ValueError for a gradient that the backward part would not compute.
        """
        func = relax.transform.CanonicalizeBindings()(module)[ADJOINT]
        results = list(func.body.body.fields)
        outputs, gradients = (
            [results[i] for i in places] for places in (self._outputs, self._gradients)
        )
        made, sources = _in_two(module, func, outputs, gradients, self._tangents)
        backward = Graph(made[BACKWARD])
        params = {*made[BACKWARD].params}
        if any(backward.resolved(x) in params for x in made[BACKWARD].body.body.fields):
            raise ValueError("a gradient is what the forward pass keeps")
        late, every = (tuple(range(len(given))) for given in (self._tangents, gradients))
        whole = Piece(BACKWARD, tuple(range(len(sources))), late, every)
        self.parts = _chained(TwoParts(len(outputs), sources, (), (whole,), module=made))
        return self.parts.module


def _cut(parts: TwoParts, graph: TrainingGraph, limits: tuple[int, int]) -> TwoParts:
    """The backward part in pieces of so many bytes."""
    func = parts.module[BACKWARD]
    names = [var.name for var in graph.main.params]
    given = {
        names[source.index]: var
        for source, var in zip(parts.sources, func.params, strict=False)
        if source.kind == "argument"
    }
    trained = set(graph.trainable)
    waits = [name not in trained for name in parts.wrt]
    functions, pieces = in_pieces(func, [given.get(name) for name in parts.wrt], waits, limits)
    module = parts.module.clone()
    del module[BACKWARD]
    for name, function in functions.items():
        module[name] = function
    return replace(parts, module=module, pieces=pieces)


def _chained(parts: TwoParts) -> TwoParts:
    """The parts with what each of them takes of the ones before (`relay_wgrad.facts.Link`)."""
    made = {"output": 0, "kept": parts.outputs}
    given: list[tuple[int, int] | None] = [
        (0, made[source.kind] + source.index) if source.kind in made else None
        for source in parts.sources
    ]
    # Of no part: the direction, or tangents.
    handed: dict[int, tuple[int, int] | None] = dict.fromkeys(parts.pieces[0].takes)
    links = {FORWARD: Link(0, [None] * len(parts.module[FORWARD].params))}
    for place, piece in enumerate(parts.pieces, start=1):
        takes = [*(given[i] for i in piece.given), *(handed[i] for i in piece.takes)]
        links[piece.name] = Link(place, takes)
        handed |= {n: (place, i) for i, n in enumerate(piece.hands, start=len(piece.gradients))}
    module = parts.module.clone()
    for name, link in links.items():
        module[name] = module[name].with_attrs(chain_attrs(link))
    return replace(parts, module=module)
