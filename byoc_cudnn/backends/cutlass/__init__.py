"""CUTLASS: what it takes, which kernel for what, its code generation and templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base import Backend, rows_of
from . import check, codegen, model, objects
from .kernels import Kernel


def _check_pins(pins: Mapping[str, Any]) -> None:
    """Raises ValueError for what is no kernel's name."""
    if pins.get("kernel") is not None:
        Kernel.parse(pins["kernel"])


BACKEND = Backend(
    name=check.NAME,
    codegen=check.CODEGEN,
    options=check.Options,
    layouts=check.LAYOUTS,
    accepts=check.check,
    rows=rows_of(check.NAME, check.EPILOGUES, check.check),
    bound=check.bound,
    wider=model.wider_channels,
    generate=codegen.generate,
    inputs=lambda source, toolchain, progress: objects.objects(
        source, toolchain, progress=progress
    ),
    pins=("kernel", "split_k"),
    check_pins=_check_pins,
    tried=model.tried,
    version=objects.version,
)
