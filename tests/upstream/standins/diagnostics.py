"""`tvm.ir.diagnostics`: errors are exceptions here, and nothing renders them."""

from __future__ import annotations

from typing import Any


def get_renderer() -> Any:
    """None."""


def override_renderer(renderer: Any) -> None:
    """Nothing."""
