"""SIGINT where work is to end between two steps of it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def held_interrupt(wanted: bool) -> Iterator[list[int]]:
    """A list that the first SIGINT within is put into, and does nothing else; a second is as ever.

    Not where it is not wanted, where SIGINT is ignored, or in another thread than the main one.
    """
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not (wanted and main and callable(before)):
        yield noted
        return

    def handler(number: int, frame: Any) -> None:
        noted.append(number)
        if len(noted) > 1:
            before(number, frame)
        else:
            print("saving after this step; once more ends at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handler)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
