"""AOTAutograd's forward and backward pass compiled as a whole, and then parted.

What a normalization's forward call hands its backward call, casts that both passes read and places
of memory are to be seen in the whole alone (`relay_wgrad.training.forward_backward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ..frontend.gradient_graph import Result
from ..frontend.torch.retracing import inputs_of
from ..picking import picked
from . import host_library
from .backward_part import keeps_graph
from .on_stream import Turns, replayed, unshare
from .programs import Choices, compiled_at, drawn, module_at, one_device
from .replayed import Written
from .reports import CompiledGraph
from .step_node import Cuts, Gradients
from .writes import without_writes


class Passed(NamedTuple):
    """What a forward pass gives.

    results : the graph's.
    hidden, watched : what its backward pass reads; the watched ones are operands and results, which
        callers may change in place.
    token : who has it has the memory of what is hidden; None: each of those has its own.
    stamp : passes of the same one hide the same tensors, but for what they were given; None: each
        hides others.
    """

    results: list[Any]
    hidden: Sequence[torch.Tensor]
    watched: Sequence[torch.Tensor]
    token: torch.Tensor | None = None
    stamp: object = None


class JointProgram:
    """The two passes for tensors of some sizes, memory orders and one device.

    joint : the graph of both: (primals…, tangents…) to (`count` results…, gradients…).
    inputs : for the primals.
    graphs : whether calls on CUDA become CUDA graphs.
    reports : of the forward and of the backward pass.

    Raises ValueError for what cannot be compiled, or not so.
    """

    def __init__(
        self, joint: torch.fx.GraphModule, inputs: Sequence[Any], count: int, graphs: bool,
        chosen: Choices, reports: tuple[CompiledGraph, CompiledGraph],
    ) -> None:  # fmt: skip
        from ..frontend import from_aot
        from ..training.capture import refusal
        from ..training.forward_backward import BACKWARD, FORWARD, PartingJoint

        self.device = one_device(inputs)
        self._reports, self._primals = reports, len(inputs)
        tangents = _tangents(joint, inputs)
        end = len(joint.graph.output_node().args[0])
        joint, self._writes = without_writes(joint)
        made = from_aot(joint, [*inputs, *tangents], name=reports[0].name, channels_last=True)
        for report in reports:
            report.sizes += 1
        self._made = made
        self._split(count, end)
        where = compiled_at(self.device, chosen)
        if graphs and where.is_gpu:
            host_library.begin()  # beside what compiles the program
        module = module_at(where, made)
        late = [i for i, place in enumerate(made.read) if place >= self._primals]
        parting = PartingJoint(self._outputs, self._gradients, late)
        built = where.compile(module, lambda what: None, parting)
        names = [FORWARD, BACKWARD]
        why = refusal(parting.parts.module, names) if graphs else ""
        if self.device.type == "cuda":
            said = why and f"its calls are not one CUDA graph: {why}"
            reports[0].notes += filter(None, [said])
        self._built, self._sources = built, parting.parts.sources
        self._find_sources(count)
        joined = [None, None] if keeps_graph is None else built.joined(names)
        make = partial(
            replayed, where=where, device=self.device, token=True, graphs=graphs and not why
        )
        written = self._written()
        counted = [] if written is None else self._writes.counted
        read = [place for place in made.read if place < self._primals]
        self._pick_read, self._pick_counted = picked(read), picked(counted)
        self._pick_given = None if made.drawn else picked([*read, *counted])
        self._forward = make(
            built.vm[FORWARD], told=reports[0].notes.append, joined=joined[0], written=written,
            last=[x for i, x in enumerate(made.last[0]) if i not in late],
            own={self._outputs.index(v) for kind, v in made.outputs[:count] if _is_made(kind)},
        )  # fmt: skip
        kept = {i for i, source in enumerate(self._sources) if source.kind == "kept"}
        self._backward, self._last = (
            make(
                built.vm[BACKWARD], told=reports[1].notes.append, joined=over, late=1,
                own=range(len(self._gradients)), last=self._last_back,
                private=kept, fresh=[i for i in range(len(self._last_back)) if i not in kept],
            )
            for over in (None, joined[1])
        )  # fmt: skip
        if joined[1] is None:
            self._last = self._backward
        self._hidden: tuple[object, Sequence[Any]] = (None, ())  # of the last stamp
        self._known: tuple[object, object] = (None, None)  # forward stamp, backward stamp
        self._turns = Turns(self.device)
        reports[0].convolutions = [f"{c.op} {c.source}" for c in built.convolutions]

    def _split(self, count: int, end: int) -> None:
        """Finds which results of the function each part gives, and what the graph gives of them.

        count : of the graph's results those of the forward pass.  end : of gradients; behind them
            is what is written into operands.
        """
        made, primals = self._made, self._primals
        forward = [*made.outputs[:count], *made.outputs[end:]]
        backward = made.outputs[count:end]
        self._outputs = list(dict.fromkeys(v for kind, v in forward if _is_made(kind)))
        self._gradients = list(dict.fromkeys(v for kind, v in backward if _is_made(kind)))
        if not self._outputs or not self._gradients:
            raise ValueError("one of the two passes computes nothing")
        if not {*self._outputs}.isdisjoint(self._gradients):
            raise ValueError("a gradient is a result of the forward pass")
        if any(kind.endswith("input") and v < primals for kind, v in backward):
            raise ValueError("a gradient is an operand of the forward pass")
        of = {v: i for i, v in enumerate(self._outputs)} | {
            v: i for i, v in enumerate(self._gradients)
        }
        given = [Result(k, of[v] if _is_made(k) else v) for k, v in forward]
        # Gradients are the caller's, tangents are not.
        gradients = [
            Result(k, of[v]) if _is_made(k) else Result("copy of input" if k == "input" else k, v)
            for k, v in backward
        ]  # fmt: skip
        self._given = replace(made, inputs=made.inputs[:primals], outputs=tuple(given))
        self._differentiated = replace(made, outputs=tuple(gradients))
        flags = made.last[1]
        self._turned = [i for i, v in enumerate(self._outputs) if flags[v]]
        self._turned_back = [i for i, v in enumerate(self._gradients) if flags[v]]
        computed = [result for result in gradients if result != ("value", None)]
        places = [v for kind, v in computed if kind == "result"]
        self._cuts: list[Cuts] | None = None
        if len({*places}) == len(computed):  # each one of its own
            self._cuts = [Cuts(places, turned=self._turned_back) for _ in range(2)]

    def _find_sources(self, count: int) -> None:
        """Finds the backward part's operands among what there is after a forward pass: primals,
        drawn numbers, the graph's results, and what the forward part gave."""
        made, writes = self._made, self._writes
        given = self._given.outputs[:count]
        leaves = {v: i for i, (kind, v) in enumerate(given) if kind == "result"}
        drawn_at = self._primals
        results_at = drawn_at + len(made.drawn)
        parts_at = results_at + count
        kept_at = parts_at + len(self._outputs)
        self._early = list[int]()  # primals that are copied, as they are written into
        places, is_watched, are_last = list[int](), list[bool](), list[bool]()
        for kind, i in ((source.kind, source.index) for source in self._sources):
            watched = is_last = False
            if kind == "kept":
                place = kept_at + i
            elif kind == "output":
                watched, is_last = i in leaves, made.last[1][self._outputs[i]]
                place = results_at + leaves[i] if watched else parts_at + i
                is_last = is_last and watched
            elif i < len(made.read):
                place, is_last = made.read[i], made.last[0][i]
                watched = place not in writes.copied
                self._early += [] if watched else [place]
            else:
                place = drawn_at + i - len(made.read)
            places.append(place)
            is_watched.append(watched)
            are_last.append(is_last)
        hidden, seen = (
            [i for i, x in enumerate(is_watched) if x is is_it] for is_it in (False, True)
        )
        self._pick_hidden = picked([places[i] for i in hidden])
        # Where all of it is what the forward part gave.
        self._pick_kept = picked([places[i] - parts_at for i in hidden])
        self._only_kept = all(places[i] >= parts_at for i in hidden)
        results = [i for i in seen if places[i] >= results_at]
        operands = [i for i in seen if places[i] < results_at]
        self._pick_watched = picked([places[i] for i in operands])
        self._pick_results = picked([places[i] - results_at for i in results])
        at = {i: place for place, i in enumerate((*hidden, *operands, *results))}
        self.watched = len(seen)
        tangents = [i for i in made.read if i >= self._primals]
        first = len(at) - self._primals
        self._pick_operands = picked(
            [*(at[i] for i in range(len(at))), *(first + i for i in tangents)]
        )
        flags = dict(zip(made.read, made.last[0], strict=False))
        self._last_back = [*are_last, *(flags[i] for i in tangents)]

    def forward(self, inputs: Sequence[Any]) -> Passed:
        """A forward pass; buffers are updated."""
        numbers: list[torch.Tensor] = []
        if self._pick_given is None:
            numbers = [drawn(spec, self.device) for spec in self._made.drawn]
            given: Sequence[Any] = [*self._pick_read(inputs), *numbers, *self._pick_counted(inputs)]
        else:
            given = self._pick_given(inputs)
        # Before they are written into.
        early = {i: inputs[i].clone() for i in self._early}
        with self._turns:
            made, read, _, token, written, stamp, _ = self._forward(given)
            self._reports[0].captured = self._forward.is_graph
            if token is None:
                unshare(made, read)
        results = _turned(made[: len(self._outputs)], self._turned)
        found = self._given.results(inputs, results, copy=torch.clone)
        found = self._writes.done(inputs, found, written)
        if self._only_kept:
            of, hidden = self._hidden
            if stamp is None or stamp is not of:
                hidden = self._pick_kept(made)
                self._hidden = (stamp, () if stamp is None else hidden)
        else:
            kept = [early.get(i, x) for i, x in enumerate(inputs)]
            hidden = self._pick_hidden([*kept, *numbers, *found, *made])
        watched = [*self._pick_watched(inputs), *self._pick_results(found)]
        return Passed(found, hidden, watched, token, stamp)

    def backward(
        self, hidden: Sequence[Any], watched: Sequence[Any], tangents: Sequence[Any], ends: bool,
        stamp: object = None, in_blocks: bool = False,
    ) -> Gradients:  # fmt: skip
        """The gradients: of all operands, None of those without one, or only of those with one what
        they are cut out of.

        stamp : of the forward pass.  in_blocks : whether they may be cut out of few tensors.
        ends : whether what is hidden is of a forward pass with a token, and no backward pass will
            come again for it: then what the passes have in memory may be written over.
        """
        operands = self._pick_operands((*hidden, *watched, *tangents))
        function = self._last if ends else self._backward
        with self._turns:
            of, known = self._known
            made, read, _, token, _, gives, blocks = function(
                operands, known if of is stamp else None, in_blocks and self._cuts is not None
            )
            self._known = (stamp, None if stamp is None else gives)
            self._reports[1].captured = function.is_graph
            if token is None:
                unshare(made, read)
        if blocks is not None and self._cuts is not None:
            return blocks, self._cuts[ends].of(function.copies)
        nothing = [None] * self._primals
        found = self._differentiated.results(
            [*nothing, *tangents], _turned(made, self._turned_back), copy=torch.clone
        )
        return found, None

    def _written(self) -> Written | None:
        """What the forward part's calls may write themselves; None where one is no result of it,
        lies otherwise than the operand, or comes with it as it was."""
        writes, given = self._writes, self._given.outputs
        reads = [i for i in self._made.read if i < self._primals]
        at = {i: place for place, i in enumerate(reads)}
        targets = [at.get(i, -1) for i in writes.copied]
        end = len(given) - len(writes.copied)
        sources = [v for kind, v in given[end:] if _is_made(kind)]
        passed = {v for kind, v in given if kind.endswith("input")}
        lasts = {i for i, is_last in enumerate(self._made.last[0]) if is_last}
        if (
            -1 in targets
            or len(sources) < len(targets)
            or lasts & {*targets}
            or {*self._turned} & {*sources}
            or passed & {*writes.copied, *writes.counted}
            or {*writes.steps} - {1}
        ):
            return None
        first = len(reads) + len(self._made.drawn)
        return Written(sources, targets, range(first, first + len(writes.counted)))


