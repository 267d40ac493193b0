"""A trainer's step for one number of images, or for any: what is compiled, and how it is called.

Parameters, optimizer state and control are not its own: a trainer's steps for other numbers take
them from one another (`trainer.Trainer`), in the same axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import tvm

from ..frontend import TrainingGraph
from .capture import refusal
from .compiled import Compiled, Progress, silent
from .exchange import Exchange
from .graph_replay import Fixed, Kinds, Repeated, Work
from .optim import is_decoupled, optimizer_for
from .origins import options_of
from .places import Place
from .sends import with_sends
from .step import ADJOINT, changes, converted, step_module
from .stored_layout import Axes, kept_in_layout
from .update import Update, rates_spec
from .whole_step import Run, WholeStep, with_update, with_watch


@dataclass
class SizedStep:
    """A step of a graph.

    make : makes `module`, what was compiled; a step that was kept needs none.
    layout_changes : in the step, before and after its conversion.
    axes : of parameters, as `stored_layout.kept_in_layout` gives them.
    step : called with (inputs and rates, parameters, state, control) it gives the last three anew.
    exchanged : (outputs, gradients) of `main_adjoint` as of all processes' batches.
    places : of the trainer's transfers, for batches of this size.
    """

    make: Callable[[], tvm.IRModule]
    layout_changes: tuple[int, int]
    axes: Axes
    compiled: Compiled
    step: Run
    exchanged: Callable[[Any], tuple[Any, Any]]
    places: Any

    @cached_property
    def module(self) -> tvm.IRModule:
        return self.make()


class _Made(NamedTuple):
    """A step's module.  sent : `sends.with_sends`."""

    module: tvm.IRModule
    axes: Axes
    layout_changes: tuple[int, int]
    sent: Sequence[Sequence[int]]


@dataclass
class Recipe:
    """How a trainer's steps are made: the options of `Trainer`, and what all of them share.

    own : how many tensors of state the optimizer's rule has.
    transfers: how batches get to the device.
    means : over several processes, as of `WholeStep`.
    axes : of parameters, by the first step that was made.
    """

    place: Place
    optimizer: str
    lr: float
    update: Update
    dtype: str | None
    checkpoint: str | Sequence[str] | None
    layout: str | None
    scaled: bool
    dynamic: bool
    own: int
    transfers: Any
    means: Exchange | None = None
    axes: Axes | None = None
    fixed: Fixed = field(default_factory=Fixed)
    _work: Work | None = field(default=None, init=False)

    def made(self, graph: TrainingGraph, progress: Progress) -> SizedStep:
        """A step of a graph.  Raises as `Trainer` does."""
        self.transfers.pause()
        place, how = self.place, self._how
        origin = place.recall(graph.module, self._options(graph))
        # Of several processes a module has what they send to each other, which is their state.
        kept = origin.found(progress) if self.means is None else None
        made: _Made | None = None
        axes: Axes = {}
        sent: Sequence[Sequence[int]] = ()
        if kept is not None:
            compiled, told = kept
            before, after = told["layout_changes"]
        else:
            made = self._made(graph, progress)
            axes, (before, after), sent = made.axes, made.layout_changes, made.sent
            with place.memory_errors():
                compiled = place.compile(made.module, progress)
            if self.means is None:
                origin.keep(compiled, {"layout_changes": [before, after]})

        def module() -> tvm.IRModule:
            return self._made(graph, silent).module if made is None else made.module

        with place.memory_errors():
            whole = WholeStep(
                compiled.vm.__getitem__, graph, **how, own=self.own, means=self.means, sent=sent
            )  # fmt: skip
            step = self._repeated(module, whole)
            taken = replace(graph, inputs=(*graph.inputs, rates_spec(graph, self.update)))
            places = self.transfers.places(taken.inputs)
        self.axes = axes
        changed = before, after
        return SizedStep(module, changed, axes, compiled, step, whole.exchanged, places)

    @property
    def _how(self) -> dict[str, Any]:
        """The options of `WholeStep` that are those of its module too."""
        return {"scaled": self.scaled, "dynamic": self.dynamic, "update": self.update}

    def _options(self, graph: TrainingGraph) -> dict[str, Any]:
        """What decides what `_made` makes of a graph's module, on a CPU."""
        update = self.update.text()
        return {
            "what": "a trainer's step", **self._how, "update": update, "optimizer": self.optimizer,
            "lr": self.lr, "dtype": self.dtype, "recomputed": self.checkpoint,
            "layout": self.layout, "wide": self.place.wide, "norms": self.place.norms,
            "graph": options_of(graph),
        }  # fmt: skip

    def _made(self, graph: TrainingGraph, progress: Progress) -> _Made:
        place = self.place
        progress("differentiating")
        mod = step_module(
            graph,
            dtype=self.dtype,
            checkpoint=graph.checkpoint if self.checkpoint == "graph" else self.checkpoint,
            scaled=self.scaled,
            wide_weight_gradients=place.wide,
            raise_norms=place.norms,
        )
        before = mod[ADJOINT]
        if self.layout not in (None, "NCHW"):
            progress(f"converting to {self.layout}")
        axes: Axes = {}
        if place.is_gpu:
            mod, axes = kept_in_layout(mod, self.layout, graph, blocks=place.blocks, axes=self.axes)
        else:
            mod = converted(mod, self.layout)
        layout_changes = (changes(before), changes(mod[ADJOINT]))
        sent: Sequence[Sequence[int]] = ()
        if self.means is not None:
            mod, sent = with_sends(mod, graph)
        variables = mod[ADJOINT].params if place.is_gpu else None
        rule = optimizer_for(graph, self.optimizer, self.lr, variables)
        mod = with_update(mod, graph, rule, **self._how, decoupled=is_decoupled(self.optimizer))
        if place.is_gpu:  # the CPU's memory is looked at as it is
            mod = with_watch(mod, graph)
        return _Made(mod, axes, layout_changes, sent)

    def _repeated(self, module: Callable[[], tvm.IRModule], step: WholeStep) -> Run:
        """The step as a CUDA graph, where it can be one."""
        if self.place.work is None:
            return step
        if reason := refusal(module(), step.functions):
            self._note(f"steps are not one CUDA graph: {reason}")
            return step
        if self._work is None:
            self._work = self.place.work()
            if self.means is not None:
                self.means.outside = self._work.outside
        make = partial(Repeated, step, self._work, self._note, self.fixed)
        if self.means is None or self.update.accumulate == 1:
            return make()
        return Kinds(self.means.kind, make)

    def _note(self, text: str) -> None:
        if text not in self.place.notes:
            self.place.notes.append(text)
