"""What a benchmark's processes do when the run that started them is killed: they end.

Those that go on to compile would take the cores and the GPU from whatever is measured next.
"""

from __future__ import annotations

import os
import threading
import time


def end_with_parent(seconds: float = 1.0) -> None:
    """From here on this process ends within `seconds` of its parent, whatever it is at."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
