"""Updates of many tensors in a few launches, beside NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.gpu.runner import choose_compiler
from tests.support.gpu.updates_runner import wrong_updates

pytestmark = pytest.mark.gpu


def test_as_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path / "cache"))
    choose_compiler()
    assert wrong_updates(tmp_path) == []
