"""Numbers for sizes that are known at the run only, where a backend's model needs some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relay_wgrad.problem import ConvProblem

_ASSUMED = {"n": 32, "h": 56, "w": 56}


def sized(problem: ConvProblem) -> ConvProblem:
    """The problem with numbers for its symbolic sizes, of which one pixel at least comes out."""
    missing = {n: v for n, v in _ASSUMED.items() if not isinstance(getattr(problem, n), int)}
    for name, taps, dilation in (
        ("h", problem.r, problem.dilation[-2]), ("w", problem.s, problem.dilation[-1]),
    ):  # fmt: skip
        if name in missing:
            missing[name] = max(missing[name], dilation * taps)
    changes: dict[str, Any] = dict(missing)
    return replace(problem, **changes)
