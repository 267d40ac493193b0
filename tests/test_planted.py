"""The list of planted faults fits the tree, and docs/howto/testing.md has it."""

from __future__ import annotations

import pytest

from tests.planted import FAULTS, ROOT, Fault

DOC = ROOT / "docs" / "howto" / "testing.md"
START, END = "<!-- planted faults -->\n", "<!-- end of planted faults -->\n"


def table() -> str:
    rows = [(f.what, f"`{f.file}`", ", ".join(f"`{t}`" for t in f.tests.split())) for f in FAULTS]
    lines = [("fault", "planted in", "looked for in"), ("---",) * 3, *rows]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


def test_the_page_has_the_list(request: pytest.FixtureRequest) -> None:
    before, _, rest = DOC.read_text(encoding="utf-8").partition(START)
    old, _, after = rest.partition(END)
    if request.config.getoption("--update-golden"):
        DOC.write_text(f"{before}{START}{table()}{END}{after}", encoding="utf-8")
        old = table()
    assert old == table(), "docs/howto/testing.md differs (--update-golden)"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_it_can_be_planted(fault: Fault) -> None:
    """Its place is there, and the tests that are to find it are."""
    assert fault.old in (ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.new != fault.old
    assert all((ROOT / test).is_file() for test in fault.tests.split())
