"""Values picked out of many by their places, in C where there are hundreds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

Pick = Callable[[Sequence[Any]], Sequence[Any]]


def picked(places: Sequence[int]) -> Pick:
    """What takes the values at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[i] for i in places]
