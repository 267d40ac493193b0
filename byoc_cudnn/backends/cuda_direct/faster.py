"""Which convolutions go to our own kernels only because they are faster than cuDNN's.

By an H200's times, PyTorch's with `cudnn.benchmark` beside them in the same run (`gpu_*_h200.json`
of the benchmarks' results for depthwise, grouped, narrow and first layers): what was not
measured there, in kind, shape or dtype, is not known to be faster.  A trainer on sm_90 (its
`Options.helpers`) and `cuda_direct={"faster": True}` take what this says and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from relay_wgrad.problem import ConvKind, ConvProblem

from ...decision import YES, Decision, no
from ..assumed_sizes import sized
from . import check
from .check import Options
from .family import ceil_div, of_planes
from .first_layer import MOST_CHANNELS
from .model import ranked

_FPROP, _DGRAD, _WGRAD = ConvKind.FPROP, ConvKind.DGRAD, ConvKind.WGRAD
COPY = 4.26e6  # bytes per microsecond
BEGIN = {_FPROP: 4.0, _DGRAD: 4.0, _WGRAD: 12.0}  # microseconds that cuDNN's take beside moving
_ARCH = 90
MARGIN = 0.97  # of cuDNN's time: what takes more is not known to be faster

Shape = tuple[ConvKind, int, int, int, int]
Times = tuple[float, float, int]

CUDNN: dict[Shape, Times] = {
    (_FPROP, 1, 1, 3, 1): (1.52, 0.82, 0), (_DGRAD, 1, 1, 3, 1): (2.0, 0.58, 0),
    (_WGRAD, 1, 1, 3, 1): (1.38, 0.85, 0),
    (_FPROP, 1, 1, 3, 2): (1.18, 0.88, 0), (_DGRAD, 1, 1, 3, 2): (5.25, 0.25, 0),
    (_WGRAD, 1, 1, 3, 2): (1.32, 0.82, 0),
    (_FPROP, 1, 1, 5, 1): (3.44, 0.56, 0), (_DGRAD, 1, 1, 5, 1): (3.16, 0.54, 0),
    (_WGRAD, 1, 1, 5, 1): (2.88, 0.78, 0),
    (_FPROP, 1, 1, 5, 2): (2.42, 0.78, 0), (_DGRAD, 1, 1, 5, 2): (11.96, 0.15, 0),
    (_WGRAD, 1, 1, 5, 2): (2.75, 0.62, 0),
    (_FPROP, 1, 1, 7, 1): (7.42, 0.35, 0), (_DGRAD, 1, 1, 7, 1): (18.42, 0.17, 0),
    (_WGRAD, 1, 1, 7, 1): (4.76, 0.58, 0),
    (_FPROP, 4, 4, 3, 1): (3.29, 0.77, 0), (_DGRAD, 4, 4, 3, 1): (3.58, 0.70, 0),
    (_WGRAD, 4, 4, 3, 1): (5.11, 0.65, 0),
    (_FPROP, 8, 8, 3, 1): (4.07, 0.59, 0), (_DGRAD, 8, 8, 3, 1): (4.21, 0.66, 0),
    (_WGRAD, 8, 8, 3, 1): (2.58, 1.16, 0),
    (_FPROP, 8, 8, 3, 2): (1.8, 1.13, 0), (_DGRAD, 8, 8, 3, 2): (4.44, 0.38, 0),
    (_WGRAD, 8, 8, 3, 2): (1.14, 1.50, 0),
    (_FPROP, 16, 16, 3, 1): (3.12, 0.80, 0), (_DGRAD, 16, 16, 3, 1): (3.25, 1.04, 0),
    (_WGRAD, 16, 16, 3, 1): (2.57, 1.00, 0),
    (_FPROP, 16, 16, 3, 2): (1.33, 1.31, 0), (_DGRAD, 16, 16, 3, 2): (4.81, 0.49, 0),
    (_WGRAD, 16, 16, 3, 2): (1.09, 1.43, 0),
    (_FPROP, 24, 24, 3, 1): (15.87, 0.26, 0), (_DGRAD, 24, 24, 3, 1): (31.22, 0.17, 0),
    (_WGRAD, 24, 24, 3, 1): (19.96, 0.34, 0),
    (_FPROP, 32, 32, 3, 1): (4.34, 0.77, 0), (_DGRAD, 32, 32, 3, 1): (4.52, 1.60, 0),
    (_WGRAD, 32, 32, 3, 1): (2.06, 2.10, 0),
    (_FPROP, 32, 32, 3, 2): (1.7, 1.14, 0), (_DGRAD, 32, 32, 3, 2): (5.7, 0.58, 0),
    (_WGRAD, 32, 32, 3, 2): (1.29, 1.81, 0),
    (_FPROP, 48, 48, 3, 1): (11.03, 0.37, 0), (_DGRAD, 48, 48, 3, 1): (10.91, 0.53, 0),
    (_WGRAD, 48, 48, 3, 1): (16.22, 0.41, 0),
    (_FPROP, 56, 56, 3, 1): (12.61, 0.39, 0), (_DGRAD, 56, 56, 3, 1): (12.27, 0.48, 0),
    (_WGRAD, 56, 56, 3, 1): (13.33, 0.48, 0),
    (_FPROP, 56, 56, 3, 2): (10.72, 0.26, 0), (_DGRAD, 56, 56, 3, 2): (13.88, 0.28, 0),
    (_WGRAD, 56, 56, 3, 2): (10.52, 0.43, 0),
    (_FPROP, 0, 1, 4, 1): (10.52, 0.22, 0), (_DGRAD, 0, 1, 4, 1): (5.73, 0.34, 0),
    (_WGRAD, 0, 1, 4, 1): (9.67, 0.19, 0),
    (_FPROP, 0, 3, 7, 1): (26.01, 1.28, 0), (_DGRAD, 0, 3, 7, 1): (15.8, 0.67, 0),
    (_WGRAD, 0, 3, 7, 1): (36.7, 0.23, 0),
    (_FPROP, 0, 4, 3, 1): (5.03, 0.57, 0), (_DGRAD, 0, 4, 3, 1): (4.05, 0.43, 0),
    (_WGRAD, 0, 4, 3, 1): (3.81, 0.48, 0),
    (_FPROP, -3, 16, 3, 2): (3.56, 0.67, 0), (_WGRAD, -3, 16, 3, 2): (11.65, 0.18, 0),
    (_FPROP, -3, 24, 3, 2): (3.96, 0.50, 0), (_WGRAD, -3, 24, 3, 2): (10.31, 0.17, 0),
    (_FPROP, -3, 32, 3, 2): (3.22, 0.48, 0), (_WGRAD, -3, 32, 3, 2): (8.12, 0.21, 0),
    (_FPROP, -3, 40, 3, 2): (5.35, 0.35, 0), (_WGRAD, -3, 40, 3, 2): (6.89, 0.21, 0),
    (_FPROP, -3, 48, 3, 2): (4.59, 0.33, 0), (_WGRAD, -3, 48, 3, 2): (6.06, 0.28, 0),
    (_FPROP, -3, 64, 3, 1): (3.89, 0.33, 0), (_WGRAD, -3, 64, 3, 1): (3.0, 0.48, 0),
    (_FPROP, -3, 96, 4, 4): (4.78, 0.29, 0), (_WGRAD, -3, 96, 4, 4): (7.6, 0.22, 0),
    (_FPROP, -3, 64, 7, 2): (5.44, 0.43, 0), (_WGRAD, -3, 64, 7, 2): (5.61, 0.54, 0),
    (_DGRAD, 0, 2, 1, 1): (3.82, 0.39, 0), (_DGRAD, 0, 4, 1, 1): (2.76, 0.56, 0),
    (_FPROP, 0, 2, 1, 1): (1.73, 1.15, 0), (_FPROP, 0, 4, 1, 1): (1.66, 1.56, 0),
    (_WGRAD, 0, 2, 1, 1): (2.34, 0.51, 0), (_WGRAD, 0, 4, 1, 1): (2.57, 0.77, 0),
}  # fmt: skip
"""In float16: (kind, channels a group, filters a group, taps along an axis, stride) -> how
often cuDNN could have moved all tensors in its time, the least of the sizes measured; our time as a
share of its, the largest; and where smaller sizes were not faster, the megabytes from which on.
Channels of one group are 0, and of first layers theirs below 0."""

BFLOAT16: dict[Shape, Times] = {
    (_FPROP, 1, 1, 3, 1): (1.86, 0.68, 102), (_DGRAD, 1, 1, 3, 1): (3.3, 0.39, 102),
    (_WGRAD, 1, 1, 3, 1): (2.23, 0.61, 102), (_FPROP, 1, 1, 3, 2): (1.52, 0.70, 192),
    (_DGRAD, 1, 1, 3, 2): (5.25, 0.24, 192), (_WGRAD, 1, 1, 3, 2): (2.08, 0.57, 192),
    (_FPROP, 1, 1, 5, 1): (4.44, 0.37, 48), (_DGRAD, 1, 1, 5, 1): (7.19, 0.23, 48),
    (_WGRAD, 1, 1, 5, 1): (3.45, 0.48, 48), (_FPROP, 1, 1, 5, 2): (3.25, 0.61, 72),
    (_DGRAD, 1, 1, 5, 2): (11.98, 0.14, 72), (_WGRAD, 1, 1, 5, 2): (2.75, 0.61, 72),
    (_FPROP, 1, 1, 7, 1): (7.59, 0.26, 38), (_DGRAD, 1, 1, 7, 1): (18.14, 0.13, 38),
    (_WGRAD, 1, 1, 7, 1): (6.31, 0.29, 77),
    (_FPROP, -3, 16, 3, 2): (10.99, 0.20, 0), (_WGRAD, -3, 16, 3, 2): (12.84, 0.16, 0),
    (_FPROP, -3, 24, 3, 2): (9.39, 0.18, 0), (_WGRAD, -3, 24, 3, 2): (10.19, 0.18, 0),
    (_FPROP, -3, 32, 3, 2): (7.33, 0.19, 0), (_WGRAD, -3, 32, 3, 2): (8.02, 0.20, 0),
    (_FPROP, -3, 40, 3, 2): (8.85, 0.18, 0), (_WGRAD, -3, 40, 3, 2): (6.8, 0.22, 0),
    (_FPROP, -3, 48, 3, 2): (7.74, 0.17, 0), (_WGRAD, -3, 48, 3, 2): (5.94, 0.28, 0),
    (_FPROP, -3, 64, 3, 1): (5.12, 0.25, 0), (_WGRAD, -3, 64, 3, 1): (2.99, 0.52, 0),
    (_FPROP, -3, 96, 4, 4): (9.21, 0.16, 0), (_WGRAD, -3, 96, 4, 4): (7.46, 0.22, 0),
    (_FPROP, -3, 64, 7, 2): (15.62, 0.14, 0), (_WGRAD, -3, 64, 7, 2): (10.12, 0.31, 0),
    (_FPROP, 4, 4, 3, 1): (3.68, 0.69, 0), (_DGRAD, 4, 4, 3, 1): (4.21, 0.60, 0),
    (_WGRAD, 4, 4, 3, 1): (5.13, 0.65, 0), (_FPROP, 8, 8, 3, 2): (1.74, 1.36, 0),
    (_DGRAD, 8, 8, 3, 2): (5.52, 0.30, 0), (_WGRAD, 8, 8, 3, 2): (1.19, 1.45, 0),
    (_FPROP, 8, 8, 3, 1): (4.22, 0.56, 0), (_DGRAD, 8, 8, 3, 1): (4.96, 0.56, 0),
    (_WGRAD, 8, 8, 3, 1): (2.57, 1.14, 0), (_FPROP, 16, 16, 3, 2): (1.33, 1.37, 0),
    (_DGRAD, 16, 16, 3, 2): (5.85, 0.41, 0), (_WGRAD, 16, 16, 3, 2): (1.06, 1.67, 0),
    (_FPROP, 16, 16, 3, 1): (3.1, 0.79, 0), (_DGRAD, 16, 16, 3, 1): (3.23, 1.03, 0),
    (_WGRAD, 16, 16, 3, 1): (2.5, 1.01, 0), (_FPROP, 32, 32, 3, 2): (1.9, 1.04, 0),
    (_DGRAD, 32, 32, 3, 2): (5.93, 0.55, 0), (_WGRAD, 32, 32, 3, 2): (1.04, 2.11, 0),
    (_FPROP, 32, 32, 3, 1): (4.25, 0.79, 0), (_DGRAD, 32, 32, 3, 1): (3.63, 1.88, 0),
    (_WGRAD, 32, 32, 3, 1): (1.58, 2.10, 0), (_FPROP, 24, 24, 3, 1): (15.75, 0.26, 0),
    (_DGRAD, 24, 24, 3, 1): (31.2, 0.17, 0), (_WGRAD, 24, 24, 3, 1): (19.48, 0.38, 0),
    (_FPROP, 48, 48, 3, 1): (11.01, 0.37, 0), (_DGRAD, 48, 48, 3, 1): (10.93, 0.52, 0),
    (_WGRAD, 48, 48, 3, 1): (16.08, 0.45, 0), (_FPROP, 56, 56, 3, 1): (12.46, 0.40, 0),
    (_DGRAD, 56, 56, 3, 1): (12.29, 0.47, 0), (_WGRAD, 56, 56, 3, 1): (13.24, 0.53, 0),
    (_FPROP, 56, 56, 3, 2): (9.87, 0.28, 0), (_DGRAD, 56, 56, 3, 2): (13.89, 0.28, 0),
    (_DGRAD, 0, 2, 1, 1): (3.86, 0.38, 0), (_DGRAD, 0, 4, 1, 1): (2.83, 0.55, 0),
    (_FPROP, 0, 2, 1, 1): (4.30, 0.47, 0), (_FPROP, 0, 4, 1, 1): (2.96, 0.67, 0),
    (_WGRAD, 0, 2, 1, 1): (2.95, 0.40, 0), (_WGRAD, 0, 4, 1, 1): (2.87, 0.72, 0),
    (_WGRAD, 56, 56, 3, 2): (9.92, 0.51, 0), (_FPROP, 0, 4, 3, 1): (4.84, 0.60, 0),
    (_DGRAD, 0, 4, 3, 1): (4.06, 0.40, 0), (_WGRAD, 0, 4, 3, 1): (3.8, 0.49, 0),
    (_FPROP, 0, 3, 7, 1): (26.06, 1.28, 0), (_DGRAD, 0, 3, 7, 1): (16.04, 0.66, 0),
    (_WGRAD, 0, 3, 7, 1): (36.63, 0.23, 0), (_FPROP, 0, 1, 4, 1): (10.51, 0.24, 0),
    (_DGRAD, 0, 1, 4, 1): (5.73, 0.34, 0), (_WGRAD, 0, 1, 4, 1): (9.71, 0.19, 0),
}  # fmt: skip
"""The same of what was measured in bfloat16."""

NARROW: dict[tuple[ConvKind, int, int, int], dict[int, tuple[int, int]]] = {
    (_FPROP, 3, 3, 1): {8: (0, 64), 16: (0, 48), 24: (0, 64), 32: (32, 32), 40: (40, 40),
                        48: (32, 32), 64: (32, 32)},
    (_DGRAD, 3, 3, 1): {8: (64, 64), 16: (64, 64), 24: (48, 64), 32: (64, 64), 40: (24, 24),
                        48: (8, 16)},
    (_WGRAD, 3, 3, 1): {8: (64, 64), 16: (64, 64), 24: (64, 64), 32: (48, 64), 40: (40, 40),
                        48: (32, 32), 64: (16, 24)},
    (_DGRAD, 3, 3, 2): {16: (0, 32), 24: (48, 48)}, (_WGRAD, 3, 3, 2): {24: (48, 0)},
    (_FPROP, 5, 5, 1): {8: (16, 16), 16: (48, 48), 24: (24, 32), 32: (32, 32)},
    (_DGRAD, 5, 5, 1): {8: (16, 16), 16: (48, 48), 24: (0, 32), 32: (32, 32)},
    (_WGRAD, 5, 5, 1): {8: (16, 16), 16: (48, 48), 24: (32, 64), 32: (32, 32)},
    (_FPROP, 1, 1, 1): {8: (0, 16), 24: (0, 40), 40: (0, 24), 72: (0, 24)},
    (_DGRAD, 1, 1, 1): {8: (0, 48), 16: (0, 32), 24: (0, 40)},
    (_WGRAD, 1, 1, 1): {8: (0, 48), 24: (0, 72), 40: (0, 40), 72: (0, 24)},
    (_FPROP, 4, 1, 1): {48: (0, 64)}, (_WGRAD, 4, 1, 1): {48: (0, 48)},
    (_FPROP, 7, 1, 1): {24: (0, 64)}, (_WGRAD, 7, 1, 1): {24: (0, 64)},
}  # fmt: skip
"""Of one group, in float16 and bfloat16: (kind, taps down, taps across, stride) -> channels -> the
most filters with which no size that was measured took more than 0.93 of cuDNN's time: results of
50,000 pixels or more, and of 200,000 or more (the lab notebook; `gpu_narrow_h200.json`)."""
SMALL, LARGE = 50_000, 200_000
FULL = 0.8  # of columns taken by sixteen, at least: 14 of 16 were measured

SLOWER: dict[Shape, tuple[int, int, float]] = {
    (_WGRAD, 336, 48, 3, 2): (256, 256, 1.00),
    (_WGRAD, 2688, 12, 3, 1): (256, 256, 0.98),
    (_WGRAD, 144, 56, 3, 2): (256, 256, 0.98),
}
"""Depthwise layers in float16 that were not faster, though others of their shape are: (kind,
channels, side of the image, taps, stride) -> the batches from and to, our share of cuDNN's time."""

