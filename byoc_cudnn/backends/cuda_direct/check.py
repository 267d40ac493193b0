"""Our own kernels: what they take, and the options of a call.  Static rules only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from relay_wgrad.layouts import one_order
from relay_wgrad.problem import ConvProblem

from ...decision import YES, Decision, no
from ..options import Archs, all_archs, check_types, checked_arch
from ..rules import STORED, known_channels, not_empty, one_dtype, one_of_layouts
from .families import FAMILIES
from .family import of_planes

NAME = "cuda_direct"
CODEGEN = "relay_wgrad_cuda_direct"

LAYOUTS = (one_order("NHWC"), one_order("NCHW"), one_order("NDHWC"))
"""(data, weight, grad): one memory order for all three."""

ARCHS = (75, 80, 86, 89, 90, 100, 120)

EPILOGUES = STORED
"""Each kernel's store computes them in float32."""


@dataclass(frozen=True)
class Options:
    """How the kernels are built.  Raises TypeError or ValueError naming a field and its value.

    arch : the oldest GPU that must run the code, as nvcc numbers them: one of `ARCHS`.  Several, as
        (80, 90): one library has machine code for each.
    deterministic : the same bits every time.  All kernels here give them, so this changes nothing.
    kernel : the name of the kernel to use, as a tuning record has it; None: the model's choice.
    faster : whether it takes only what an H200's times say is faster than by cuDNN.
    """

    arch: Archs = 80
    deterministic: bool = False
    kernel: str | None = None
    faster: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", checked_arch(NAME, self.arch, ARCHS))
        check_types(NAME, self, {"kernel": str, "arch": None})

    @property
    def archs(self) -> tuple[int, ...]:
        """All that are asked for, the oldest first."""
        return all_archs(self.arch)


def bound(options: Options) -> Callable[[ConvProblem, str], Decision]:
    """`check` under options: families that the oldest GPU cannot run are left out."""
    return partial(check, oldest=options.archs[0])


def check(problem: ConvProblem, epilogue: str, oldest: int = 80) -> Decision:
    """Whether one of the families takes a problem with an epilogue, as it stands.

    oldest : the oldest GPU that must run the code.
    """
    for rule in (_layouts, _dtypes, known_channels, not_empty):
        decision = rule(problem)
        if not decision:
            return decision
    if epilogue not in EPILOGUES[problem.kind]:
        return no(f"no epilogue {epilogue!r} for {problem.kind.value}")
    reasons, problem = [], of_planes(problem)
    for family in FAMILIES.values():
        if problem.rank not in family.ranks:
            if problem.rank == 3:
                reasons.append(f"three dimensions: kernels of {family.name} are of two")
            continue
        decision = family.accepts(problem, epilogue)
        if decision and family.oldest <= oldest:
            return YES
        reasons.append(decision.reason or f"arch {oldest}: {family.name} needs {family.oldest}")
    return no("; ".join(dict.fromkeys(reasons)))


def _layouts(problem: ConvProblem) -> Decision:
    return one_of_layouts(problem, LAYOUTS, "there is")


def _dtypes(problem: ConvProblem) -> Decision:
    return one_dtype(problem, "there is")
