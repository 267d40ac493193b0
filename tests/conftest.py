"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import relay_wgrad


@pytest.fixture
def registered() -> Iterator[None]:
    """The package's rules in TVM for the length of one test; as it was before, after."""
    before = relay_wgrad.is_registered()
    relay_wgrad.register()
    yield
    # A test may itself have unregistered, or left its rules behind: put the state back.
    if before:
        relay_wgrad.register()
    else:
        relay_wgrad.unregister()
