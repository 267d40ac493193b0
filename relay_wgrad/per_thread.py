"""What TVM keeps once for the process and each thread needs for itself."""

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


class Tags(threading.local):
    """In the place of `tvm.te.tag.TagScope`: the scope that the calling thread is in.

    TVM has one for the process, whose methods name it by the module's variable: of two threads that
    make kernels one fails ("nested tag is not allowed"), or its results have the other's tag.
    """

    _current: Any = None

    def __init__(self, scope: type) -> None:
        self._scope = scope

    def __call__(self, tag: str) -> Any:
        """A scope of TVM's."""
        return self._scope(tag)

    def get_current(self) -> Any:
        """The scope, None outside of all."""
        if self._current is not None:
            self._current.accessed = True
        return self._current
