"""cuDNN: what its convolutions take, and the options of a call.

Static rules only, so that a module can be partitioned on a machine without a GPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from relay_wgrad.dtypes import HALVES, MIXED
from relay_wgrad.layouts import one_order
from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from ...fused import MASKS
from ..options import check_types
from ..rules import known_channels, one_of_layouts

NAME = "cudnn"
CODEGEN = "relay_wgrad_cudnn"

LAYOUTS = (one_order("NCHW"), one_order("NHWC"))
"""(data, weight, grad): one memory order for all three."""
VOLUME_LAYOUTS = (one_order("NCDHW"), one_order("NDHWC"))
"""The same in three dimensions."""

DTYPES = MIXED
CUDNN_TYPES = {
    "float16": "CUDNN_DATA_HALF", "bfloat16": "CUDNN_DATA_BFLOAT16",
    "float32": "CUDNN_DATA_FLOAT", "float64": "CUDNN_DATA_DOUBLE",
}  # fmt: skip
"""`cudnnDataType_t` of a dtype; double for `program.py` alone."""
MAX_ELEMENTS = 2**31
"""cuDNN counts a tensor's elements in 32 bits."""
SCALED_HALF = "RELAY_WGRAD_SCALED_HALF"
"""The variable that says what `Options.scaled_half` is where it is not given: 0 is false.  With
`always` nothing is compared (`templates/cudnn_scaled.h`), for tests.
"""

EPILOGUES: dict[ConvKind, tuple[str, ...]] = {
    ConvKind.FPROP: ("bias_relu", "bias", "relu", ""),
    ConvKind.DGRAD: ("bias_relu", "bias", "relu", *MASKS, ""),
    ConvKind.WGRAD: ("",),
}
"""Kind -> its epilogues, big to small."""


def _scaled_half() -> bool:
    return os.environ.get(SCALED_HALF, "1").strip() != "0"


@dataclass(frozen=True)
class Options:
    """How cuDNN computes.  Raises TypeError or ValueError naming a field of wrong type or value.

    allow_tf32 : float32 operands may be rounded to tf32 (10 bits of fraction) on tensor cores.
    benchmark : plans are timed once per problem and the fastest taken; else cuDNN's heuristic.
    deterministic : only plans that give the same bits every time.
    workspace_limit : bytes of scratch memory that a plan may use; None: `workspace_of`.
    scaled_half : with `allow_tf32`, weight gradients of float32, channels last and in eights, may
        be computed with float16 operands that are scaled by channel (`scaled_half.py`): where that
        is faster, by times with `benchmark`, else as expected of an H200.  By default true, unless
        $RELAY_WGRAD_SCALED_HALF is 0.
    """

    allow_tf32: bool = True
    benchmark: bool = False
    deterministic: bool = False
    workspace_limit: int | None = None
    scaled_half: bool = field(default_factory=_scaled_half)

    def __post_init__(self) -> None:
        check_types(NAME, self, {"workspace_limit": int})
        if self.workspace_limit is not None and not 0 <= self.workspace_limit < 2**63:
            raise ValueError(
                f"cudnn: workspace_limit must be at least 0 and less than 2**63,"
                f" got {self.workspace_limit}"
            )


def workspace_of(problem: ConvProblem) -> int:
    """The limit where none is given, in bytes: four times the three tensors and 256 MiB.

    Engines that change layouts keep copies of the tensors, and Winograd's transforms are larger.
    With 1 GiB for 256 images of ResNet-50's 56x56 layers in float32, all of these were refused, and
    what was left took up to 50 times as long.
    """
    return 4 * problem.bytes + (256 << 20)


def check(problem: ConvProblem, epilogue: str) -> Decision:
    """Whether cuDNN takes a problem with an epilogue, as it stands."""
    for rule in (_layouts, _dtypes, known_channels, _padding, _elements):
        decision = rule(problem)
        if not decision:
            return decision
    if epilogue not in EPILOGUES[problem.kind]:
        return no(f"no epilogue {epilogue!r} for {problem.kind.value}")
    return _epilogue(problem, epilogue) if epilogue else YES


def _epilogue(problem: ConvProblem, epilogue: str) -> Decision:
    """What is fused: what was tried on an H200 with cuDNN 9.19 and was right.

    Not fused, a convolution goes alone and TVM computes what follows it, so nothing is lost but one
    more pass over the result.  Asking for more than there is would fail when the program runs.
    """
    if problem.rank == 3:
        return no(f"{epilogue} in three dimensions: none was tried, so convolutions go alone")
    channels_last = problem.data_layout == "NHWC"
    c, k, strides = problem.c, problem.k, problem.strides
    if problem.groups != 1 or max(problem.dilation) > 1:
        return no(
            f"{epilogue} with groups={problem.groups}, dilation={problem.dilation}: fused for one"
            " group without dilation"
        )
    if problem.kind is ConvKind.FPROP and (channels_last or "bias" in epilogue):
        return YES
    if not channels_last:
        return no(f"{epilogue} in {problem.data_layout}: cuDNN fuses it in NHWC only")
    if c % 8 or k % 8:
        return no(f"{epilogue} with C={c}, K={k}: cuDNN fuses it for multiples of 8")
    # Tried: where a side of the data is shorter than the stride, cuDNN suggests no engine at all.
    sides = (problem.h, problem.w)
    for side, stride in zip(sides, strides, strict=True):
        if stride > 1 and not (isinstance(side, int) and side >= stride):
            return no(
                f"{epilogue} with sides {sides}, strides={strides}: fused for sides that are"
                " known and no shorter than the stride"
            )
    if epilogue in MASKS and max(strides) > 1:
        # Slower than the two of them apart: 198 us for 128 channels at 56x56, batch 128, where 84
        # and some 70 were enough.
        return no(f"{epilogue} with strides={strides}: faster apart")
    if epilogue in MASKS and problem.data_dtype not in HALVES:
        return no(f"{epilogue} with {problem.data_dtype}: cuDNN fuses it for half precision")
    return YES


def _layouts(problem: ConvProblem) -> Decision:
    return one_of_layouts(problem, LAYOUTS if problem.rank == 2 else VOLUME_LAYOUTS, "cuDNN has")


def _dtypes(problem: ConvProblem) -> Decision:
    first, second, result = (problem.dtype(role) for role in problem.roles)
    for dtype in (first, second, result):
        if dtype not in DTYPES:
            return no(f"dtype {dtype}: cuDNN's are {', '.join(DTYPES)}")
    # There are engines with half operands and a float32 result, for some channel counts only; their
    # weight gradients took up to 24 times as long (H200, cuDNN 9.19: 64 channels, 56x56).
    if not first == second == result:
        return no(f"dtypes {first} and {second} to {result}: all must be one dtype")
    return YES


def _padding(problem: ConvProblem) -> Decision:
    if problem.padding[: problem.rank] != problem.padding[problem.rank :]:
        names = "top, left, bottom, right" if problem.rank == 2 else "before, then after each axis"
        return no(f"asymmetric padding ({names}) = {problem.padding}")
    return YES


def _elements(problem: ConvProblem) -> Decision:
    for role in ("data", "weight", "grad"):
        count = 1
        for size in problem.canonical_shape(role):
            if not isinstance(size, int):
                continue  # at least 1; known when the call is made
            if size < 1:
                return no(f"{role} is empty: {list(problem.shape(role))}")
            count *= size
        if count >= MAX_ELEMENTS:
            return no(f"{role} has {count} elements; cuDNN takes fewer than 2**31")
    return YES
