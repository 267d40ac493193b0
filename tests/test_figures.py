"""Figures of pages are results: a command writes them, and no page has one of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import figures

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LAB = DOCS / "lab"  # what was measured on a day, and stays as it was
PAGES = [ROOT / "README.md", *(p for p in sorted(DOCS.rglob("*.md")) if LAB not in p.parents)]

_WRITTEN = re.compile(f"{re.escape(figures.BEGIN)}.*?{re.escape(figures.END)}", re.DOTALL)
_CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
# A time or a rate beside a number, or as the unit of a table's column.  Sizes are bounds and
# defaults as often as measurements, and are not looked for.
_UNIT = r"(?:ms|µs|s|seconds|[KMGT]B/s|[GT]FLOP/s)"
_FIGURE = re.compile(rf"\d[\d.,]* ?{_UNIT}(?![\w/])")
_COLUMN = re.compile(r"^\|.*[|,(] ?(?:ms|µs|(?:CPU )?seconds)(?:\)| \|)", re.MULTILINE)


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_figures_are_the_results(page: Path) -> None:
    """Nobody writes a figure: `python -m benchmarks.figures --write` reads what was measured."""
    assert figures.with_figures(page) == page.read_text(encoding="utf-8")


def own_figures(text: str) -> list[str]:
    """Times and rates that stand outside of what `benchmarks.figures` writes, and of code."""
    prose = _CODE.sub("", _WRITTEN.sub("", text))
    return [match[0] for match in (*_FIGURE.finditer(prose), *_COLUMN.finditer(prose))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_figure_of_its_own(page: Path) -> None:
    found = own_figures(page.read_text(encoding="utf-8"))
    assert not found, f"into benchmarks/figures.py, or docs/lab: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "a step takes 8.70 ms on it",
        "reads at 30GB/s",
        "| network | ours, ms | ratio |\n| --- | --- | --- |\n| a | 3.1 | 1 |",
        "| pass | CPU seconds |\n| --- | --- |\n| a | 3.1 |",
    ],
)
def test_a_figure_is_found(text: str) -> None:
    assert own_figures(text)
    assert not own_figures(f"{figures.BEGIN}\n\n{text}\n\n{figures.END}")
