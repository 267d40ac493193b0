"""Steps on a GPU as one CUDA graph: called some times, captured, then repeated.

A graph reads and writes the addresses of the step that was captured.  So from then on parameters,
optimizer state and control are the same tensors from step to step, and a batch is copied into
tensors of the graph's own, which takes 0.1 ms for 150 MB and leaves its place to the next but one.
Graphs of steps for other numbers of images have the same parameters, state and control (`Fixed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm

from .whole_step import Made, Run, Tensors

WARM = 2
"""Steps before the one that is captured: libraries choose, memory is taken and given back once."""
TRIES = 2
"""Captures that are tried: where someone holds an earlier step's results, one wants memory."""


class Step(Protocol):
    """What is repeated: `relay_wgrad.training.whole_step.WholeStep`."""

    def __call__(self, inputs: Tensors, params: Tensors, state: Tensors, control: Any) -> Made:
        """New parameters, state, control."""

    def held(
        self, inputs: Tensors, params: Tensors, state: Tensors, control: Any
    ) -> tuple[Made, list[Any]]:
        """(those, all that must live as long as a graph of the call)."""


class Work(Protocol):
    """Where steps are captured: `relay_wgrad.training.capture.Lane`."""

    def done(self, function: Callable[[], Any]) -> Any:
        """What a function gives, when its work is over."""

    def captured(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """(what a function gives, what does its work)."""

    def rehearsed(self, function: Callable[[], Any]) -> None:
        """`done`, without what is outside of graphs."""

    def outside(self, action: Callable[[], None]) -> None:
        """Does what no graph can hold."""

    def copy(self, to: Any, source: Any) -> None:
        """Gives the device a copy."""


@dataclass
class Fixed:
    """What steps share that take one another's results.

    all : where parameters, optimizer state and control are once one of them is a graph.
    """

    all: tuple[list[Any], list[Any], Any] | None = None


class Repeated:
    """A step (`WholeStep`) whose work is captured after `WARM` calls.

    Where it cannot be captured it is called as before, and `note` is told why.  Steps that take
    one another's results share `fixed`.
    """

    def __init__(
        self, step: Step, work: Work, note: Callable[[str], None], fixed: Fixed | None = None
    ) -> None:
        self._step, self._work, self._note = step, work, note
        self._calls, self._tries = 0, TRIES
        self._launch: Callable[[], None] | None = None
        self._inputs: list[Any] = []
        self._fixed = Fixed() if fixed is None else fixed
        self._kept: Any = None  # all that the captured call made: else others would get its memory

    @property
    def is_graph(self) -> bool:
        """Whether steps are a graph's by now."""
        return self._launch is not None

    @property
    def plain(self) -> Run:
        """The step that is called."""
        return self._step

    def __call__(self, inputs: Tensors, params: Tensors, state: Tensors, control: Any) -> Made:
        self._calls += 1
        if self._launch is None and self._calls > WARM and self._tries:
            self._capture(inputs, params, state, control)
        if self._launch is None:
            if not self._tries:
                return self._step(inputs, params, state, control)
            return self._work.done(lambda: self._step(inputs, params, state, control))
        self._settle(self._inputs, inputs)
        made = self._settled(params, state, control)
        self._launch()
        return made

    def _capture(self, inputs: Tensors, params: Tensors, state: Tensors, control: Any) -> None:
        self._tries -= 1
        places = [tvm.runtime.empty(t.shape, str(t.dtype), t.device) for t in inputs]
        # Here, and not as a part of the graph: another's results may be elsewhere.
        fixed = self._settled(params, state, control)

        def whole() -> Any:
            made, held = self._step.held(places, *fixed)
            for before, after in zip(fixed[:2], made[:2], strict=True):
                self._settle(before, after)
            self._settle([fixed[2]], [made[2]])
            return held

        try:
            self._settle(places, inputs)
            copies = self._rehearse(places, fixed)
            self._kept, self._launch = self._work.captured(whole)
            del copies  # not before
        except Exception as error:  # of whatever kind: no work has been done
            if not self._tries:
                text = " ".join(str(error).split())
                self._note(f"steps are not one CUDA graph but called kernel by kernel: {text:.300}")
        else:
            self._inputs, self._fixed.all = places, fixed

    def _rehearse(self, places: Tensors, fixed: Made) -> Made:
        """Calls the step with copies, for nothing: TVM's pool has the memory for a capture then.

        What it had after the calls before may be another trainer's by now.  And a capture that
        wants more has the pool give the device what is free, which no capture allows: that ends the
        process.  So would the end of the copies: the virtual machine has a call's results, which
        may be written over them, until the next call gives its own.  They are returned, for the
        caller to hold until the capture is over.
        """
        params, state = ([self._copy(t) for t in some] for some in fixed[:2])
        control = self._copy(fixed[2])

        def call() -> None:
            self._step.held(places, params, state, control)

        self._work.rehearsed(call)  # other processes may not rehearse now
        return params, state, control

    def _copy(self, tensor: Any) -> Any:
        """In memory that is not the pool's."""
        made = tvm.runtime.empty(tensor.shape, str(tensor.dtype), tensor.device)
        self._work.copy(made, tensor)
        return made

    def _settled(self, params: Tensors, state: Tensors, control: Any) -> Made:
        """Where graphs have them, with these values; as they are where there is no graph yet."""
        if self._fixed.all is None:
            return list(params), list(state), control
        fixed_params, fixed_state, fixed_control = self._fixed.all
        # What someone has set since is another list.
        for whole, given in ((fixed_params, params), (fixed_state, state)):
            if given is not whole:
                self._settle(whole, given)
        self._settle([fixed_control], [control])
        return self._fixed.all

    def _settle(self, places: Sequence[Any], values: Sequence[Any]) -> None:
        """Values into their places, where they are not there."""
        for place, value in zip(places, values, strict=True):
            if place.data_ptr() != value.data_ptr():
                self._work.copy(place, value)


class Kinds:
    """Steps that go several ways, by what the host knows: each way is a graph of its own.

    kind : of the step that is next.  make : a step of a kind that is new.
    """

    def __init__(self, kind: Callable[[], object], make: Callable[[], Repeated]) -> None:
        self._kind, self._make = kind, make
        self.steps: dict[object, Repeated] = {}

    def __call__(self, inputs: Tensors, params: Tensors, state: Tensors, control: Any) -> Made:
        kind = self._kind()
        if kind not in self.steps:
            self.steps[kind] = self._make()
        return self.steps[kind](inputs, params, state, control)
