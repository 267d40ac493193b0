"""The share of the generator of damaged files that every test run pays for."""

from __future__ import annotations

import pytest

from tests.fuzz.files import GENERATOR
from tests.fuzz.harness import failures

pytestmark = pytest.mark.usefixtures("registered")


def test_share() -> None:
    pytest.importorskip("safetensors")
    assert failures(GENERATOR, range(90), seed=7) == []
