"""What a captured call leaves in memory, with a stand-in for the stream."""

from __future__ import annotations

import weakref
from typing import Any, cast

import pytest
import tvm

from relay_wgrad.training import capture, cudart
from tests.support.cuda_stand_in import Repeating


class Graphs:
    """A runtime whose captured graphs have nodes of these kinds."""

    def __init__(self, *kinds: int) -> None:
        self.kinds, self.left = kinds, 0

    def call(self, name: str, *args: Any) -> None:
        if name == "cudaStreamEndCapture":
            args[1]._obj.value, self.left = 1, self.left + 1
        elif name == "cudaGraphGetNodes":
            args[2]._obj.value = len(self.kinds)
            for i, kind in enumerate(self.kinds if args[1] else ()):
                args[1][i] = 100 + kind
        elif name == "cudaGraphNodeGetType":
            args[1]._obj.value = args[0] - 100

    def quietly(self, name: str, *args: Any) -> None:
        if name == "cudaStreamEndCapture":
            self.call(name, *args)
        self.left -= name == "cudaGraphDestroy"


@pytest.mark.parametrize(
    ("kinds", "takes"), [((0, 2), False), ((), False), ((0, 10, 0, 11), True), ((11,), True)]
)
def test_whether_a_graph_takes_memory(kinds: tuple[int, ...], takes: bool) -> None:
    runtime: Any = Graphs(*kinds)
    stream: Any = Results()
    stream.handle = 5
    assert cudart.takes_memory(runtime, stream, lambda: None) is takes
    with pytest.raises(KeyError):
        cudart.takes_memory(runtime, stream, lambda: {}["none"])
    assert runtime.left == 0, "graphs are given back"


class Results:
    """Of a call; who holds them holds their memory."""


def test_no_call_finds_the_results_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    work, made, found = Repeating(), [], []

    def function(x: Any) -> Results:
        found.append(sum(ref() is not None for ref in made))
        results = Results()
        made.append(weakref.ref(results))
        return results

    monkeypatch.setattr(capture, "Lane", lambda runtime, device: work)
    machine: Any = {"f": function}
    captured = capture.Captured(cast("Any", None), machine, "f", [1], tvm.cpu())
    assert found == [0, 0]
    captured.replay()
    assert found == [0, 0, 0]
    assert work.calls == {"captured": 1, "launches": 1}
