"""Which kernel for a problem: the one that its family expects to be the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relay_wgrad.problem import ConvProblem

from ...codegen.regions import Region
from ..assumed_sizes import sized
from .check import Options
from .families import FAMILIES
from .family import of_planes
from .kernels import Kernel

_NEAR = 2.5  # times the best expectation: what is expected to be slower is not tried


@dataclass(frozen=True)
class Choice:
    """A kernel and the microseconds that are expected of it."""

    kernel: Kernel
    us: float


@lru_cache(maxsize=1024)
def ranked(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> tuple[Choice, ...]:
    """All kernels that are considered for a GPU, the fastest expected first."""
    problem = of_planes(problem)
    known, name = sized(problem), "_".join(epilogue)
    found = [
        Choice(Kernel.of(family, problem, epilogue, numbers), family.predict(known, numbers, arch))
        for family in FAMILIES.values()
        if family.oldest <= arch and problem.rank in family.ranks
        if family.accepts(problem, name)
        for numbers in family.candidates(known, epilogue, arch)
    ]
    return tuple(sorted(found, key=lambda choice: choice.us))


def choose(problem: ConvProblem, epilogue: tuple[str, ...], options: Options, arch: int) -> Kernel:
    """The kernel to use.  Raises ValueError for a pinned one that does not serve the problem, and
    where a GPU has none."""
    # Of several GPUs that one library is for, all must run it.
    others = [
        {choice.kernel for choice in ranked(problem, epilogue, other)}
        for other in options.archs
        if other < arch
    ]
    choices = [c for c in ranked(problem, epilogue, arch) if all(c.kernel in o for o in others)]
    if options.kernel is None and choices:
        return choices[0].kernel
    for choice in choices:
        if choice.kernel.name == options.kernel:
            return choice.kernel
    wanted = f"{options.kernel} is no kernel" if options.kernel else f"sm_{arch} has no kernel"
    raise ValueError(f"cuda_direct: {wanted} for {problem}")


def tried(region: Region, arch: int, most: int) -> list[dict[str, Any]]:
    """The kernels that are expected to be fastest on a GPU."""
    choices = ranked(region.problem, region.epilogue, arch)
    near = [choice for choice in choices if choice.us <= _NEAR * choices[0].us]
    return [{"kernel": choice.kernel.name} for choice in near[:most]]


def check_pins(pins: Mapping[str, Any]) -> None:
    """Raises ValueError for what is no kernel's name."""
    if pins.get("kernel") is not None:
        Kernel.parse(pins["kernel"])
