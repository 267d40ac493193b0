"""What a caller gives: an argument of another type is a TypeError that names it.

For the places where users mistake one thing for another (a module for a graph, a list for a
mapping, "no" for False); what a function reads as a sequence or a number says so by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def check_type(what: str, value: Any, types: type | tuple[type, ...], rule: str) -> None:
    """Raises TypeError for a value of another type; `rule` is in words, as "a dict of arrays"."""
    if not isinstance(value, types):
        raise TypeError(f"{what} must be {rule}, got {type(value).__name__}")


def checked_bool(what: str, value: Any) -> bool:
    """True or False, NumPy's too.  Raises TypeError for anything else, as 1, None and "no"."""
    check_type(what, value, (bool, np.bool_), "True or False")
    return bool(value)


def checked_if_given(op: str, name: str, value: Any) -> bool | None:
    """True, False, or None for what is decided elsewhere.  Raises TypeError for anything else."""
    if value is None or value is True or value is False:  # the way of all but a few calls
        return value
    check_type(f"{op}: {name}", value, np.bool_, "True, False or None")
    return bool(value)


def checked_integer(what: str, value: Any, least: int) -> int:
    """An integer, NumPy's too.  Raises TypeError for another type, ValueError for less."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what} must be an integer of at least {least}, got {value!r:.100}")
    if value < least:
        raise ValueError(f"{what} must be an integer of at least {least}, got {value}")
    return int(value)
