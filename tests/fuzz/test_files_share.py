"""The share of the generator of damaged files that every test run pays for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.files import GENERATOR, KINDS
from tests.fuzz.harness import failures

pytestmark = pytest.mark.usefixtures("registered")


def test_share() -> None:
    pytest.importorskip("safetensors")
    assert failures(GENERATOR, range(90), seed=7) == []


def test_a_file_is_a_function_of_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the time, and however a library orders what it writes."""
    pytest.importorskip("safetensors")
    for kind, make in KINDS.items():
        seen = set()
        for second in range(3):
            monkeypatch.setattr("time.time", lambda now=second: 1e9 + 60 * now)
            folder = tmp_path / kind
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(np.random.default_rng([3, 1]), folder)
            files = sorted(folder.iterdir())
            seen.add(b"".join(f.read_bytes() for f in files))
        assert len(seen) == 1, kind
