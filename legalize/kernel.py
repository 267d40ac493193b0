"""`Kernel`: what a generator of kernels gives for a problem, with the choice that it made."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target


@dataclass(frozen=True)
class Kernel:
    """`func` : (first operand, second operand, result), destination-passing.  `name` : which of its
    target's kernels it is, as reports print it; `reason` : why that was chosen."""

    func: tirx.PrimFunc
    name: str
    reason: str


def target_of(given: Target | str | None, none: bool = False) -> Target | None:
    """The argument of a generator's `prim_func` as a target; `none` : it may be None.

    Raises TypeError for what is none, ValueError for text that is no target's.
    """
    if isinstance(given, str):
        try:
            return Target(given)
        except Exception as error:  # TVM raises several kinds of its own
            raise ValueError(f"prim_func: {given!r} is not the text of a target") from error
    if isinstance(given, Target) or (none and given is None):
        return given
    known = ", its text or None" if none else " or its text"
    raise TypeError(
        f"prim_func: target must be a tvm.target.Target{known}, got {type(given).__name__}"
    )
