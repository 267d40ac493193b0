"""How long each call of a function's kernels takes on a GPU, between two events of the device.

The device has work of the same function before, so that it is behind the host: what is between two
events is the kernel, not the host's way to it.  Where the host is slower than the device, as at
small batches, its way is part of the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from . import cudart

BEFORE = 4  # calls that the device is given first
_SILENT = "vm.builtin."  # of the virtual machine itself: no kernels


@dataclass(frozen=True)
class KernelTime:
    """All calls of one kernel; bytes are those of its tensors, each once a call."""

    name: str
    calls: int
    seconds: float
    bytes: int


class _Watch:
    """An instrument of a virtual machine; a call that makes others is not one of a kernel."""

    def __init__(self, runtime: cudart.Runtime, device: Any) -> None:
        self.runtime, self.device = runtime, device
        self.calls: list[tuple[str, Any, Any, int]] = []
        self._open: list[list[Any]] = []

    def __call__(self, func: Any, name: str, before: bool, ret: Any, *args: Any) -> int:
        if name.startswith(_SILENT):
            return 0
        event = cudart.Event(self.runtime)
        event.record(int(tvm_ffi.get_raw_stream(self.device)) or None)
        if before:
            for outer in self._open:
                outer[1] = False
            self._open.append([event, True])
        else:
            start, is_kernel = self._open.pop()
            if is_kernel:
                self.calls.append((name, start, event, _bytes(args)))
        return 0  # VMInstrumentReturnKind.NO_OP: go on with the call


def _bytes(args: Sequence[Any]) -> int:
    """Of the tensors among the arguments, results included; one that is there twice counts once."""
    tensors = [arg for arg in args if isinstance(arg, tvm.runtime.Tensor)]
    sizes = {t.data_ptr(): cudart.bytes_of(t.shape, str(t.dtype)) for t in tensors}
    return sum(sizes.values())


def kernel_times(
    runtime: cudart.Runtime,
    vm: relax.VirtualMachine,
    function: str,
    args: Sequence[Any],
    device: Any,
) -> list[KernelTime]:
    """The kernels of one call of a function, the longest first."""
    for _ in range(2):  # libraries choose their algorithms
        vm[function](*args)
    device.sync()
    watch = _Watch(runtime, device)
    for _ in range(BEFORE):
        vm[function](*args)
    vm.set_instrument(watch)
    try:
        vm[function](*args)
    finally:
        vm.set_instrument(None)
    device.sync()
    found: dict[str, KernelTime] = {}
    for name, start, stop, size in watch.calls:
        old = found.get(name, KernelTime(name, 0, 0.0, 0))
        seconds = old.seconds + stop.seconds_since(start)
        found[name] = KernelTime(name, old.calls + 1, seconds, old.bytes + size)
    return sorted(found.values(), key=lambda kernel: -kernel.seconds)
