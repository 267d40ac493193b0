"""CUDA's runtime through ctypes: pinned memory, copies, streams, events.

TVM copies from pageable memory and waits for it.  The library is the one that TVM's own CUDA
runtime needs, which is in the process by then (`byoc_cudnn.building.toolchain.preload`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dtypes import numpy_dtype

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind
_THREAD_LOCAL = 1  # cudaStreamCaptureMode: what a graph cannot hold is an error in this thread
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_NON_BLOCKING = 1
_PORTABLE = 1  # cudaHostRegister: for every device
_HOST = 1  # cudaMemoryType: the host's, which is pinned
_OF_MEMORY = (10, 11)  # cudaGraphNodeType: memory is taken, is given back
_P = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudaSetDevice": (ctypes.c_int,),
    "cudaDeviceSynchronize": (),
    "cudaHostAlloc": (ctypes.POINTER(_P), ctypes.c_size_t, ctypes.c_uint),
    "cudaFreeHost": (_P,),
    "cudaHostRegister": (_P, ctypes.c_size_t, ctypes.c_uint),
    "cudaHostUnregister": (_P,),
    "cudaPointerGetAttributes": (_P, _P),
    "cudaMemcpyAsync": (_P, _P, ctypes.c_size_t, ctypes.c_int, _P),
    "cudaStreamCreateWithFlags": (ctypes.POINTER(_P), ctypes.c_uint),
    "cudaStreamDestroy": (_P,),
    "cudaStreamSynchronize": (_P,),
    "cudaStreamWaitEvent": (_P, _P, ctypes.c_uint),
    "cudaEventCreate": (ctypes.POINTER(_P),),
    "cudaEventDestroy": (_P,),
    "cudaEventRecord": (_P, _P),
    "cudaEventSynchronize": (_P,),
    "cudaEventElapsedTime": (ctypes.POINTER(ctypes.c_float), _P, _P),
    "cudaStreamBeginCapture": (_P, ctypes.c_int),
    "cudaStreamEndCapture": (_P, ctypes.POINTER(_P)),
    "cudaGraphInstantiate": (ctypes.POINTER(_P), _P, ctypes.c_ulonglong),
    "cudaGraphLaunch": (_P, _P),
    "cudaGetLastError": (),
    "cudaGraphDestroy": (_P,),
    "cudaGraphGetNodes": (_P, ctypes.POINTER(_P), ctypes.POINTER(ctypes.c_size_t)),
    "cudaGraphNodeGetType": (_P, ctypes.POINTER(ctypes.c_int)),
    "cudaGraphExecDestroy": (_P,),
    "cudaMemGetInfo": (ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)),
}


class Runtime:
    """The functions that are used of it; each raises what its status says.

    Raises OSError where the library cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._library.cudaGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *args: Any) -> None:
        """Raises MemoryError or RuntimeError with CUDA's words for a status that is not success."""
        status = getattr(self._library, name)(*args)
        if status:
            self._library.cudaGetLastError()  # it is told here; who asks next is not to hear of it
            text = self._library.cudaGetErrorString(status).decode()
            kind = MemoryError if status == _OUT_OF_MEMORY else RuntimeError
            raise kind(f"{name}: {text} ({status})")

    def quietly(self, name: str, *args: Any) -> None:
        """For what ends an object's life, when the driver may be gone."""
        getattr(self._library, name)(*args)

    def at_the_end_of(self, owner: Any, name: str, *args: Any) -> None:
        """Calls a function when an object is gone.

        Not when the process ends, which gives back all: a daemon thread may still use it.
        """
        weakref.finalize(owner, self.quietly, name, *args).atexit = False

    def memory(self) -> tuple[int, int]:
        """(free, all) bytes of the current device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def is_pinned(self, address: int) -> bool:
        """Whether the memory there is the host's and a device can copy it by itself."""
        found = (ctypes.c_int * 64)()  # the structure's first number is the kind of memory
        if self._library.cudaPointerGetAttributes(found, address):
            self._library.cudaGetLastError()
            return False
        return bool(found[0] == _HOST)

    def pin(self, owner: Any, address: int, size: int) -> bool:
        """Pins memory until its owner is gone; whether that was possible."""
        if self._library.cudaHostRegister(address, size, _PORTABLE):
            self._library.cudaGetLastError()
            return False
        self.at_the_end_of(owner, "cudaHostUnregister", address)
        return True


