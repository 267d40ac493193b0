"""One thread at a time traces with PyTorch: its tracers keep modes and patches in the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from ...ambient import outside

_own = threading.RLock()
_ends = threading.local()


@contextlib.contextmanager
def tracing_alone() -> Iterator[None]:
    """Within it no other thread traces, nor does Dynamo, whose lock it is: a backend of
    `torch.compile` is called with it held, so that a second lock could be waited for in a circle.
    The caller's modes do not count within (`outside`).
    """
    lock: Any = getattr(import_module("torch._dynamo.convert_frame"), "compile_lock", _own)
    with lock, outside():
        yield


@contextlib.contextmanager
def at_end(do: Callable[[], object]) -> Iterator[None]:
    """Within it `do` is called where this thread has traced a module, before what that has changed
    in the module is put back."""
    before = getattr(_ends, "all", ())
    _ends.all = (*before, do)
    try:
        yield
    finally:
        _ends.all = before


def trace_ended() -> None:
    """Calls what `at_end` was given."""
    for do in getattr(_ends, "all", ()):
        do()