VOLUMES: dict[str, dict[Shape, Times]] = {
    "float16": {
        (_DGRAD, 32, 32, 3, 1): (7.01, 0.58, 0), (_DGRAD, 64, 32, 3, 1): (5.25, 1.12, 0),
        (_DGRAD, 64, 64, 3, 1): (7.80, 1.17, 0), (_FPROP, -1, 32, 3, 1): (3.91, 0.43, 0),
        (_FPROP, -1, 64, 3, 2): (4.02, 0.39, 0), (_FPROP, -4, 32, 3, 1): (4.65, 0.43, 0),
        (_FPROP, 32, 32, 3, 1): (7.07, 0.59, 0), (_FPROP, 64, 32, 3, 1): (8.77, 0.68, 0),
        (_FPROP, 64, 64, 3, 1): (7.76, 1.16, 0), (_WGRAD, -1, 32, 3, 1): (5.90, 0.30, 0),
        (_WGRAD, -1, 64, 3, 2): (7.47, 0.24, 0), (_WGRAD, -4, 32, 3, 1): (11.21, 0.23, 0),
        (_WGRAD, 32, 32, 3, 1): (11.38, 0.39, 0), (_WGRAD, 64, 32, 3, 1): (11.11, 0.54, 0),
        (_WGRAD, 64, 64, 3, 1): (7.76, 1.13, 0),
    },
    "bfloat16": {
        (_DGRAD, 32, 32, 3, 1): (7.57, 0.55, 0), (_DGRAD, 64, 32, 3, 1): (5.22, 1.13, 0),
        (_DGRAD, 64, 64, 3, 1): (7.84, 1.17, 0), (_FPROP, -1, 32, 3, 1): (12.14, 0.14, 0),
        (_FPROP, -1, 64, 3, 2): (11.44, 0.14, 0), (_FPROP, -4, 32, 3, 1): (15.86, 0.13, 0),
        (_FPROP, 32, 32, 3, 1): (7.48, 0.55, 0), (_FPROP, 64, 32, 3, 1): (9.28, 0.65, 0),
        (_FPROP, 64, 64, 3, 1): (7.76, 1.17, 0), (_WGRAD, -1, 32, 3, 1): (13.68, 0.13, 0),
        (_WGRAD, -1, 64, 3, 2): (17.27, 0.11, 0), (_WGRAD, -4, 32, 3, 1): (11.26, 0.23, 0),
        (_WGRAD, 32, 32, 3, 1): (11.33, 0.39, 0), (_WGRAD, 64, 32, 3, 1): (10.48, 0.55, 0),
        (_WGRAD, 64, 64, 3, 1): (7.72, 1.13, 0),
    },
}  # fmt: skip
"""The same of volumes, whose taps and strides are the same along all axes; smaller ones were not
measured.  Channels of one group are told."""

