"""Locks that a child of `fork` finds free: it has none of the threads that may have held them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


def lock(make: Callable[[], Any] = threading.Lock) -> Any:
    """A lock of `threading`'s, of the life of the process; `make` is its class."""
    made = make()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made._at_fork_reinit)  # as `logging` does
    return made