class Event:
    """A moment in a stream's work."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self.handle = runtime, _P()
        runtime.call("cudaEventCreate", ctypes.byref(self.handle))
        runtime.at_the_end_of(self, "cudaEventDestroy", self.handle)

    def record(self, stream: int | None) -> None:
        self._runtime.call("cudaEventRecord", self.handle, stream)

    def wait(self) -> None:
        """The host waits; at once where it was never recorded."""
        self._runtime.call("cudaEventSynchronize", self.handle)

    def hold(self, stream: int | None) -> None:
        """What the stream is given from now on waits."""
        self._runtime.call("cudaStreamWaitEvent", stream, self.handle, 0)

    def seconds_since(self, earlier: Event) -> float:
        """Both have been recorded and waited for."""
        found = ctypes.c_float()
        handles = (earlier.handle, self.handle)
        self._runtime.call("cudaEventElapsedTime", ctypes.byref(found), *handles)
        return float(found.value) / 1e3


class Stream:
    """A stream beside the default one, which it does not wait for."""

    def __init__(self, runtime: Runtime) -> None:
        handle = _P()
        runtime.call("cudaStreamCreateWithFlags", ctypes.byref(handle), _NON_BLOCKING)
        self.handle: int | None = handle.value
        runtime.at_the_end_of(self, "cudaStreamDestroy", handle)


class Graphs:
    """Work that a stream was given within `capture`, to be given again: graphs, and what the host
    does between two of them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stream: Stream | None = None  # that is captured
        self._parts: list[_P | Callable[[], None]] = []

    @contextlib.contextmanager
    def capture(self, stream: Stream) -> Iterator[None]:
        """What the stream is given within is not done but kept; once for an object.

        Raises RuntimeError with CUDA's words where it was given what no graph can hold.  Garbage is
        not collected meanwhile: giving a tensor's memory back would be an error of its destructor.
        """
        self._stream = stream
        try:
            with _capturing(self._runtime, stream):
                yield
                self._end(stream)
        finally:
            self._stream = None

    def between(self, action: Callable[[], None]) -> None:
        """Within a capture: an action that is done where it stands now, each time, and not now."""
        assert self._stream is not None
        self._end(self._stream)
        self._parts.append(action)
        _begin(self._runtime, self._stream)

    def launch(self, stream: int | None) -> None:
        """Gives a stream the work, and does what is between its parts."""
        for part in self._parts:
            if callable(part):
                part()
            else:
                self._runtime.call("cudaGraphLaunch", part, stream)

    def _end(self, stream: Stream) -> None:
        made, graph = _P(), _ended(self._runtime, stream)
        try:
            self._runtime.call("cudaGraphInstantiate", ctypes.byref(made), graph, 0)
        finally:
            self._runtime.quietly("cudaGraphDestroy", graph)
        self._runtime.at_the_end_of(self, "cudaGraphExecDestroy", made)
        self._parts.append(made)


def takes_memory(runtime: Runtime, stream: Stream, work: Callable[[], Any]) -> bool:
    """Whether a graph of this work takes memory when it is launched, so that no other may hold it.

    The work gives the stream something, of which nothing is done.  Raises as `Graphs.capture`.
    """
    # A call leaves no garbage worth collecting first, which takes 0.2 s beside a large network.
    with _capturing(runtime, stream, collects=False):
        work()
        graph = _ended(runtime, stream)
    count, kind = ctypes.c_size_t(), ctypes.c_int()
    try:
        runtime.call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (_P * count.value)()
        runtime.call("cudaGraphGetNodes", graph, nodes, ctypes.byref(count))
        for node in nodes:
            runtime.call("cudaGraphNodeGetType", node, ctypes.byref(kind))
            if kind.value in _OF_MEMORY:
                return True
        return False
    finally:
        runtime.quietly("cudaGraphDestroy", graph)


@contextlib.contextmanager
def _capturing(runtime: Runtime, stream: Stream, collects: bool = True) -> Iterator[None]:
    """What the stream is given within is captured, up to the end that the caller makes within."""
    with _uncollected(collects):
        _begin(runtime, stream)
        try:
            yield
        except BaseException:
            graph = _P()
            runtime.quietly("cudaStreamEndCapture", stream.handle, ctypes.byref(graph))
            if graph:
                runtime.quietly("cudaGraphDestroy", graph)
            runtime.quietly("cudaGetLastError")
            raise


def _begin(runtime: Runtime, stream: Stream) -> None:
    runtime.call("cudaStreamBeginCapture", stream.handle, _THREAD_LOCAL)


def _ended(runtime: Runtime, stream: Stream) -> ctypes.c_void_p:
    """The graph of what was captured, of which the caller disposes."""
    graph = _P()
    runtime.call("cudaStreamEndCapture", stream.handle, ctypes.byref(graph))
    return graph


@contextlib.contextmanager
def _uncollected(collects: bool) -> Iterator[None]:
    """Within it nothing is collected, and with `collects` what is garbage by now is before it."""
    was_enabled = gc.isenabled()
    if collects:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def bytes_of(shape: Sequence[Any], dtype: str) -> int:
    """Of a tensor."""
    return math.prod(int(n) for n in shape) * numpy_dtype(dtype).itemsize


class Pinned:
    """An array in page-locked memory, from which and to which copies need no host."""

    def __init__(self, runtime: Runtime, shape: tuple[int, ...], dtype: str) -> None:
        kind, size = np.dtype(dtype), bytes_of(shape, dtype)
        handle = _P()
        runtime.call("cudaHostAlloc", ctypes.byref(handle), max(size, 1), 0)
        runtime.at_the_end_of(self, "cudaFreeHost", handle)
        assert handle.value is not None
        self.address, self.size = handle.value, size
        buffer = (ctypes.c_byte * max(size, 1)).from_address(self.address)
        count = size // kind.itemsize
        self.array = np.ctypeslib.as_array(buffer)[:size].view(kind)[:count].reshape(shape)
