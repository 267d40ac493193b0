"""MergeComposite: what matches a pattern becomes a function with the attribute `Composite`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...keys import COMPOSITE
from ..ast import Function, IRModule
from ..dataflow_pattern.partition import Check, Grouper, partition_groups
from ..dataflow_pattern.pattern import DFPattern

Row = tuple[str, DFPattern, Check]


def rows_of(table: Any, where: str = "MergeComposite") -> list[Row]:
    """The rows of a table as (name, pattern, check).

    Raises TypeError for a row that is neither (name, pattern) nor (name, pattern, check).
    """
    if not isinstance(table, Sequence) or isinstance(table, str):
        raise TypeError(f"{where}: a pattern table is a list of rows, got {table!r}")
    rows: list[Row] = []
    for row in table:
        fields = tuple(row) if isinstance(row, Sequence) and not isinstance(row, str) else ()
        is_row = len(fields) in (2, 3) and isinstance(fields[0], str)
        if not is_row or not isinstance(fields[1], DFPattern) or not all(map(callable, fields[2:])):
            raise TypeError(
                f"{where}: a row is (name, pattern) or (name, pattern, check), got {row!r}"
            )
        rows.append((fields[0], fields[1], fields[2] if len(fields) == 3 else _always))
    return rows


def _always(_: Any) -> bool:
    return True


def merge_composite(function: Function, rows: Sequence[Row], mod: IRModule) -> Function:
    """The function after each row in turn."""
    grouper = Grouper(function, mod)
    for name, pattern, check in rows:
        groups = grouper.groups(pattern)
        out = partition_groups(function, groups, {COMPOSITE: name}, check)
        if out is not function:
            assert isinstance(out, Function)
            function, grouper = out, Grouper(out, mod)
    return function
