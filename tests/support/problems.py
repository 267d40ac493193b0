"""Random convolution problems, their operands, and a float64 reference: shared by all tests.

Everything is drawn from the `numpy.random.Generator` that is passed in, so one seed names one
test case; a failing case is reported by `problem.repro()`, which `ConvProblem.parse` reads back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from relay_wgrad.dtypes import FLOATS
from relay_wgrad.layouts import ACTIVATIONS, KERNELS, permutation, with_rank
from relay_wgrad.operands import poisoned as poisoned
from relay_wgrad.operands import random_operands as random_operands
from relay_wgrad.problem import ConvKind, ConvProblem

# The layouts that people use; `layouts=None` draws them half of the time, else any permutation.
USUAL_LAYOUTS = (
    ("NCHW", "OIHW", "NCHW"),
    ("NHWC", "OHWI", "NHWC"),
    ("NHWC", "HWIO", "NHWC"),
)
# Unit roundoff: half the distance from 1 to the next number.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}

_THEMES = (
    "plain",
    "pointwise",
    "stem",
    "grouped",
    "depthwise",
    "multiplier",
    "prime",
    "sparse",  # stride larger than the kernel: some of the data is never read
    "dilated",
    "lopsided",
)

# For `ConvProblem.parse` after `.format(kind)`.  What chance may leave out: common factors of
# stride and dilation, strides beyond the kernel, the batch innermost.
CORNERS = (
    "{} n=1 c=1 h=1 w=1 k=1 r=1 s=1",
    "{} n=5 c=33 h=9 w=11 k=131 r=3 s=3 stride=2,2 pad=1,1,1,1 layout=NHWC/OHWI/NHWC",
    "{} n=2 c=6 h=13 w=17 k=9 r=3 s=3 stride=4,6 pad=3,2,1,5 dil=2,4 groups=3",
    "{} n=2 c=40 h=13 w=17 k=9 r=3 s=2 stride=4,6 pad=3,2,1,5 dil=6,9",
    "{} n=1 c=9 h=14 w=10 k=8 r=1 s=1 stride=2,3 pad=1,1,0,2 layout=NHWC/HWIO/NHWC",
    "{} n=3 c=96 h=14 w=14 k=96 r=3 s=3 groups=96 layout=NHWC/HWIO/NHWC dtype=f16/f16/f16",
    "{} n=3 c=32 h=7 w=7 k=64 r=3 s=3 pad=1,1,1,1 groups=8 dtype=bf16/bf16/f32",
    "{} n=4 c=17 h=12 w=12 k=19 r=5 s=5 pad=2,2,2,2 layout=CHWN/IHWO/CHWN",
    "{} n=4 c=260 h=6 w=6 k=9 r=1 s=1 layout=HWNC/IOHW/HWCN",
)


def _pick(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def _sizes(rng: np.random.Generator, theme: str) -> tuple[int, int, int, int]:
    """(n, c, k, groups)"""
    n = _pick(rng, (1, 1, 2, 3, 5, 8))
    if theme in ("depthwise", "multiplier"):
        c = int(rng.integers(2, 34))
        return n, c, c * (int(rng.integers(2, 4)) if theme == "multiplier" else 1), c
    if theme == "grouped":
        groups = int(rng.integers(2, 6))
        return n, groups * int(rng.integers(1, 9)), groups * int(rng.integers(1, 9)), groups
    if theme == "stem":
        return n, _pick(rng, (1, 3)), int(rng.integers(1, 65)), 1
    if theme == "prime":
        primes = (2, 3, 5, 7, 11, 13, 17, 31, 37, 67)
        return _pick(rng, (1, 2, 3, 5)), _pick(rng, primes), _pick(rng, primes), 1
    return n, int(rng.integers(1, 72)), int(rng.integers(1, 72)), 1


def _axis(rng: np.random.Generator, theme: str) -> tuple[int, int, int, int, int, int]:
    """(size, kernel, stride, dilation, pad before, pad after) of one spatial axis"""
    kernel = 1 if theme == "pointwise" else _pick(rng, (1, 2, 3, 3, 3, 4, 5, 7))
    stride = _pick(rng, (1, 1, 2, 2, 3))
    dilation = _pick(rng, (1, 1, 1, 2))
    if theme == "sparse":
        kernel, dilation = _pick(rng, (1, 2)), 1
        stride = kernel + int(rng.integers(1, 3))
    if theme == "dilated":
        kernel, dilation = _pick(rng, (2, 3, 5)), _pick(rng, (2, 3, 4))
    reach = dilation * (kernel - 1)
    before = int(rng.integers(0, reach // 2 + 2))
    after = before
    if theme == "lopsided" or rng.random() < 0.3:
        before, after = (int(x) for x in rng.integers(0, reach + 2, size=2))
    smallest = max(1, reach + 1 - before - after)  # makes one output pixel
    size = smallest + int(rng.integers(0, 20))
    if theme == "prime":
        size = next(x for x in (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31) if x >= smallest)
    return size, kernel, stride, dilation, before, after


def _shuffled(rng: np.random.Generator, letters: str) -> str:
    return "".join(rng.permutation(list(letters)))


def random_problem(
    rng: np.random.Generator,
    kind: ConvKind,
    *,
    dtypes: Sequence[str] = FLOATS,
    max_flop: float = 2e7,
    layouts: Sequence[tuple[str, str, str]] | None = None,
    mixed: bool = True,
    rank: int = 2,
) -> ConvProblem:
    """One problem of `rank` dimensions with P, Q >= 1.

    It may have groups, depthwise groups with or without a channel multiplier, dilation, strides
    (also beyond the kernel), asymmetric padding, 1x1 kernels, one channel, one image, and sizes
    that nothing divides.  `layouts` restricts the (data, kernel, grad) layouts; by default every
    permutation occurs.  `mixed=False` gives all three tensors one dtype.
    """
    while True:
        theme = _pick(rng, _THEMES)
        n, c, k, groups = _sizes(rng, theme)
        axes = [_axis(rng, theme) for _ in range(rank)]
        size, taps, strides, dilation, before, after = zip(*axes, strict=True)
        if layouts is not None:
            layout = _pick(rng, layouts)
        elif rng.random() < 0.5:
            layout = [with_rank(x, rank) for x in _pick(rng, USUAL_LAYOUTS)]
        else:
            letters = (ACTIVATIONS[rank], KERNELS[rank], ACTIVATIONS[rank])
            layout = [_shuffled(rng, x) for x in letters]
        dtype = [_pick(rng, dtypes)] * 3
        if mixed and rng.random() < 0.25:
            dtype = [_pick(rng, dtypes) for _ in range(3)]
        problem = ConvProblem.from_shapes(
            kind,
            (n, c, *size),
            (k, c // groups, *taps),
            strides=strides,
            padding=(*before, *after),
            dilation=dilation,
            groups=groups,
            data_layout=layout[0],
            kernel_layout=layout[1],
            grad_layout=layout[2],
            data_dtype=dtype[0],
            weight_dtype=dtype[1],
            grad_dtype=dtype[2],
        )
        if problem.flop <= max_flop and min(problem.pixels) >= 1:
            return problem


def canonical(problem: ConvProblem, role: str, value: np.ndarray[Any, Any]) -> torch.Tensor:
    """In float64, its axes in the canonical order."""
    axes = permutation(problem.layout(role), problem.canonical(role))
    return torch.from_numpy(np.ascontiguousarray(value.astype(np.float64).transpose(axes)))


def torch_reference(
    problem: ConvProblem, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """PyTorch's answer in float64, in the result's layout.

    Asymmetric padding is an explicit pad of the data, and for dgrad a crop of the result.
    """
    first, second, result = problem.roles
    tensors = {first: canonical(problem, first, a), second: canonical(problem, second, b)}
    rank = problem.rank
    before, after = problem.padding[:rank], problem.padding[rank:]
    ends = list(zip(before, after, strict=True))
    n, c, *sizes = problem.canonical_shape("data")
    if "data" in tensors:
        flat = [width for pair in reversed(ends) for width in pair]  # the last axis first
        tensors["data"] = torch.nn.functional.pad(tensors["data"], flat)
    if problem.kind is ConvKind.FPROP:
        conv = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}[rank]
        out = conv(
            tensors["data"],
            tensors["weight"],
            stride=problem.strides,
            dilation=problem.dilation,
            groups=problem.groups,
        )
    else:
        dgrad = problem.kind is ConvKind.DGRAD
        # The operand that is differentiated by is only looked at for its shape.
        absent = torch.empty(1, dtype=torch.float64)
        shape = (n, c, *(size + sum(pads) for size, pads in zip(sizes, ends, strict=True)))
        data = absent.expand(shape) if dgrad else tensors["data"]
        weight = tensors["weight"] if dgrad else absent.expand(problem.canonical_shape("weight"))
        out = torch.ops.aten.convolution_backward(
            tensors["grad"],
            data,
            weight,
            None,
            list(problem.strides),
            [0] * rank,
            list(problem.dilation),
            False,
            [0] * rank,
            problem.groups,
            [dgrad, not dgrad, False],
        )[0 if dgrad else 1]
        if dgrad:
            kept = [slice(first, first + size) for first, size in zip(before, sizes, strict=True)]
            out = out[(slice(None), slice(None), *kept)]
    axes = permutation(problem.canonical(result), problem.layout(result))
    return np.ascontiguousarray(out.numpy().transpose(axes))


def tolerance(problem: ConvProblem) -> float:
    """Largest relative error in norm that rounding explains; see `relative_error`.

    The operands are exact, so two roundings are left.  The result's own is at most one unit of its
    dtype per element.  A sum of L terms with random signs, added in any order, errs by about
    sqrt(L) units of the accumulator's dtype relative to its own typical size; 8 more units cover
    short sums.  Both are doubled.  A wrong index gives an error near 1, hundreds of times more.
    """
    unit = UNIT[problem.dtype(problem.roles[2])]
    length = float(problem.gemm[2])
    return 2 * unit + 2 * (8 + math.sqrt(length)) * UNIT[problem.accum_dtype]


def relative_error(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> float:
    """Norm of the difference over the norm of `want`; infinite if shapes differ or for any NaN."""
    if got.shape != want.shape:
        return math.inf
    difference = np.linalg.norm((got.astype(np.float64) - want).ravel())
    if not np.isfinite(difference):
        return math.inf
    # All-zero results are legitimate: a 1x1 dgrad whose stride skips every pixel that is kept.
    norm = np.linalg.norm(want.ravel())
    return float(difference / norm) if norm > 0 else (0.0 if difference == 0 else math.inf)


def relative_error_of_all(
    got: Sequence[np.ndarray[Any, Any]], want: Sequence[np.ndarray[Any, Any]]
) -> float:
    """`relative_error` of many tensors as one."""
    return relative_error(*(np.concatenate([x.ravel() for x in some]) for some in (got, want)))
