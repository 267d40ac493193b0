"""A function's work as one CUDA graph: the host gives it to the device at once.

What no graph can hold, such as a collective that other processes take part in, stands between two
graphs (`Lane.outside`).

A step of ResNet-50 is a thousand kernels; a virtual machine needs longer to start them than a small
batch takes.  A graph starts them in microseconds, with the addresses that they had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..ir import expressions, is_taken
from . import cudart


class Lane:
    """A stream on which work is done, or captured.

    What libraries keep for a stream, such as workspaces, a graph that is captured on this one has
    for itself.
    """

    def __init__(self, runtime: cudart.Runtime, device: Any) -> None:
        runtime.call("cudaSetDevice", int(device.index))
        self.runtime, self._device = runtime, device
        self._stream = cudart.Stream(runtime)
        self._graphs: cudart.Graphs | None = None  # of the work that is captured
        self._is_rehearsal = False

    def done(self, function: Callable[[], Any]) -> Any:
        """What a function gives; what was before it is over first, and so is its work after."""
        self.runtime.call("cudaSetDevice", int(self._device.index))
        self.runtime.call("cudaStreamSynchronize", self._current())
        with tvm_ffi.use_raw_stream(self._device, self._stream.handle):
            result = function()
        self.runtime.call("cudaStreamSynchronize", self._stream.handle)
        return result

    def captured(self, function: Callable[[], Any]) -> tuple[Any, Launch]:
        """(what a function gives, what does its work): nothing of it is done here.

        Raises what the function does, and RuntimeError with CUDA's words where it waited for the
        device or took memory that was not there before.
        """
        from byoc_cudnn.building.compiled import release_workspaces  # loaded where a GPU is

        graphs = cudart.Graphs(self.runtime)

        def capture() -> Any:
            with graphs.capture(self._stream):
                self._graphs = graphs
                try:
                    return function()
                finally:
                    self._graphs = None

        result = self.done(capture)
        release_workspaces()  # of the calls before
        return result, Launch(graphs, self._current)

    def rehearsed(self, function: Callable[[], Any]) -> None:
        """`done`, but for what is `outside`: that is left out."""
        self._is_rehearsal = True
        try:
            self.done(function)
        finally:
            self._is_rehearsal = False

    def outside(self, action: Callable[[], None]) -> None:
        """Does what no graph can hold: of captured work each time that it is repeated, there."""
        if self._graphs is not None:
            self._graphs.between(action)
        elif not self._is_rehearsal:
            action()

    def copy(self, to: Any, source: Any) -> None:
        """Gives the current stream a copy from one of the device's tensors to another."""
        size = cudart.bytes_of(source.shape, str(source.dtype))
        if size:
            pointers = (to.data_ptr(), source.data_ptr())
            where = (cudart.ON_DEVICE, self._current())
            self.runtime.call("cudaMemcpyAsync", *pointers, size, *where)

    def _current(self) -> int | None:
        """TVM's stream, in this thread."""
        return int(tvm_ffi.get_raw_stream(self._device)) or None


class Launch:
    """Captured work: a call gives it to TVM's current stream."""

    def __init__(self, graphs: cudart.Graphs, current: Callable[[], int | None]) -> None:
        self._current = current
        self.on = graphs.launch
        """Gives it to a stream by its handle, whose device is the current one."""

    def __call__(self) -> None:
        self.on(self._current())


class Captured:
    """A call of a function of a virtual machine, captured once and then repeated.

    The function must keep its memory (`cuda_pipeline(keep_memory=True)`) and be one that `refusal`
    has nothing against.  Sizes that only the run knows are those of the captured call.  It is
    called twice before, in which libraries choose their algorithms and memory is taken: on the
    current stream, for which they may have a workspace already, and each call's results are given
    up before the next, whose memory theirs is.  The workspaces are given back then.

    results : of the last `replay`, always the same tensors; what they held before is gone.
    """

    def __init__(
        self, runtime: cudart.Runtime, machine: relax.VirtualMachine, name: str,
        args: Sequence[Any], device: Any,
    ) -> None:  # fmt: skip
        self._kept = (machine, tuple(args))  # the graph has their addresses
        lane = Lane(runtime, device)
        for _ in range(2):
            machine[name](*args)
            device.sync()
        self.results, self._launch = lane.captured(lambda: machine[name](*args))

    def replay(self) -> Any:
        """Gives TVM's current stream the work; the results are there when it is done."""
        self._launch()
        return self.results


def refusal(module: tvm.IRModule, names: Sequence[str]) -> str:
    """Why some functions of a module cannot be captured, if it shows; else empty."""
    for name in names:
        for part in expressions(module[name]):
            if isinstance(part, relax.If):
                return f"{name} goes one of two ways by a value that the host reads"
            if isinstance(part, relax.Call) and isinstance(part.op, tvm.ir.GlobalVar):
                called = module[part.op]
                if isinstance(called, relax.Function) and not is_taken(called):
                    return f"{name} calls {part.op.name_hint}, whose results go back"
            tensor = isinstance(part, relax.Var) and isinstance(part.ty, relax.TensorType)
            if tensor and part.ty.shape is None:
                return f"{name}: {part.name!r} has a size that only the run knows"
    return ""
