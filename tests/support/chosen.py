"""Which cases of a test a run has: what they share need be made for those alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def cases_of(session: pytest.Session, test: Callable[..., Any], parameter: str) -> list[Any]:
    """The values of a test's parameter in this run, in order."""
    items = (i for i in session.items if getattr(i, "function", None) is test)
    return [item.callspec.params[parameter] for item in items]  # type: ignore[attr-defined]
