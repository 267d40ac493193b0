"""What holds in a child of a fork."""

from __future__ import annotations

import os
import signal
from typing import Any


def in_child(work: Any) -> int:
    """The exit status of a forked child; a signal's number, negative, if it hung."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
