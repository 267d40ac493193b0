"""A compiled function called on PyTorch's tensors and, on CUDA, on PyTorch's current stream.

By one thread at a time (`Turns`), and where it may be as CUDA graphs (`replayed`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import torch

from .. import threads
from .kernels import ALIGNMENT
from .replayed import Replayed


def call(function: Any, args: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """What a compiled function gives for dense tensors of one device, on the current stream."""
    if device.type != "cuda":
        return list(threads.run(function, *args, threads=torch.get_num_threads()))
    import tvm_ffi

    # TVM makes a tensor's device the current one, and leaves it so.
    with torch.cuda.device(device), tvm_ffi.use_torch_stream():
        return list(function(*args))


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""What Inductor's code asks: PyTorch's public function makes an object each time."""


def _stream(device: torch.device) -> int:
    """The handle of PyTorch's current stream on a device."""
    if _raw_stream is None:
        return int(torch.cuda.current_stream(device).cuda_stream)
    return int(_raw_stream(device.index or 0))


class Turns:
    """Within, a program is called by one thread, and on CUDA when what it was given before is over:
    a virtual machine has one memory for its intermediate results."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._stream: torch.cuda.Stream | None = None
        self._handle = -1  # the stream's

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._device.type == "cuda" and (handle := _stream(self._device)) != self._handle:
            now = torch.cuda.current_stream(self._device)
            if self._stream is not None:
                now.wait_stream(self._stream)
            self._stream, self._handle = now, handle

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def replayed(
    function: Any, where: Any, device: torch.device, told: Callable[[str], None], *,
    graphs: bool, last: Sequence[bool] = (), joined: Any = None, **how: Any,
) -> Replayed:  # fmt: skip
    """A compiled function for tensors of a device, of which it takes those of `last` channels last;
    `graphs`: as CUDA graphs, where it can be; `joined`: the same in memory that it shares with
    others (`relay_wgrad.pipeline.chains`), called where that may be; `how`: of `Replayed`."""

    def prepared(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            dense(x.movedim(1, -1) if i < len(last) and last[i] else x) for i, x in enumerate(given)
        ]

    lane = where.work() if graphs and where.work is not None else None
    plain, apart = partial(call, function, device=device), None
    if joined is not None:
        function, apart = joined, plain
        plain = partial(call, function, device=device)
    here = None if lane is None else _Here(lane, device)
    return Replayed(plain, function, here, told, prepare=prepared, last=last, apart=apart, **how)


class _Here:
    """A place's lane for a device, before and after which PyTorch's current stream works."""

    def __init__(self, lane: Any, device: torch.device) -> None:
        import tvm_ffi

        self._lane, self._device = lane, device
        self._theirs = tvm_ffi.device(str(device))
        self._stream, self._handle = tvm_ffi.use_raw_stream, tvm_ffi.get_raw_stream

    def done(self, do: Callable[[], Any]) -> Any:
        return self.within(lambda: self._lane.done(do))

    def captured(
        self, do: Callable[[], Any], work: Callable[[], None] | None = None
    ) -> tuple[Any, Callable[[], None]]:
        if self._device.type != "cuda":  # a lane of tests
            return self._lane.captured(do, work)

        def both() -> Any:
            made = do()
            if work is not None:
                self._on_theirs(work)
            return made

        made, launch = self.within(lambda: self._lane.captured(both))
        return made, _Launches(self._device, [launch])

    def also(self, launch: Any, work: Callable[[], None]) -> Callable[[], None]:
        if self._device.type != "cuda":
            return self._lane.also(launch, work)
        _, more = self.within(lambda: self._lane.captured(lambda: self._on_theirs(work)))
        return _Launches(self._device, [*launch.parts, more])

    def _on_theirs(self, work: Callable[[], None]) -> None:
        """Has PyTorch's work done on TVM's stream."""
        stream: Any = torch.cuda.ExternalStream(self._handle(self._theirs), self._device)
        with torch.cuda.stream(stream):
            work()

    def within(self, do: Callable[[], Any]) -> Any:
        if self._device.type != "cuda":  # a lane of tests
            return do()
        with self._stream(self._theirs, _stream(self._device)):
            if torch.cuda.current_device() == self._device.index:
                return do()
            with torch.cuda.device(self._device):
                return do()


class _Launches:
    """Graphs that the device is given one after another, on PyTorch's current stream."""

    def __init__(self, device: torch.device, parts: Sequence[Any]) -> None:
        self.parts, self._device = parts, device

    def __call__(self) -> None:
        if torch.cuda.current_device() == self._device.index:
            self._launch()
        else:
            with torch.cuda.device(self._device):
                self._launch()

    def _launch(self) -> None:
        stream = _stream(self._device)
        for part in self.parts:
            part.on(stream)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels take it: a copy only where need be."""
    tensor = tensor.detach().resolve_neg().contiguous()
    if not tensor.numel():
        # Where nothing lies PyTorch calls any strides contiguous, and TVM these alone.
        strides = [math.prod(tensor.shape[i + 1 :]) for i in range(tensor.dim())]
        return tensor.new_empty_strided(tensor.shape, strides)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT[tensor.device.type] else tensor


def unshare(made: list[torch.Tensor], read: AbstractSet[int]) -> None:
    """Copies results in memory that a call has read, or that another result has: what shares it
    would be changed with the other, unseen by autograd."""
    seen = set(read)
    for i, x in enumerate(made):
        if x.numel() and x.data_ptr() in seen:
            made[i] = x = x.clone()
        seen.add(x.data_ptr())
