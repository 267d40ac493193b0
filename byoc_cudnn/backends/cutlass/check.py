"""CUTLASS: what its implicit GEMM convolutions take, and the options of a call.

Static rules only, as for cuDNN.  They are those of the kernels' own `can_implement` and of their
iterators, in CUTLASS 4's headers (the 2.x API: `cutlass/conv/device/implicit_gemm_convolution.h`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from relay_wgrad.layouts import one_order
from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...decision import YES, Decision, no
from ...fused import STEPS
from ..options import Archs, all_archs, check_types, checked_arch
from ..rules import STORED, known_channels, not_empty, one_dtype, one_of_layouts, two_dimensions
from .hopper import hopper_algorithm

NAME = "cutlass"
CODEGEN = "relay_wgrad_cutlass"

LAYOUTS = (one_order("NHWC"),)
"""(data, weight, grad): channels last in all three."""

ARCHS = (75, 80, 86, 89, 90)
MAX_BYTES = 2**31
"""A kernel counts a tensor's bytes in 32 bits; but for those of Hopper's own instructions."""
MAX_SLICES = 256
MOST_GROUPS, LEAST_CHANNELS = 32, 8
"""Of a convolution with groups: its kernels are launched one after another."""

_TYPES = {"split_k": int, "kernel": str, "arch": None}  # of options; the others are bool

EPILOGUES = STORED
"""An output functor of our own computes them in float32."""

EPILOGUE_STEPS = tuple(
    name for name in STEPS if any(name in e.split("_") for es in EPILOGUES.values() for e in es)
)
"""The steps that its epilogues are of."""


@dataclass(frozen=True)
class Options:
    """How CUTLASS computes.  Raises TypeError or ValueError naming a field of wrong type or value.

    allow_tf32 : float32 operands are rounded to tf32 on tensor cores; else plain float32 units.
    deterministic : the same bits every time.  All kernels here give them, split sums too, so this
        changes nothing; it is there for what is asked of every backend.
    split_k : into how many slices a weight gradient's sum over the pixels is cut; None: the model's
        choice.  Fewer where their float32 sums would not fit the workspace.
    arch : the oldest GPU that must run the code, as nvcc numbers them: one of `ARCHS`.  Several, as
        (80, 90): one library has machine code for each, and kernels that are chosen for each; which
        of them run is known when a call is made.
    wgmma : Hopper's own instructions where they can be used, with 90 in `arch`, for that GPU alone.
        They need the headers of NVIDIA's package; TVM's copy lacks a part.
    kernel : the name of the kernel to use, as a tuning record has it; None: the model's choice.
    """

    allow_tf32: bool = True
    deterministic: bool = False
    split_k: int | None = None
    arch: Archs = 80
    wgmma: bool = False
    kernel: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", checked_arch(NAME, self.arch, ARCHS))
        check_types(NAME, self, _TYPES)
        if self.split_k is not None and not 1 <= self.split_k <= MAX_SLICES:
            raise ValueError(f"cutlass: split_k must be from 1 to {MAX_SLICES}, got {self.split_k}")
        if self.wgmma and 90 not in self.archs:
            raise ValueError(f"cutlass: wgmma needs arch=90, got arch={self.arch}")

    @property
    def archs(self) -> tuple[int, ...]:
        """All that are asked for, the oldest first."""
        return all_archs(self.arch)


def bound(options: Options) -> Callable[[ConvProblem, str], Decision]:
    """`check` under options: old GPUs take less."""
    return lambda problem, epilogue: check(problem, epilogue, options)


def check(problem: ConvProblem, epilogue: str, options: Options | None = None) -> Decision:
    """Whether CUTLASS takes a problem with an epilogue, as it stands.

    Channel counts and asymmetric padding refuse nothing: kernels are made for the alignment that
    the channels have, and are told where the padding begins and how large the output is.
    """
    options = options or Options()
    for rule in (two_dimensions, _layouts, _dtypes, known_channels, _groups, _dilation, not_empty):
        decision = rule(problem)
        if not decision:
            return decision
    reason = too_large(problem)
    if reason and not (has_hopper(options) and hopper_algorithm(problem)):
        return no(reason)
    if epilogue not in EPILOGUES[problem.kind]:
        return no(f"no epilogue {epilogue!r} for {problem.kind.value}")
    return _arch(problem, options)


def _layouts(problem: ConvProblem) -> Decision:
    return one_of_layouts(problem, LAYOUTS, "CUTLASS has")


def _dtypes(problem: ConvProblem) -> Decision:
    return one_dtype(problem, "CUTLASS's kernels here have")


def _groups(problem: ConvProblem) -> Decision:
    if problem.groups == 1:
        return YES
    # CUTLASS's dgrad and wgrad have no groups, so each group is a convolution of its own, launched
    # after the one before.
    least = min(problem.c, problem.k) // problem.groups
    if problem.groups > MOST_GROUPS or least < LEAST_CHANNELS:
        return no(
            f"groups={problem.groups} of {least} channels: a kernel for each group pays for up to"
            f" {MOST_GROUPS} groups of {LEAST_CHANNELS} channels or more"
        )
    return YES


def _dilation(problem: ConvProblem) -> Decision:
    if problem.kind is ConvKind.DGRAD and max(problem.strides) > 1 and max(problem.dilation) > 1:
        return no(
            f"dgrad with strides={problem.strides}, dilation={problem.dilation}: CUTLASS's strided"
            " dgrad has no dilation"
        )
    return YES


def of_group(problem: ConvProblem) -> ConvProblem:
    """The convolution of one group: what a kernel does."""
    g = problem.groups
    return problem if g == 1 else replace(problem, c=problem.c // g, k=problem.k // g, groups=1)


def too_large(problem: ConvProblem) -> str:
    """Which tensor has too many bytes to be counted in 32 bits, in words; empty if none has."""
    for role in ("data", "weight", "grad"):
        # A weight gradient's sums are float32 whatever the result is.
        sums = role == "weight" and problem.kind is ConvKind.WGRAD
        total = 4 if sums else DTYPE_BYTES[problem.dtype(role)]
        for size in problem.canonical_shape(role):
            total *= size if isinstance(size, int) else 1  # known when the call is made
        if total >= MAX_BYTES:
            return f"{role} has {total} bytes; CUTLASS takes fewer than 2**31"
    return ""


def has_hopper(options: Options) -> bool:
    """Whether kernels of Hopper's own instructions are asked for, and for every GPU."""
    return options.wgmma and options.archs == (90,)


def _arch(problem: ConvProblem, options: Options) -> Decision:
    oldest = options.archs[0]
    if oldest < 80 and "bfloat16" in (problem.data_dtype, problem.grad_dtype):
        return no(f"bfloat16 for arch={oldest}: tensor cores have it from 80 on")
    return YES
