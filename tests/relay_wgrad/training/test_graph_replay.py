"""What a captured step asks of who captures it, with a step and a stream that only look on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm

from relay_wgrad.training.graph_replay import WARM, Repeated
from relay_wgrad.training.whole_step import Made, Tensors


class Stream:
    """Work is done at once, and a graph does it again."""

    def __init__(self) -> None:
        self.captures = False

    def done(self, function: Callable[[], Any]) -> Any:
        return function()

    def rehearsed(self, function: Callable[[], Any]) -> None:
        function()

    def outside(self, action: Callable[[], None]) -> None:
        action()

    def captured(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        self.captures = True
        try:
            return function(), lambda: None
        finally:
            self.captures = False

    def copy(self, to: Any, source: Any) -> None:
        assert not self.captures, "a copy within a capture is a part of the graph"
        to.copyfrom(source.numpy())


class InPlace:
    """Writes over what it is given, as on a GPU, and has a call's results until the next call.

    As a virtual machine does.  `lost`: how many of them only it had, when a capture began to need
    their place: those the device would free within the capture, which ends the process.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream, self._last, self.lost = stream, list[Any](), 0

    def __call__(self, inputs: Tensors, params: Tensors, state: Tensors, control: Any) -> Made:
        return self.held(inputs, params, state, control)[0]

    def held(
        self, inputs: Tensors, params: Tensors, state: Tensors, control: Any
    ) -> tuple[Made, list[Any]]:
        last, self._last = self._last, [*params, *state, control]
        while last:
            before = last.pop()
            self.lost += self._stream.captures and sys.getrefcount(before) == 2
        if not self._stream.captures:
            for tensor in self._last:
                tensor.copyfrom(tensor.numpy() + 1)
        return (list(params), list(state), control), []


def tensors(*values: float) -> list[Any]:
    return [tvm.runtime.tensor(np.full(3, value, "float32")) for value in values]


def first(some: Sequence[Any]) -> list[float]:
    return [float(tensor.numpy()[0]) for tensor in some]


def test_nothing_is_given_back_to_the_device_within_a_capture() -> None:
    stream, notes = Stream(), list[str]()
    step = InPlace(stream)
    repeated = Repeated(step, stream, notes.append)
    params, state, (control,) = tensors(1, 2), tensors(3), tensors(4)
    made: Made = params, state, control
    for _ in range(WARM + 1):
        made = repeated(tensors(0), *made)
    assert repeated.is_graph
    assert not notes
    assert step.lost == 0
    # The call before the capture wrote over copies.
    assert first([*made[0], *made[1], made[2]]) == [WARM + value for value in (1, 2, 3, 4)]
