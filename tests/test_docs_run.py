"""Pages whose Python runs, from top to bottom: each block prints what the page shows under it.

`python -m tests.test_docs_run PAGE…` runs pages and writes what they print into them.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    "first_steps.md",
    "explanation/layout.md", "explanation/raising.md", "explanation/transposed.md",
    "howto/byoc.md", "howto/evaluate.md", "howto/export.md", "howto/from_anywhere.md",
    "howto/jax.md", "howto/refused.md", "howto/relay.md", "howto/several_gpus.md",
    "reference/dialects.md", "reference/relay_api.md", "reference/relay_layouts.md",
    "reference/relay_partition.md", "reference/relay_passes.md",
]  # fmt: skip
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = "# needs a GPU\n"  # the first line of a block that is only compiled


def printed(page: str, text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each block with what it prints, or for a block of text, with what was printed before it."""
    names: dict[str, Any] = {}
    last = ""
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            code = compile(block[2], page, "exec")
            out = io.StringIO()
            if not block[2].startswith(ELSEWHERE):
                with contextlib.redirect_stdout(out):
                    exec(code, names)
            last = out.getvalue()
        yield block, last


@pytest.fixture(autouse=True)
def _as_before(registered: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From the folder of the project; what pages register with Relay goes again."""
    from byoc_cudnn import BACKENDS
    from byoc_cudnn.table import CODEGENS
    from relay_wgrad.relay import external
    from relay_wgrad.relay.op import unregister
    from relay_wgrad.relay.op.contrib import unregister_pattern_table

    monkeypatch.chdir(ROOT)
    tables = [(table, dict(table)) for table in (BACKENDS, CODEGENS)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)
    unregister("my.scale")
    for name in (*BACKENDS, "npu"):
        unregister_pattern_table(name)
        external.unregister_external(name)


@pytest.mark.longer_cases(
    "howto/evaluate",
    "howto/export",
    "howto/from_anywhere",
    why="they train; the first steps do so too",
)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("page", PAGES)
def test_blocks_print_what_is_shown(page: str) -> None:
    shown = True
    for block, out in printed(page, (DOCS / page).read_text()):
        if block[1] == "python":
            assert shown, f"{page} does not show what a block prints, above {block[2]!r}"
            shown = not out
        else:
            assert block[2] == out
            shown = True
    assert shown, f"{page} does not show what its last block prints"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        text, done = path.read_text(), 0
        parts = []
        for block, out in printed(path.name, text):
            if block[1] == "text":
                parts += [text[done : block.start(2)], out]
                done = block.end(2)
        path.write_text("".join([*parts, text[done:]]))
