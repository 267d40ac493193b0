"""Ways in which the process of a benchmark's row ends; imports nothing that takes time."""

from __future__ import annotations

import os
import signal


def ended(how: str) -> dict[str, str]:
    """A row, or how its process ends."""
    if how == "error":
        raise ValueError("no such network")
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"how": how}
