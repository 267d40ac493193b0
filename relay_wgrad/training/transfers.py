"""How batches get to a device and reports come back.

Transfers have `places(specs)`, for batches of one size; `inputs(places, values)`, the device's
tensors of a batch; `done(control, wrong)`, told after the step that took them; what it gives is
asked later by `read()`: the control as NumPy has it, how many values of parameters are not finite,
and the step's seconds.  On a CPU a step is over when it returns.  On a GPU nothing here waits for
it but `read`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tvm

from ..frontend import InputSpec
from ..frontend.sizes import at
from . import cudart
from .loss_scale import FIELDS
from .recycled import memory_of

_WIDTH = len(FIELDS)
_COPIERS, _PART = 4, 1 << 22  # threads that copy a batch, and bytes that are worth one
_WORTH = 1 << 16  # bytes whose copy takes longer than to ask whether they are pinned


class Row(NamedTuple):
    """What is known of a step that is over."""

    control: Any  # float64[FIELDS]
    wrong: int  # values of parameters that are not finite, where they were looked at
    seconds: float


class HostReport:
    """Of a step that was over when it returned."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def read(self) -> Row:
        return self._row


class HostTransfers:
    """For the CPU: nothing is copied but into TVM's aligned memory."""

    ahead = 0
    """How many steps may be on their way when the host looks at one."""

    def __init__(self) -> None:
        self._began = 0.0

    def begin(self) -> None:
        """Before the first of some steps: nothing is on its way."""

    def pause(self) -> None:
        """Something else is done before the next step, while others may be on their way."""

    def places(self, specs: Sequence[InputSpec]) -> None:
        """A batch of any size goes into memory of its own."""

    def inputs(self, places: None, values: Sequence[Any]) -> list[Any]:
        self._began = time.perf_counter()
        return [tvm.runtime.tensor(value) for value in values]

    def done(self, control: Any, wrong: Any) -> HostReport:
        count = 0 if wrong is None else int(wrong.numpy())
        return HostReport(Row(control.numpy(), count, time.perf_counter() - self._began))


