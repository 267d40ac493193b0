"""Rules that several backends have: a problem to a `Decision`."""

from __future__ import annotations

from relay_wgrad.problem import ConvProblem

from ..decision import YES, Decision, no


def known_channels(problem: ConvProblem) -> Decision:
    """Yes where channels and taps are numbers: what kernels and plans are made for."""
    sizes = {name: getattr(problem, name) for name in ("c", "k", "r", "s")}
    symbolic = [f"{name.upper()}={v}" for name, v in sizes.items() if not isinstance(v, int)]
    if symbolic:
        return no(f"symbolic channels or kernel: {', '.join(symbolic)}")
    return YES
