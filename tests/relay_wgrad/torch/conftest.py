"""What a step's host part does is done by the library in C++, as it is in a loop of steps."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def host_library() -> None:
    """Not whenever a thread has built it."""
    from relay_wgrad.torch import host_library

    host_library.built()
