"""Changes of what is global, as long as somebody wants them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class InUse:
    """Something that the first who enters makes, and that the last who leaves undoes.

    make : is given the stack on which it puts what undoes it.
    """

    def __init__(self, make: Callable[[contextlib.ExitStack], None]) -> None:
        self._make, self._undo = make, contextlib.ExitStack()
        self._lock, self._users = threading.Lock(), 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Within it the change is there."""
        with self._lock:
            if self._users == 0:
                try:
                    self._make(self._undo)
                except BaseException:  # an interrupt: nobody has entered
                    self._undo.close()
                    raise
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._undo.close()
