"""The kernels that a process keeps: so many, and of more the least recently called are dropped.

A CPU kernel is a module of TVM's: some 2 MiB and three mappings of memory.  What is dropped is
given back when its last call ends; whoever is in one keeps it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..locks import lock

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]

SIZE = 512
"""Kernels at first.  A training step of ResNet-50 has 68, of DenseNet-121 some 350."""
PREPARED = 10_000
"""Where there are more of them they are dropped: one takes microseconds to make anew."""

clock = itertools.count(1).__next__


class Slot:
    """A kernel, whose it is, and when it was last called."""

    __slots__ = ("is_pinned", "kernel", "used", "what")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.used, self.is_pinned, self.what = kernel, clock(), False, ""


class CacheInfo(NamedTuple):
    """What `relay_wgrad.torch.cache_info` says."""

    kernels: int  # that are kept
    size: int  # how many may be
    built: int  # since the process began, those that were dropped included
    dropped: int


class Cache:
    """Kernels by problem, and what is prepared of calls, each of which has one kernel's slot.

    Methods take the lock; reading `prepared` needs none.
    """

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.built, self.dropped = size, 0, 0
        self.prepared: dict[Any, Any] = {}
        self.slots: dict[Any, Slot] = {}
        self._first: dict[Any, int] = {}  # a problem's first number of images
        self._lock = lock(threading.RLock)

    def find(self, key: Any) -> Slot | None:
        slot = self.slots.get(key)
        if slot is not None:
            slot.used = clock()
        return slot

    def add(self, key: Any, kernel: Kernel) -> Slot:
        with self._lock:
            self._shrink(self.size - 1)
            slot = self.slots[key] = Slot(kernel)
            self.built += 1
            return slot

    def add_prepared(self, key: Any, kernel_key: Any, prepared: Any) -> None:
        """`kernel_key`: None for a call without a kernel."""
        with self._lock:
            if kernel_key is not None and self.slots.get(kernel_key) is not prepared.slot:
                return  # dropped meanwhile
            if len(self.prepared) >= PREPARED:
                self.prepared.clear()
            self.prepared[key] = prepared

    def is_first(self, family: Any, images: int) -> bool:
        """Whether a problem was first seen with so many images; it stays so for kernels to give
        the same bits every time."""
        with self._lock:
            if len(self._first) >= PREPARED:
                self._first.clear()
            return self._first.setdefault(family, images) == images

    def resize(self, size: int) -> None:
        with self._lock:
            self.size = size
            self._shrink(size)

    def clear(self) -> None:
        with self._lock:
            self._shrink(0)
            self.prepared.clear()
            self._first.clear()
        _trim()

    def _shrink(self, size: int) -> None:
        over = len(self.slots) - size
        if over <= 0 or _capturing():
            return
        oldest = sorted(self.slots.items(), key=lambda item: item[1].used)
        gone = dict([item for item in oldest if not item[1].is_pinned][:over])
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # a kernel's code must not go while it runs
        slots = set(map(id, gone.values()))
        for key in [k for k, prepared in self.prepared.items() if id(prepared.slot) in slots]:
            del self.prepared[key]
        for key in gone:
            del self.slots[key]
        self.dropped += len(gone)


def _capturing() -> bool:
    """Whether a CUDA graph is being captured, in which nothing may be waited for."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _trim() -> None:
    """Gives free memory back to the system, where the C library can be told to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


kept = Cache()


def cache_info() -> CacheInfo:
    """How many kernels this process keeps, may keep, has built and has dropped."""
    return CacheInfo(len(kept.slots), kept.size, kept.built, kept.dropped)


def clear_cache() -> None:
    """Drops all kernels and gives their memory back; the next calls build theirs anew.

    Kernels that a CUDA graph has captured stay, as its replays call them.  Thread-safe.
    """
    kept.clear()


def set_cache_size(kernels: int) -> None:
    """How many kernels are kept from now on, at least 1.  Raises TypeError or ValueError."""
    if not isinstance(kernels, int) or isinstance(kernels, bool):
        raise TypeError(f"set_cache_size: kernels must be an integer, got {kernels!r}")
    if kernels < 1:
        raise ValueError(f"set_cache_size: kernels must be at least 1, got {kernels}")
    kept.resize(kernels)
