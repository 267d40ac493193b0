"""What tests are spread over; needs nothing but pytest, so that a child starts quickly."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any

import pytest

TARGET = "llvm"


class Axis:
    """Values that some fixtures take together, a row at a time."""

    def __init__(self, rows: list[Any], ids: list[str] | None = None) -> None:
        self.rows = rows
        self.ids = ids


def spread(metafunc: pytest.Metafunc) -> None:
    """Parametrizes a test by the axes and the target that it asks for."""
    marks = metafunc.definition.iter_markers("parametrize")
    given = {name for mark in marks for name in _names(mark.args[0])}
    axes: dict[Axis, dict[int, str]] = {}
    for name in metafunc.fixturenames:
        member = getattr_static(metafunc.cls, name, getattr(metafunc.module, name, None))
        if name not in given and isinstance(axis := getattr(member, "axis", None), Axis):
            axes.setdefault(axis, {})[member.index] = name
    for axis, members in axes.items():
        rows = [_row(row, list(members)) for row in axis.rows]
        metafunc.parametrize(list(members.values()), rows, ids=axis.ids)
    if "target" in metafunc.fixturenames and "target" not in given:
        metafunc.parametrize("target", [TARGET])


def _row(row: Any, members: list[int]) -> Any:
    """The values of these members; what `pytest.param` made keeps its marks."""
    if hasattr(row, "marks"):
        return pytest.param(*(row.values[index] for index in members), marks=row.marks)
    return tuple(row[index] for index in members)


def _names(names: Any) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
