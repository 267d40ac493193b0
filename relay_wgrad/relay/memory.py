"""Memory: how large a tensor may be, and an error that says which one was too large.

TVM's own words are `std::bad_alloc`, from wherever an allocation fails.  That is a shortage: sizes
that are negative are refused before memory is asked for (`pipeline.sizes_first`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .records.empty import bytes_of, is_known
from .types import TensorType, TupleType, Type

LARGEST = 2**40  # bytes of a tensor: beyond what a machine has, and what TVM's sizes can count
_NO_MEMORY = re.compile(r"bad_alloc|out of memory|unable to allocate|cannot allocate", re.I)


class Widest:
    """The largest tensor of a program, in words: what an allocation that fails is told by."""

    def __init__(self, words: str = "") -> None:
        self.words = words
        self.bytes = 0

    def see(self, what: str, ty: Type, place: Any = None) -> None:
        """`what` makes or is a tensor of that type; `place()` says where."""
        for field in ty.fields if isinstance(ty, TupleType) else (ty,):
            if isinstance(field, TensorType) and (size := bytes_of(field)) > self.bytes:
                self.bytes = size
                at = place() if place is not None else ""
                least = "" if is_known(field) else "at least "
                self.words = f"the largest tensor is {what}: {least}{size:,} bytes, {field}{at}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


@contextmanager
def allocating(where: str, words: str) -> Iterator[None]:
    """Makes TVM's errors of failed allocations MemoryErrors of ours."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryError(
            f"{where}: not enough memory" + (f": {words}" if words else "")
        ) from error
