"""Pages whose Python runs: each block prints what the page shows under it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ["transposed.md"]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_print_what_is_shown(page: str) -> None:
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```(python|text)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    printed = None
    for language, body in blocks:
        if language == "python":
            assert not printed, f"{page} does not show what a block prints: {printed}"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(body, page, "exec"), names)
            printed = out.getvalue()
        else:
            assert body == printed
            printed = None
    assert not printed, f"{page} does not show what its last block prints: {printed}"
