"""What a page says is refused is refused, in words that say why: a limit that fell fails here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .support.limits import ELSEWHERE, LIMITS, Limit

ROOT = Path(__file__).parent.parent
PAGES = sorted({limit.page for limit in LIMITS})


def prose(page: str) -> str:
    """A page on one line, without its blocks of code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return " ".join(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).split())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.page}: {limit.says[-50:]}")
def test_a_limit_is_refused(limit: Limit) -> None:
    assert limit.says in prose(limit.page)
    try:
        said = limit.run()
    except Exception as error:  # a library's own type, too
        said = str(error)
    assert isinstance(said, str), f"it is taken now: {said!r}"
    assert limit.words in said


@pytest.mark.parametrize("page", PAGES)
def test_each_refusal_of_a_page_is_tried(page: str) -> None:
    text = prose(page)
    said = [limit.says for limit in LIMITS if limit.page == page]
    said += [says for of, says in ELSEWHERE if of == page]
    held = [(text.index(part), text.index(part) + len(part)) for part in said if part in text]
    for match in re.finditer(r"\brefus\w+", text):
        place = text[max(0, match.start() - 80) : match.end() + 20]
        assert any(start <= match.start() < end for start, end in held), f"no row for: {place}"


@pytest.mark.parametrize(("page", "says"), ELSEWHERE)
def test_a_limit_has_its_test_elsewhere(page: str, says: str) -> None:
    path, _, name = ELSEWHERE[page, says].partition("::")
    assert says in prose(page)
    assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_each_limit_of_the_readme_is_tried() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Limits\n")[2].partition("\n## ")[0]
    bullets = [" ".join(part.split()) for part in re.split(r"^- ", section, flags=re.M)[1:]]
    assert bullets
    for bullet in bullets:
        assert any(limit.says in bullet for limit in LIMITS), f"no row for: {bullet}"
