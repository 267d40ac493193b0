"""Lists of TVM's that each thread needs for itself."""

from __future__ import annotations

import threading
from typing import Any


class PerThread(threading.local):
    """What TVM does with a stack, of the calling thread: `append`, `pop`, the last, whether empty.

    `relax.BlockBuilder` has one stack for the process, and asks whether its end is itself: of two
    threads that write functions one fails by an assertion.
    """

    def __init__(self, *items: Any) -> None:
        self._items = [*items]

    def append(self, item: Any) -> None:
        """At the end."""
        self._items.append(item)

    def pop(self) -> Any:
        """The last, which goes."""
        return self._items.pop()

    def __getitem__(self, index: int) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)
