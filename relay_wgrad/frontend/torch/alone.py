"""One thread at a time traces with PyTorch: its tracers keep modes and patches in the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ...ambient import outside

_own = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within it no other thread traces, nor does Dynamo, whose lock it is: a backend of
    `torch.compile` is called with it held, so that a second lock could be waited for in a circle.
    The caller's modes do not count within (`outside`).
    """
    lock: Any = getattr(import_module("torch._dynamo.convert_frame"), "compile_lock", _own)
    with lock, outside():
        yield
