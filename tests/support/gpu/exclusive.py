"""For tests that measure a device: what it has left, or how long it takes."""

from __future__ import annotations

import os

import pytest

EXCLUSIVE = pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="memory that is left and times say nothing while other tests use the device",
)
