"""What a measurement chooses of CUTLASS: the kernel, and into how many slices its sum is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...codegen.regions import Region
from .check import Options
from .kernels import Kernel
from .model import Choice, ranked

_NEAR = 2.5  # times the best expectation: what the model takes to be slower is not tried
_SLICES = 2  # counts of slices to try for a kernel


def tried(region: Region, arch: int, most: int) -> list[dict[str, Any]]:
    """The kernels that the model ranks highest for a GPU, each with some counts of slices."""
    choices = ranked(region.problem, region.epilogue, Options(**region.options), arch)
    near: list[Choice] = []
    for c in choices:
        same = sum(other.kernel == c.kernel for other in near)
        if c.cycles <= _NEAR * choices[0].cycles and same < _SLICES:
            near.append(c)
    return [{"kernel": c.kernel.name, "split_k": c.slices} for c in near[:most]]


def check_pins(pins: Mapping[str, Any]) -> None:
    """Raises ValueError for what is no kernel's name."""
    if pins.get("kernel") is not None:
        Kernel.parse(pins["kernel"])
