"""Names that users may write."""

from __future__ import annotations

import importlib
from typing import Any


def resolved(name: str) -> Any:
    """What a dotted name stands for.  Raises ImportError or AttributeError."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if not error.name or not name.startswith(error.name):
                raise
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
    raise ImportError(name)
