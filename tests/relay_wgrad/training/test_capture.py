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


class Recording:
    """CUDA's runtime, by the names of what is called; handles are numbers."""

    def __init__(self) -> None:
        self.said, self.streams, self._made = list[str](), list[int | None](), 0

    def call(self, name: str, *args: Any) -> None:
        if name == "cudaGraphLaunch":
            self.streams.append(args[1])
        if name in ("cudaStreamCreateWithFlags", "cudaGraphInstantiate", "cudaStreamEndCapture"):
            self._made += 1
            args[1 if name == "cudaStreamEndCapture" else 0]._obj.value = self._made
        if "Graph" in name or "Capture" in name:
            self.said.append(name.removeprefix("cuda"))

    quietly = call

    def at_the_end_of(self, owner: Any, name: str, *args: Any) -> None:
        pass


BEGIN = "StreamBeginCapture"
END = ["StreamEndCapture", "GraphInstantiate", "GraphDestroy"]


def test_what_no_graph_holds_stands_between_two() -> None:
    """It is done each time that the graphs are launched, and neither in the capture nor in a
    rehearsal."""
    runtime = Recording()
    lane = capture.Lane(cast("cudart.Runtime", runtime), tvm.cpu())

    def work() -> str:
        for text in ("one", "two"):
            runtime.said.append("kernel")
            lane.outside(lambda text=text: runtime.said.append(text))  # type: ignore[misc]
        runtime.said.append("kernel")
        return "result"

    lane.rehearsed(work)
    assert runtime.said == ["kernel"] * 3
    runtime.said.clear()
    assert lane.done(work) == "result"
    assert runtime.said == ["kernel", "one", "kernel", "two", "kernel"]
    runtime.said.clear()
    result, launch = lane.captured(work)
    assert result == "result"
    assert runtime.said == [BEGIN, "kernel", *END] * 3
    runtime.said.clear()
    for _ in range(2):
        launch()
    assert runtime.said == ["GraphLaunch", "one", "GraphLaunch", "two", "GraphLaunch"] * 2


def test_a_capture_that_fails_ends() -> None:
    """What is outside is done at once again, and the stream captures no more."""
    runtime = Recording()
    lane = capture.Lane(cast("cudart.Runtime", runtime), tvm.cpu())

    def work() -> None:
        lane.outside(lambda: None)
        raise ValueError("of the step")

    with pytest.raises(ValueError, match="of the step"):
        lane.captured(work)
    assert runtime.said.count(BEGIN) == runtime.said.count(END[0]) == 2
    runtime.said.clear()
    lane.outside(lambda: runtime.said.append("done"))
    assert runtime.said == ["done"]


def test_a_stream_by_its_handle() -> None:
    """Whoever knows it need not make it TVM's current one."""
    runtime = Recording()
    lane = capture.Lane(cast("cudart.Runtime", runtime), tvm.cpu())
    _, launch = lane.captured(lambda: None)
    for on in (launch, lambda: launch.on(5)):
        runtime.said.clear()
        on()
        assert runtime.said == ["GraphLaunch"]
    assert runtime.streams == [None, 5]