TIMES: dict[int, Mapping[str, Mapping[Shape, Times]]] = {
    2: {"float16": CUDNN, "bfloat16": BFLOAT16}, 3: VOLUMES,
}  # fmt: skip
"""By rank and dtype."""


def bound(options: Options) -> Callable[[ConvProblem, str], Decision]:
    """What is taken under options: with `faster` only what is known to be that."""
    return partial(faster, oldest=options.archs[0]) if options.faster else check.bound(options)


def shape_of(problem: ConvProblem) -> Shape:
    """A row of `TIMES`, of a problem whose taps and strides are the same down and across."""
    p = problem
    channels = p.c // p.groups
    if p.groups == 1 and p.c <= MOST_CHANNELS:
        channels = -p.c
    elif p.groups == 1 and p.rank == 2:
        channels = 0
    return (p.kind, channels, p.k // p.groups, p.r, p.strides[0])


def slower(problem: ConvProblem) -> float | None:
    """Our share of cuDNN's time, if a depthwise layer is one that was measured as not faster."""
    p = problem
    row = SLOWER.get((p.kind, p.c, p.h, p.r, p.strides[0])) if p.groups == p.c == p.k else None
    if row is None or p.h != p.w or p.data_dtype != "float16":
        return None
    return row[2] if isinstance(p.n, int) and row[0] <= p.n <= row[1] else None


def narrow(problem: ConvProblem) -> Decision:
    """Whether a dense convolution of few channels is known to be faster."""
    p, known = problem, sized(problem)
    most = NARROW.get((p.kind, p.r, p.s, p.strides[0]), {}).get(p.c, (0, 0))
    columns = known.w if p.kind is _DGRAD else known.q
    pixels = known.n * known.p * known.q
    what = (
        f"{p.kind.value} of {p.r}x{p.s}, strides {p.strides}, dilation {p.dilation}, C={p.c} and"
        f" K={p.k} of one group"
    )
    if p.k > max(most) or set(p.dilation) != {1}:
        return no(f"not known to be faster than cuDNN's: {what} was not measured, or not faster")
    if pixels < SMALL or p.k > most[pixels >= LARGE]:
        return no(f"not known to be faster than cuDNN's: {what}, of {pixels} pixels")
    if columns < FULL * 16 * ceil_div(columns, 16):
        return no(f"not known to be faster than cuDNN's: rows of {columns} were not measured")
    return YES


def faster(problem: ConvProblem, epilogue: str, oldest: int = 80) -> Decision:
    """Whether a problem that `check` takes is also known to be faster than by cuDNN."""
    if not (decision := check.check(problem, epilogue, oldest)):
        return decision
    p = of_planes(problem)
    known, shared = shape_of(p), TIMES[p.rank]
    dtypes = {p.dtype(role) for role in p.roles}
    times = shared.get(p.data_dtype, {}) if len(dtypes) == 1 else {}
    if not times:
        of = " and ".join(dtype for dtype, some in shared.items() if some)
        return no(f"not known to be faster than cuDNN's: measured is {of}")
    if known not in times and p.rank == 2 and p.groups == 1 and p.c > MOST_CHANNELS:
        return narrow(p)
    taps = "x".join(map(str, p.taps))
    if known not in times or set(p.taps) != {known[3]} or set(p.strides) != {known[4]}:
        return no(
            f"not known to be faster than cuDNN's: {p.kind.value} of {taps}, strides"
            f" {p.strides}, C={p.c} and K={p.k} of {p.groups} groups was not measured in"
            f" {p.data_dtype}"
        )
    if known[1] < 0 and (not isinstance(p.w, int) or p.w * p.c % 8):
        return no(f"not known to be faster than cuDNN's: rows of {p.w}x{p.c} were not measured")
    moved, share, least = times[known]
    if share > MARGIN:
        return no(f"{share:.2f} of cuDNN's time at one of the sizes measured")
    if (ratio := slower(p)) is not None:
        return no(f"{ratio:.2f} of cuDNN's time, measured")
    size = sized(p).bytes
    if size < least * 1e6:
        return no(f"{size / 1e6:.0f} MB are moved: known to be faster from {least} MB on")
    theirs = BEGIN[p.kind] + moved * size / COPY
    ours = ranked(p, tuple(word for word in epilogue.split("_") if word), _ARCH)[0].us
    if ours > theirs:
        return no(f"{ours:.0f} µs are expected, and {theirs:.0f} of cuDNN")
    return YES


def microseconds(problem: ConvProblem) -> float | None:
    """Expected of a problem's fprop and wgrad together, if both are known to be faster."""
    both = [problem.with_kind(kind) for kind in (_FPROP, _WGRAD)]
    if not all(faster(p, "") for p in both):
        return None
    return sum(ranked(p, (), _ARCH)[0].us for p in both)
