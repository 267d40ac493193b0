"""Rows of a convolution's result, or of a gradient's, in float64 by NumPy's matrix products.

With the letters of `relay_wgrad.problem`, each result is a sum over the taps t of products of two
matrices, one of which is a gather: of data at p*stride - pad + t*dilation (fprop, wgrad), of the
gradient at (h + pad - t*dilation) / stride where that is whole (dgrad).  What lies outside is 0.  A
row is all channels of one pixel, or all K of one weight's (c, t), so a few rows meet every tap and
every group, and cost a thousandth of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from relay_wgrad.layouts import permutation
from relay_wgrad.problem import ConvKind, ConvProblem

Array = np.ndarray[Any, Any]
ROWS = 64


def rows(
    problem: ConvProblem, operands: Sequence[Array], result: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """(some rows of a result, what they should be), drawn by `rng`; all where there are few."""
    named = dict(zip(problem.roles, (*operands, result), strict=True))
    tensors = {role: _channels_last(problem, role, x) for role, x in named.items()}
    of = {ConvKind.FPROP: _fprop, ConvKind.DGRAD: _dgrad, ConvKind.WGRAD: _wgrad}[problem.kind]
    got, want = of(problem, tensors["data"], tensors["weight"], tensors["grad"], rng)
    return got.astype("float64"), want


def _channels_last(problem: ConvProblem, role: str, tensor: Array) -> Array:
    """A view with the axes (N, *pixels, channels), of a weight (*taps, C/groups, K)."""
    canonical = problem.canonical(role)
    order = canonical[2:] + "IO" if role == "weight" else "N" + canonical[2:] + "C"
    return tensor.transpose(permutation(problem.layout(role), order))


def _drawn(shape: Sequence[int], rng: np.random.Generator) -> tuple[Array, ...]:
    """Indices of some places of an array, one array for each axis."""
    size = math.prod(shape)
    chosen = rng.choice(size, min(ROWS, size), replace=False)
    return np.unravel_index(chosen, shape)


def _gathered(tensor: Array, images: Array, places: Sequence[Array]) -> Array:
    """A tensor's rows at these images and pixels in float64; 0 at those outside."""
    sizes = tensor.shape[1:-1]
    pairs = [*zip(places, sizes, strict=True)]
    inside = np.logical_and.reduce(np.broadcast_arrays(*((x >= 0) & (x < n) for x, n in pairs)))
    at = (images, *(np.clip(x, 0, n - 1) for x, n in pairs))
    return tensor[at].astype("float64") * inside[..., None]


def _over_taps(problem: ConvProblem, read: Sequence[Array], weight: Array, sums: str) -> Array:
    """Rows of a result, from those that were read for each tap: their products with a weight as
    (taps, C/groups, groups, K/groups), summed as `sums` says."""
    terms = np.stack(read, 1).reshape(len(read[0]), len(read), problem.groups, -1)
    shape = (-1, problem.c // problem.groups, problem.groups, problem.k // problem.groups)
    made = np.einsum(sums, terms, weight.astype("float64").reshape(shape), optimize=True)
    return made.reshape(len(made), -1)


def _taps(problem: ConvProblem) -> list[tuple[int, ...]]:
    return [*product(*map(range, problem.taps))]


def _read_at(problem: ConvProblem, pixels: Sequence[Array], tap: Sequence[int]) -> list[Array]:
    """Where the convolution reads its data for these pixels of its result."""
    steps = zip(pixels, problem.strides, problem.padding, tap, problem.dilation, strict=False)
    return [p * stride - pad + t * dilation for p, stride, pad, t, dilation in steps]


def _fprop(
    problem: ConvProblem, data: Array, weight: Array, grad: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    n, *pixels = at = _drawn(grad.shape[:-1], rng)
    read = [_gathered(data, n, _read_at(problem, pixels, tap)) for tap in _taps(problem)]
    return grad[at], _over_taps(problem, read, weight, "mtgc,tcgk->mgk")


def _dgrad(
    problem: ConvProblem, data: Array, weight: Array, grad: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    n, *pixels = at = _drawn(data.shape[:-1], rng)
    read = []
    for tap in _taps(problem):
        steps = zip(pixels, problem.padding, tap, problem.dilation, strict=False)
        moved = [h + pad - t * dilation for h, pad, t, dilation in steps]
        whole = [x % stride == 0 for x, stride in zip(moved, problem.strides, strict=True)]
        places = [x // stride for x, stride in zip(moved, problem.strides, strict=True)]
        read.append(_gathered(grad, n, places) * np.logical_and.reduce(whole)[:, None])
    return data[at], _over_taps(problem, read, weight, "mtgk,tcgk->mgc")


def _wgrad(
    problem: ConvProblem, data: Array, weight: Array, grad: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    *taps, c = at = _drawn(weight.shape[:-1], rng)
    places = np.ix_(*map(np.arange, grad.shape[:-1]))
    given = grad.astype("float64").reshape(-1, problem.groups, problem.k // problem.groups)
    want = np.empty((len(c), *given.shape[1:]))
    for tap in sorted(set(zip(*taps, strict=True))):
        own = np.logical_and.reduce([x == t for x, t in zip(taps, tap, strict=True)])
        channels = np.arange(problem.groups)[:, None] * weight.shape[-2] + c[own]
        read = _gathered(data[..., channels.ravel()], places[0], _read_at(problem, places[1:], tap))
        read = read.reshape(len(given), *channels.shape)
        want[own] = np.einsum("ngm,ngk->mgk", read, given, optimize=True)
    return weight[at], want.reshape(len(c), -1)
