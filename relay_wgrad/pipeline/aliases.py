"""Which tensors a value may be the memory of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from ..graph.walk import variables_of
from ..ir import is_a

Parts = frozenset[int] | list[Any]
"""Tensors by their numbers; of a tuple a list, of each field one.  Of what may be any of several
tensors, all of them."""
_NONE: frozenset[int] = frozenset()


def parts_of(value: Any, parts: Mapping[Any, Parts]) -> Parts:
    """Of a value by its variables': any that it mentions, but for tuples and their fields.

    Of what is written within a tuple's field too: tuples may nest deeper than Python calls.
    """
    if is_a(value, relax.Var):
        return parts.get(value, _NONE)
    if is_a(value, relax.Tuple):
        return [
            parts.get(field, _NONE) if is_a(field, relax.Var) else _mentioned(field, parts)
            for field in value.fields[:]
        ]
    if is_a(value, relax.TupleGetItem) and is_a(value.tuple_value, relax.Var):
        whole = parts_of(value.tuple_value, parts)
        return whole[value.index] if isinstance(whole, list) else whole
    return _mentioned(value, parts)


def _mentioned(value: Any, parts: Mapping[Any, Parts]) -> frozenset[int]:
    variables = variables_of(value)
    return frozenset(i for var in variables for i in all_of(parts.get(var, _NONE)))


def all_of(parts: Parts) -> frozenset[int]:
    """The tensors, whichever field they are of."""
    if isinstance(parts, frozenset):
        return parts
    found: set[int] = set()
    rest: list[Any] = [parts]
    while rest:
        part = rest.pop()
        if isinstance(part, frozenset):
            found |= part
        else:
            rest += part
    return frozenset(found)
