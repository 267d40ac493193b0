"""For which target a pass runs."""

from __future__ import annotations

from tvm.target import Target


def cuda_target() -> Target | None:
    """The current target, if it is CUDA's."""
    return _current("cuda")


def llvm_target() -> Target | None:
    """The current target, if it is a CPU's."""
    return _current("llvm")


def _current(kind: str) -> Target | None:
    target = Target.current(allow_none=True)
    return target if target is not None and str(target.kind.name) == kind else None
