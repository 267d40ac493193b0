"""The examples run as they are, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support.children import ROOT, run_script

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    done = run_script(path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout
