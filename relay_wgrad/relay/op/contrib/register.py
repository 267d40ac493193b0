"""Pattern tables of other compilers, by the compilers' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Table = Sequence[tuple[Any, ...]]
_TABLES: dict[str, list[tuple[Any, ...]]] = {}


def register_pattern_table(compiler: str, table: Callable[[], Table] | None = None) -> Any:
    """Registers a pattern table for `transform.MergeComposite`.

    `table()` gives rows (name, pattern) or (name, pattern, check), big to small; without it this is
    a decorator.  It is called once, at once; a table of the same name before is replaced.

    Raises
    ------
    TypeError : for a name that is no string, a table that is no function, or rows of another form.
    """
    from ...transform.merge_composite import rows_of  # it is above the operators

    if not isinstance(compiler, str) or not compiler:
        raise TypeError(f"register_pattern_table: expected a compiler's name, got {compiler!r}")

    def register(function: Callable[[], Table]) -> Callable[[], Table]:
        if not callable(function):
            raise TypeError(
                f"register_pattern_table: {compiler}: the table must be a function that gives the"
                f" rows, got {function!r}"
            )
        rows = function()
        rows_of(rows, f"register_pattern_table: {compiler}")
        _TABLES[compiler] = list(rows)
        return function

    return register if table is None else register(table)


def get_pattern_table(compiler: str) -> list[tuple[Any, ...]] | None:
    """The table of a compiler; None if it has none."""
    return _TABLES.get(compiler)


def unregister_pattern_table(compiler: str) -> None:
    """Takes a table back; nothing happens if there is none."""
    _TABLES.pop(compiler, None)
