"""That a pass changes no number."""

from __future__ import annotations

from typing import Any


def flat(value: Any) -> list[Any]:
    """The arrays of a result."""
    return [x for v in value for x in flat(v)] if isinstance(value, tuple) else [value]
