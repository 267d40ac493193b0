"""A function's work as one CUDA graph: the host gives it to the device at once.

A step of ResNet-50 is a thousand kernels; a virtual machine needs longer to start them than a small
batch takes.  A graph starts them in microseconds, with the addresses that they had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax

from . import cudart


class Captured:
    """A call of a function of a virtual machine, captured once and then repeated.

    The function must keep its memory (`cuda_pipeline(keep_memory=True)`) and call no other function
    of Relax, whose results would be given back.  Sizes that only the run knows are those of the
    captured call.

    results : of the last `replay`, always the same tensors; what they held before is gone.
    """

    def __init__(
        self, runtime: cudart.Runtime, machine: relax.VirtualMachine, name: str,
        args: Sequence[Any], device: Any,
    ) -> None:  # fmt: skip
        self._device = device
        self._kept = (machine, tuple(args))  # the graph has their addresses
        runtime.call("cudaSetDevice", int(device.index))
        self._graph, stream = cudart.Graph(runtime), cudart.Stream(runtime)
        device.sync()  # the arguments are there
        with tvm_ffi.use_raw_stream(device, stream.handle):
            machine[name](*args)  # libraries choose their algorithms, memory is taken
            runtime.call("cudaStreamSynchronize", stream.handle)
            with self._graph.capture(stream):
                self.results = machine[name](*args)
        runtime.call("cudaStreamSynchronize", stream.handle)

    def replay(self) -> Any:
        """Gives TVM's current stream the work; the results are there when it is done."""
        self._graph.launch(int(tvm_ffi.get_raw_stream(self._device)) or None)
        return self.results
