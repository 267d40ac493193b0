"""Reductions: over one axis, several, or all; `exclude` reduces all axes but these."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr, Tuple
from ..expr import TupleWrapper
from ..make import call
from .generated import tensor

__all__ = ["logsumexp", "mean_std", "mean_variance", "std", "variance"]

Axes = int | Sequence[int] | None


def variance(
    data: Expr,
    axis: Axes = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
    with_mean: Expr | None = None,
) -> Call:
    """The variance over `axis`; `with_mean`, if it is known already, has the reduced axes as 1."""
    m = tensor.mean(data, axis, True, exclude) if with_mean is None else with_mean
    return call(
        "variance", data, m, axis=axis, keepdims=keepdims, exclude=exclude, unbiased=unbiased
    )


def std(
    data: Expr,
    axis: Axes = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> Call:
    """The standard deviation over `axis`: the root of `variance`."""
    return tensor.sqrt(variance(data, axis, keepdims, exclude, unbiased))


def mean_variance(
    data: Expr,
    axis: Axes = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
) -> TupleWrapper:
    """(mean, variance) over `axis`."""
    m = tensor.mean(data, axis, True, exclude)
    var = variance(data, axis, keepdims, exclude, unbiased, m)
    return TupleWrapper(Tuple((m if keepdims else tensor.squeeze(m, axis), var)), 2)


def mean_std(
    data: Expr, axis: Axes = None, keepdims: bool = False, exclude: bool = False
) -> TupleWrapper:
    """(mean, standard deviation) over `axis`."""
    m = tensor.mean(data, axis, True, exclude)
    s = tensor.sqrt(variance(data, axis, keepdims, exclude, False, m))
    return TupleWrapper(Tuple((m if keepdims else tensor.squeeze(m), s)), 2)


def logsumexp(data: Expr, axis: Axes = None, keepdims: bool = False) -> Call:
    """log(sum(exp(data))) over `axis`, with the maximum taken out first."""
    top = tensor.max(data, axis, True)
    out = tensor.log(tensor.sum(tensor.exp(data - top), axis, True)) + top
    return out if keepdims else tensor.squeeze(out, axis)
