"""What `make test` leaves to `make test-all`: by marks at the tests, and by tables beside them.

A table, `longer.txt` of a folder of tests, names files of that folder and below it their tests::

    norm/test_places.py
        test_an_operand_is_read_once
        test_a_step_is_what_it_was keeps levels | chain
        test_what_is_joined drops dense

The first is `longer` as a whole; of the second all cases but those whose names begin as one of the
words, new ones among them; of the third those alone whose names begin so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TABLE = "longer.txt"
_LINE = re.compile(r"    (\w+)(?: (keeps|drops) (.+))?")


@dataclass(frozen=True)
class Line:
    """A test that a table names."""

    where: str  # table and number
    keeps: bool
    beginnings: tuple[str, ...]  # of cases' names

    def takes(self, case: str) -> bool:
        """Whether a case is longer: its name as in brackets, with the closing one."""
        return case.startswith(self.beginnings) is not self.keeps


def read(table: Path, root: Path) -> dict[str, Line]:
    """The lines of a table by the tests' names, as pytest has them from `root`.

    Raises ValueError of a line that is none, or that is there twice.
    """
    lines, file = dict[str, Line](), ""
    for number, text in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{table.relative_to(root)}:{number}"
        if not text or text.startswith("#"):
            continue
        if not text.startswith(" "):
            file = (table.parent / text).relative_to(root).as_posix()
            continue
        found = _LINE.fullmatch(text)
        if not found or not file:
            raise ValueError(f"{where}: no line of such a table: {text!r}")
        test, word, names = found.groups()
        name = f"{file}::{test}"
        if name in lines:
            raise ValueError(f"{where}: {name} stands in {lines[name].where} too")
        lines[name] = Line(where, word != "drops", tuple(names.split(" | ")) if names else ())
    return lines


def mark(items: Sequence[pytest.Item], lines: dict[str, Line]) -> list[str]:
    """Marks as `longer` what `longer_cases`, `share` and tables leave out.

    Returns what marks and tables name and no case's name begins with.
    """
    named = {f"{line.where}: {name}": False for name, line in lines.items()}
    cases = Counter[str]()
    for item in items:
        name, _, case = item.nodeid.partition("[")
        for marker in item.iter_markers("longer_cases"):
            for beginning in marker.args:
                taken = case.startswith(beginning)
                key = f"longer_cases of {name}: {beginning}"
                named[key] = taken or named.get(key, False)
                if taken:
                    item.add_marker("longer")
        for marker in item.iter_markers("share"):
            if cases[name] % marker.args[0]:
                item.add_marker("longer")
            cases[name] += 1
        if line := lines.get(name):
            named[f"{line.where}: {name}"] = True
            for beginning in line.beginnings:
                key = f"{line.where}: {name}: {beginning}"
                named[key] = case.startswith(beginning) or named.get(key, False)
            if line.takes(case):
                item.add_marker("longer")
    return sorted(key for key, found in named.items() if not found)


def refuse(config: pytest.Config, items: list[pytest.Item], why: str) -> None:
    """Ends the run by an error of collection: by no other do workers of xdist say why."""
    items.clear()
    config.hook.pytest_collectreport(report=pytest.CollectReport("tests", "failed", why, []))


def apply(config: pytest.Config, items: list[pytest.Item], folder: Path, whole: bool) -> None:
    """Marks by all tables below `folder`; of a whole run, what names no case is refused."""
    try:
        tables = [read(table, config.rootpath) for table in sorted(folder.rglob(TABLE))]
    except ValueError as wrong:
        refuse(config, items, str(wrong))
        return
    unused = mark(items, {name: line for table in tables for name, line in table.items()})
    if unused and whole:
        refuse(
            config, items, "\n    ".join(["longer tests that no case's name begins with:", *unused])
        )
