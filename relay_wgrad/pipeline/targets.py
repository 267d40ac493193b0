"""For which target a pass runs."""

from __future__ import annotations

from tvm.target import Target


def cuda_target() -> Target | None:
    """The current target, if it is CUDA's."""
    target = Target.current(allow_none=True)
    return target if target is not None and str(target.kind.name) == "cuda" else None
