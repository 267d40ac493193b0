"""cuDNN: what it takes, its code generation, templates and library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...building.toolchain import Toolchain
from ...codegen.regions import Region
from ..base import Backend, rows_of
from . import check, codegen, loaded, scaled_half


def _tried(region: Region, arch: int, most: int) -> Sequence[Mapping[str, Any]]:
    """cuDNN times its own plans, and keeps them in its own record."""
    return ({"benchmark": True},)


def _version(toolchain: Toolchain) -> str | None:
    return toolchain.cudnn.version_text if toolchain.cudnn.version else None


BACKEND = Backend(
    name=check.NAME,
    codegen=check.CODEGEN,
    options=check.Options,
    layouts=(*check.LAYOUTS, *check.VOLUME_LAYOUTS),
    accepts=check.check,
    rows=rows_of(check.NAME, check.EPILOGUES, check.check),
    generate=lambda regions, _: codegen.generate(regions),
    inputs=scaled_half.inputs,
    pins=("benchmark",),
    tried=_tried,
    version=_version,
    alone=lambda problem, options, _: loaded.convolution(problem, options),
)
