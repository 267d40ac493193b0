"""What is `longer`: tables beside the tests, and what they name that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support import longer
from tests.support.children import run_module

TABLE = """\
# why

norm/test_places.py
    test_whole
    test_kept keeps levels | a b
    test_most drops dense
"""
CASES = (
    "test_whole", "test_kept[levels-1]", "test_kept[dense]", "test_kept[a b]", "test_most[dense-2]",
    "test_most[levels]", "test_other[dense]",
)  # fmt: skip
FOUND = """\
from pathlib import Path

from tests.support import longer


def pytest_collection_modifyitems(config, items):
    longer.apply(config, items, Path({folder!r}), whole=True)
"""


class Item:
    """What of a test is looked at."""

    def __init__(self, name: str, marks: Iterable[pytest.Mark] = ()) -> None:
        self.nodeid, self.marks = f"tests/norm/test_places.py::{name}", [*marks]
        self.longer = False

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [mark for mark in self.marks if mark.name == name]

    def add_marker(self, name: str) -> None:
        assert name == "longer"
        self.longer = True


def table(folder: Path, text: str = TABLE) -> Path:
    path = folder / "tests" / longer.TABLE
    path.parent.mkdir()
    path.write_text(text)
    return path


def marked(items: list[Item], lines: dict[str, longer.Line]) -> tuple[list[str], list[str]]:
    unused = longer.mark(cast(Any, items), lines)
    return [item.nodeid.partition("::")[2] for item in items if item.longer], unused


def test_a_table(tmp_path: Path) -> None:
    lines = longer.read(table(tmp_path), tmp_path)
    left_out = ["test_whole", "test_kept[dense]", "test_most[dense-2]"]
    assert marked([Item(name) for name in CASES], lines) == (left_out, [])


def test_what_is_not_there(tmp_path: Path) -> None:
    lines = longer.read(table(tmp_path), tmp_path)
    mark = pytest.mark.longer_cases("dense", "gone").mark
    items = [Item(name, [mark]) for name in CASES[2:]]
    places = "tests/norm/test_places.py::"
    assert marked(items, lines)[1] == [
        f"longer_cases of {places}test_kept: gone",
        f"longer_cases of {places}test_most: gone",
        f"longer_cases of {places}test_other: gone",
        f"tests/longer.txt:4: {places}test_whole",
        f"tests/longer.txt:5: {places}test_kept: levels",
    ]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("    test_kept has dense", "7: no line of such a table: '    test_kept has dense'"),
        ("  test_kept", "7: no line of such a table"),
        ("    test_whole keeps a", "7: tests/norm/test_places.py::test_whole stands in .*:4 too"),
    ],
)
def test_a_line_that_is_none(line: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^tests/longer.txt:{error}"):
        longer.read(table(tmp_path, f"{TABLE}{line}\n"), tmp_path)


def test_a_file_comes_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1: no line of such a table"):
        longer.read(table(tmp_path, "    test_whole\n"), tmp_path)


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "1"), marks=pytest.mark.longer)])
def test_a_run_says_why_it_ends(options: tuple[str, ...], tmp_path: Path) -> None:
    """Workers too, whose own end says nothing."""
    path = table(tmp_path, "test_one.py\n    test_gone\n").parent
    (path / "test_one.py").write_text("def test_one() -> None:\n    pass\n")
    (path / "conftest.py").write_text(FOUND.format(folder=str(path)))
    (path / "pytest.ini").write_text("[pytest]\nmarkers = longer\n")
    done = run_module("pytest", "-p", "no:cacheprovider", *options, str(path), cwd=path)
    assert done.returncode != 0
    assert "no case's name begins with:" in done.stdout
    assert "longer.txt:2: test_one.py::test_gone" in done.stdout
    assert "1 passed" not in done.stdout
