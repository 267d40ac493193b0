"""Time of the processor, for tests that cost grows as it should."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def seconds(run: Callable[[], object], times: int = 3) -> float:
    """The fastest of several runs in the process's own time.

    Without the garbage collector: what it costs depends on all that earlier tests left behind.
    """
    best = float("inf")
    for _ in range(times):
        gc.collect()
        gc.disable()
        try:
            start = time.process_time()
            run()
            best = min(best, time.process_time() - start)
        finally:
            gc.enable()
    return best
