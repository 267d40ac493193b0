"""Lists of frames without what nobody reads of them; imports no TVM, as the process that starts
others and runs no test need not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

_NEAR = 4  # frames whose lines TVM's parser may read: its own, a class, and what has that


@contextmanager
def shallow_stacks() -> Iterator[None]:
    """While inside, lists of frames have the source lines of the nearest ones alone.

    TVM's parser of scripts asks for all frames, of which pytest has sixty; for each that is of no
    file, as the importer's are, Python looks through all modules.
    """

    def frames(frame: FrameType | None, context: int = 1) -> list[inspect.FrameInfo]:
        found: list[inspect.FrameInfo] = []
        while frame:
            code = frame.f_code
            near: Any = (code.co_filename, frame.f_lineno, code.co_name, None, None)
            if len(found) < _NEAR:
                near = inspect.getframeinfo(frame, context)
            found.append(inspect.FrameInfo(frame, *near))
            frame = frame.f_back
        return found

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(inspect, "getouterframes", frames)
        yield
