"""Public paths: what docs, README, notebooks and examples import or name does not move."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.public import resolved

ROOT = Path(__file__).parent.parent
FROZEN = (ROOT / "tests" / "golden" / "public_names.txt").read_text().split()
"""Names may be added, not removed: only a deprecation's end does."""

_TOP = "relay_wgrad|legalize|byoc_cudnn"
_DOTTED = re.compile(rf"(?<![\w./-])((?:{_TOP})(?:\.[A-Za-z_]\w*)+)")
_IMPORT = re.compile(rf"from ((?:{_TOP})[\w.]*) import ([\w, ]+)")
# Text of another kind: a sentence's end before a word, a file's name, wire formats, a placeholder.
_OTHER = re.compile(r"relay_wgrad\.(s|py|lowering|op|exact_floats|options|row|mode)$")


@pytest.mark.parametrize("name", FROZEN)
def test_a_public_name_is_there(name: str) -> None:
    resolved(name)


def named() -> set[str]:
    """The names in the texts that users read."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    found = set()
    for path in [*files, *(ROOT / "notebooks").glob("*.ipynb")]:
        text = path.read_text(encoding="utf-8")
        found |= {match[1] for match in _DOTTED.finditer(text)}
        for match in _IMPORT.finditer(text):
            names = [part.split(" as ")[0].strip() for part in match[2].split(",")]
            found |= {f"{match[1]}.{name}" for name in names if name}
    return {name for name in found if not _OTHER.search(name)}


def test_what_users_read_is_frozen() -> None:
    missing = sorted(named() - set(FROZEN))
    assert not missing, f"add to tests/golden/public_names.txt: {missing}"