def _is_made(kind: str) -> bool:
    """Whether a result of that kind is computed."""
    return kind.endswith("result")


def _turned(tensors: list[Any], places: Sequence[int]) -> list[Any]:
    """The tensors, those of these places with their channels last as they lie in the graph, and no
    views, of which AOTAutograd would keep others."""
    found = [*tensors]
    # Below the key by which autograd makes views.
    with torch._C._AutoDispatchBelowADInplaceOrView():
        for i in places:
            found[i] = found[i].movedim(-1, 1)
    return found


def _tangents(joint: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Tensors without values, as the tangents lie that the graph takes behind these inputs."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    said = inputs_of(joint.graph)
    known: dict[Any, int] = {}
    for value, x in zip(said, inputs, strict=False):
        sizes = [*value.shape] if isinstance(value, torch.Tensor) else [value]
        now = [*x.shape] if isinstance(x, torch.Tensor) else [x]
        for size, found in zip(sizes, now, strict=True):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if expression is not None and expression.is_symbol:
                known[expression] = found

    def number(size: Any) -> int:
        return size if isinstance(size, int) else int(size.node.expr.subs(known))

    with FakeTensorMode():
        return [
            torch.empty_strided(
                [*map(number, x.shape)], [*map(number, x.stride())], dtype=x.dtype, device=x.device
            )
            for x in said[len(inputs) :]
        ]  # fmt: skip
