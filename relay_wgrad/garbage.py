"""Python's collections of garbage while a program is made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def older_objects_stay() -> Iterator[None]:
    """Within it collections look at none of the objects that are there when it begins.

    Compiling a network makes some hundred thousand objects, and a collection of all looked at
    PyTorch's and TVM's modules each time: a twelfth of what one thread does.  Where somebody has
    frozen objects already nothing changes, since they could not be told apart in the end.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
