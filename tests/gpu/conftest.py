"""Fixtures of the tests that need a device."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="module")
def poisoned_workspaces() -> None:
    """Workspaces of generated libraries begin as NaN."""
    # Read once by each library, at its first call.
    os.environ["RELAY_WGRAD_POISON"] = "1"
