"""What a benchmark's process is asked in tests: calls of known lengths."""

from __future__ import annotations

import os
import time

from benchmarks.cpu_timing import ready


def sleeping(seconds: list[float]) -> int:
    """The next turns sleep for so long; returns the process's number."""
    ready(*(lambda t=each: time.sleep(t) for each in seconds))
    return os.getpid()


def broken(how: str) -> None:
    """Raises an error, or ends the process."""
    if how == "error":
        raise ValueError("no such layer")
    os._exit(3)
