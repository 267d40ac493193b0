"""What infinities, NaN and the largest numbers in one place of an operand may do to a result.

The reference is a sum over taps, one at a time, in float64.  `padded`: the operand that the window
slides over is continued by zeros, which are multiplied as well; else only taps on it count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.layouts import ACTIVATION, KERNEL, permutation
from relay_wgrad.problem import ConvKind, ConvProblem

Array = np.ndarray[Any, Any]
SLIDING = {ConvKind.FPROP: "data", ConvKind.DGRAD: "grad", ConvKind.WGRAD: "data"}
"""The operand whose every value meets only the taps that read it; the other meets padding too."""

SPECIAL = ("inf", "-inf", "nan", "max")
_SUM = {
    ConvKind.FPROP: "nchw,kc->nkhw",
    ConvKind.DGRAD: "nkhw,kc->nchw",
    ConvKind.WGRAD: "nkhw,nchw->kc",
}  # fmt: skip


def by_taps(problem: ConvProblem, a: Array, b: Array, padded: bool) -> Array:
    """The result of canonical operands, canonical too."""
    p, size, outs = problem, [problem.h, problem.w], [problem.p, problem.q]
    before = list(p.padding[:2])
    if padded and p.kind is ConvKind.DGRAD:
        # Rows and columns of zeros around the gradient, as far as a tap can reach.
        more = [
            (taps * d + x) // s + 2
            for taps, d, x, s in zip((p.r, p.s), p.dilation, size, p.strides, strict=True)
        ]
        a = np.pad(a, ((0, 0), (0, 0), (more[0],) * 2, (more[1],) * 2))
        outs = [x + 2 * m for x, m in zip(outs, more, strict=True)]
        before = [x + m * s for x, m, s in zip(before, more, p.strides, strict=True)]
    elif padded:
        around = ((0, 0), (0, 0), (p.padding[0], p.padding[2]), (p.padding[1], p.padding[3]))
        a, b = (np.pad(a, around), b) if p.kind is ConvKind.FPROP else (a, np.pad(b, around))
        size = [x + around[2 + i][0] + around[2 + i][1] for i, x in enumerate(size)]
        before = [0, 0]
    shapes = {
        ConvKind.FPROP: (p.n, p.k, *outs),
        ConvKind.DGRAD: (p.n, p.c, *size),
        ConvKind.WGRAD: (p.k, p.c // p.groups, p.r, p.s),
    }
    out = np.zeros(shapes[p.kind])
    n = np.arange(p.n)
    for r, s in np.ndindex(p.r, p.s):
        pixels, reads = [], []
        for axis, tap in enumerate((r, s)):
            x = np.arange(outs[axis])
            at = x * p.strides[axis] + tap * p.dilation[axis] - before[axis]
            on = (at >= 0) & (at < size[axis])
            pixels.append(x[on])
            reads.append(at[on])
        if not all(map(len, pixels)):
            continue
        for g in range(p.groups):
            ks = np.arange(p.k // p.groups) + g * (p.k // p.groups)
            cs = np.arange(p.c // p.groups) + g * (p.c // p.groups)
            here, there = np.ix_(n, ks, *pixels), np.ix_(n, cs, *reads)
            weight = (ks, slice(None), r, s)
            if p.kind is ConvKind.FPROP:
                out[here] += np.einsum(_SUM[p.kind], a[there], b[weight])
            elif p.kind is ConvKind.DGRAD:
                out[there] += np.einsum(_SUM[p.kind], a[here], b[weight])
            else:
                out[weight] += np.einsum(_SUM[p.kind], a[here], b[there])
    return out


def canonical(problem: ConvProblem, role: str, array: Array) -> Array:
    letters = KERNEL if role == "weight" else ACTIVATION
    return array.transpose(permutation(problem.layout(role), letters))


def kinds(values: Array) -> Array:
    """Of each value whether it is finite, an infinity of which sign, or NaN."""
    signs = np.where(np.isinf(values), np.sign(values), 0)
    return np.where(np.isnan(values), 2, signs)


def cases(problem: ConvProblem, seed: int) -> Iterator[tuple[str, str, list[Array]]]:
    """(role, special value, operands) with that value in one random place of that operand."""
    rng = np.random.default_rng(seed)
    plain = []
    for role in problem.roles[:2]:
        shape = problem.shape(role)
        values = rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)
        plain.append(values.astype(numpy_dtype(problem.dtype(role))))
    for which, role in enumerate(problem.roles[:2]):
        for special in SPECIAL:
            arrays = [x.copy() for x in plain]
            place = tuple(int(rng.integers(size)) for size in arrays[which].shape)
            largest = ml_dtypes.finfo(arrays[which].dtype).max
            arrays[which][place] = largest if special == "max" else float(special)
            yield role, special, arrays


def wrong(problem: ConvProblem, run: Callable[[list[Array]], Array], seed: int = 0) -> list[str]:
    """Where a kernel breaks docs/reference/operators.md's promise; `run` takes stored operands."""
    found = []
    result = problem.roles[2]
    for role, special, arrays in cases(problem, seed):
        got = kinds(canonical(problem, result, run(arrays)).astype("float64"))
        operands = [
            canonical(problem, r, x.astype("float64"))
            for r, x in zip(problem.roles, arrays, strict=False)
        ]
        wanted = []
        with np.errstate(all="ignore"):
            for padded in (False, True) if role != SLIDING[problem.kind] else (False,):
                exact = by_taps(problem, *operands, padded)
                rounded = exact.astype(problem.accum_dtype)
                wanted.append(kinds(rounded.astype(numpy_dtype(problem.dtype(result)))))
        bad = np.all([got != w for w in wanted], axis=0)
        if special == "max":  # near the edge of the range rounding decides
            bad &= got != 0
            bad &= np.abs(exact) < 0.9 * float(
                ml_dtypes.finfo(numpy_dtype(problem.dtype(result))).max
            )
        if bad.any():
            at = tuple(np.argwhere(bad)[0].tolist())
            found.append(
                f"{problem.repro()}: {special} in {role}: {int(bad.sum())} of {bad.size} results,"
                f" at {list(at)} kind {got[at]} for {[w[at] for w in wanted]}"
            )
    return found