class Filler:
    """Copies arrays within the host's memory, large ones by several threads.

    One thread copies 154 MB, 256 images of 224x224, in 20 ms: as long as a step takes.
    """

    def __init__(self, threads: int | None = None, part: int = _PART) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self._threads, self._part = threads or min(_COPIERS, cores), part
        self._pool: ThreadPoolExecutor | None = None

    def copy(self, to: Any, source: Any) -> None:
        """Into an array of the same shape and dtype."""
        rows = to.shape[0] if to.ndim else 1
        parts = min(self._threads, to.nbytes // self._part, rows)
        if parts < 2:
            np.copyto(to, source)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "relay_wgrad.batches")
        ends = [rows * i // parts for i in range(parts + 1)]
        ranges = [slice(*pair) for pair in itertools.pairwise(ends)]
        list(self._pool.map(lambda some: np.copyto(to[some], source[some]), ranges))


class _Slot:
    """A batch on its way: pinned memory, the device's tensors, and when each is free again.

    held : arrays that the device copies from where they are.
    is_lent : whether one of them is the caller's, who may write over it.
    """

    def __init__(self, runtime: cudart.Runtime, specs: Sequence[InputSpec], device: Any) -> None:
        self._runtime = runtime
        self._kinds = [(at(spec.shape, None), spec.dtype) for spec in specs]
        self._pinned: dict[int, cudart.Pinned] = {}
        self.tensors = [tvm.runtime.empty(*kind, device) for kind in self._kinds]
        self.copied, self.used = cudart.Event(runtime), cudart.Event(runtime)
        self.held: list[Any] = []
        self.is_lent = False

    def pinned(self, place: int) -> cudart.Pinned:
        """Memory for an input that lies in no pinned memory."""
        if place not in self._pinned:
            self._pinned[place] = cudart.Pinned(self._runtime, *self._kinds[place])
        return self._pinned[place]

    def free(self) -> None:
        """Waits until what was copied from has been read."""
        self.copied.wait()
        self.held.clear()
        self.is_lent = False


class Places:
    """For batches of one size: two, taken in turn."""

    def __init__(self, runtime: cudart.Runtime, specs: Sequence[InputSpec], device: Any) -> None:
        self._slots, self._turn = [_Slot(runtime, specs, device) for _ in range(2)], 0

    def next(self) -> _Slot:
        self._turn ^= 1
        return self._slots[self._turn]


class _Cell:
    """A report on its way back."""

    def __init__(self, runtime: cudart.Runtime) -> None:
        self.pinned = cudart.Pinned(runtime, (_WIDTH + 1,), "float64")
        self.event = cudart.Event(runtime)


class CudaReport:
    """Of a step that the device was given."""

    def __init__(
        self, transfers: CudaTransfers, cell: _Cell, before: _Cell | None, watched: bool
    ) -> None:
        self._transfers, self._cell, self._before, self._watched = transfers, cell, before, watched

    def read(self) -> Row:
        """Waits for the step; to be read once, in order."""
        self._cell.event.wait()
        values = self._cell.pinned.array.copy()
        seconds = 0.0
        if self._before is not None:
            seconds = self._cell.event.seconds_since(self._before.event)
            self._transfers.free.append(self._before)
        return Row(values[:_WIDTH], int(values[_WIDTH]) if self._watched else 0, seconds)


class CudaTransfers:
    """For a GPU: batches in pinned memory, two of a size, copied on a stream of their own.

    A step waits on the device for its batch, and a batch for the step that reads its place.  The
    host waits where both places are taken: it is then two steps of that size ahead.

    Large arrays in pinned memory are copied from there: those of `Recycled`, which is pinned when
    it first comes, and others' (a PyTorch `DataLoader`'s with `pin_memory`), whose copy is waited
    for when the step has been given, since who made them may write over them then.
    """

    ahead = 10

    def __init__(self, runtime: cudart.Runtime, device: Any, index: int) -> None:
        self._runtime, self._index, self._device = runtime, index, device
        runtime.call("cudaSetDevice", index)
        self._copies, self._filler = cudart.Stream(runtime), Filler()
        self._slot: _Slot | None = None  # of the step that is being given
        self.free: list[_Cell] = []
        self._last: _Cell | None = None

    def begin(self) -> None:
        if self._last is not None:
            self.free.append(self._last)
        self.pause()

    def pause(self) -> None:
        self._last = None  # the next step's time would have the pause in it

    def places(self, specs: Sequence[InputSpec]) -> Places:
        """Those of batches of one size."""
        self._runtime.call("cudaSetDevice", self._index)
        return Places(self._runtime, specs, self._device)

    def inputs(self, places: Places, values: Sequence[Any]) -> list[Any]:
        self._runtime.call("cudaSetDevice", self._index)
        self._slot = slot = places.next()
        slot.free()  # of two batches ago
        slot.used.hold(self._copies.handle)
        for place, (tensor, value) in enumerate(zip(slot.tensors, values, strict=True)):
            if self._is_pinned(slot, value):
                slot.held.append(value)
                source, size = value.ctypes.data, value.nbytes
            else:
                pinned = slot.pinned(place)
                self._filler.copy(pinned.array, value)
                source, size = pinned.address, pinned.size
            self._copy(tensor.data_ptr(), source, size, cudart.TO_DEVICE, self._copies.handle)
        slot.copied.record(self._copies.handle)
        slot.copied.hold(self._stream())
        return slot.tensors

    def _is_pinned(self, slot: _Slot, value: Any) -> bool:
        """Whether an array is copied from where it is."""
        if value.nbytes < _WORTH or not value.flags.c_contiguous:
            return False
        memory = memory_of(value)
        if memory is None:
            is_pinned = self._runtime.is_pinned(value.ctypes.data)
            slot.is_lent = slot.is_lent or is_pinned
            return is_pinned
        if memory.is_pinned is None:
            memory.is_pinned = self._runtime.pin(memory, memory.address, memory.size)
        return memory.is_pinned

    def done(self, control: Any, wrong: Any) -> CudaReport:
        self._runtime.call("cudaSetDevice", self._index)
        stream = self._stream()
        assert self._slot is not None
        self._slot.used.record(stream)
        if self._slot.is_lent:
            self._slot.copied.wait()
        cell = self.free.pop() if self.free else _Cell(self._runtime)
        address = cell.pinned.address
        self._copy(address, control.data_ptr(), 8 * _WIDTH, cudart.TO_HOST, stream)
        if wrong is not None:
            self._copy(address + 8 * _WIDTH, wrong.data_ptr(), 8, cudart.TO_HOST, stream)
        cell.event.record(stream)
        before, self._last = self._last, cell
        return CudaReport(self, cell, before, wrong is not None)

    def _copy(self, to: int, source: int, size: int, kind: int, stream: int | None) -> None:
        if size:
            self._runtime.call("cudaMemcpyAsync", to, source, size, kind, stream)

    def _stream(self) -> int | None:
        """The stream that TVM's kernels and cuDNN's run on."""
        import tvm_ffi

        return int(tvm_ffi.get_raw_stream(self._device)) or None
