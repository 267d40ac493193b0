"""Which tensors a value may be the memory of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from ..graph.walk import variables_of

Parts = frozenset[int] | list[Any]
"""Tensors by their numbers; of a tuple a list, of each field one.  Of what may be any of several
tensors, all of them."""


def parts_of(value: Any, parts: Mapping[Any, Parts]) -> Parts:
    """Of a value by its variables': any that it mentions, but for tuples and their fields.

    Of what is written within a tuple's field too: tuples may nest deeper than Python calls.
    """
    if isinstance(value, relax.Var):
        return parts.get(value, frozenset())
    if isinstance(value, relax.Tuple):
        return [
            parts_of(field, parts) if isinstance(field, relax.Var) else _mentioned(field, parts)
            for field in value.fields
        ]
    if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
        whole = parts_of(value.tuple_value, parts)
        return whole[value.index] if isinstance(whole, list) else whole
    return _mentioned(value, parts)


def _mentioned(value: Any, parts: Mapping[Any, Parts]) -> frozenset[int]:
    return frozenset(i for var in variables_of(value) for i in all_of(parts_of(var, parts)))


def all_of(parts: Parts) -> frozenset[int]:
    """The tensors, whichever field they are of."""
    found: set[int] = set()
    rest = [parts]
    while rest:
        part = rest.pop()
        if isinstance(part, frozenset):
            found |= part
        else:
            rest += part
    return frozenset(found)
