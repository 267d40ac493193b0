"""Reductions: over one axis, several, or all; `exclude` reduces all axes but these."""

# ruff: noqa: A001  Relay's names
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..ast import Call, Expr, Tuple
from ..expr import TupleWrapper
from ..make import call
from . import tensor
from .transform import squeeze

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "logsumexp",
    "max",
    "mean",
    "mean_std",
    "mean_variance",
    "min",
    "prod",
    "std",
    "sum",
    "variance",
]

Axes = int | Sequence[int] | None


class Reduction(Protocol):
    """A reduction's builder."""

    def __call__(
        self, data: Expr, axis: Axes = None, keepdims: bool = False, exclude: bool = False
    ) -> Call: ...


class ArgReduction(Protocol):
    """The builder of an index of an extreme."""

    def __call__(
        self,
        data: Expr,
        axis: Axes = None,
        keepdims: bool = False,
        exclude: bool = False,
        select_last_index: bool = False,
    ) -> Call: ...


def _reduction(name: str) -> Reduction:
    def build(data: Expr, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Call:
        return call(name, data, axis=axis, keepdims=keepdims, exclude=exclude)

    return _named(build, name, f"The reduction `{name}` over `axis`, by default over all axes.")


def _arg(name: str) -> ArgReduction:
    def build(
        data: Expr,
        axis: Axes = None,
        keepdims: bool = False,
        exclude: bool = False,
        select_last_index: bool = False,
    ) -> Call:
        return call(
            name,
            data,
            axis=axis,
            keepdims=keepdims,
            exclude=exclude,
            select_last_index=select_last_index,
        )

    return _named(build, name, f"The index (int32) of the {name[3:]}imum along `axis`.")


def _named(build: Any, name: str, doc: str) -> Any:
    build.__name__ = build.__qualname__ = name
    build.__doc__ = doc
    return build


all = _reduction("all")
any = _reduction("any")
max = _reduction("max")
mean = _reduction("mean")
min = _reduction("min")
prod = _reduction("prod")
sum = _reduction("sum")
argmax = _arg("argmax")
argmin = _arg("argmin")


def variance(
    data: Expr,
    axis: Axes = None,
    keepdims: bool = False,
    exclude: bool = False,
    unbiased: bool = False,
    with_mean: Expr | None = None,
) -> Call:
    """The variance over `axis`; `with_mean`, if it is known already, has the reduced axes as 1."""
    m = mean(data, axis, True, exclude) if with_mean is None else with_mean
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
    m = mean(data, axis, True, exclude)
    var = variance(data, axis, keepdims, exclude, unbiased, m)
    return TupleWrapper(Tuple((m if keepdims else squeeze(m, axis), var)), 2)


def mean_std(
    data: Expr, axis: Axes = None, keepdims: bool = False, exclude: bool = False
) -> TupleWrapper:
    """(mean, standard deviation) over `axis`."""
    m = mean(data, axis, True, exclude)
    s = tensor.sqrt(variance(data, axis, keepdims, exclude, False, m))
    return TupleWrapper(Tuple((m if keepdims else squeeze(m), s)), 2)


def logsumexp(data: Expr, axis: Axes = None, keepdims: bool = False) -> Call:
    """log(sum(exp(data))) over `axis`, with the maximum taken out first."""
    top = max(data, axis, True)
    out = tensor.log(sum(tensor.exp(data - top), axis, True)) + top
    return out if keepdims else squeeze(out, axis)
