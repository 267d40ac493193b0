"""A process that trains on the GPU ends as others do: `tests.support.exits`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.exits import CODES

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("how", CODES)
def test_a_process_ends(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.exits", how],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == CODES[how], done.stderr
    assert "terminate called" not in done.stderr
