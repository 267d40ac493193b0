"""Reductions, of which those of half precision are computed in float32.

Upstream's legalizations and some of its gradients use the operand's type throughout: sums stagnate,
and a count of 70,000 elements is no float16.  The legalizations are in
`legalize.half_reductions`; here is which operators they are for, and the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ..dtypes import HALVES, wide_of
from ..relation import as_size

Partials = list[Any]
R = relax.op

# Also `power`, of which upstream makes nothing in bfloat16.  Not here: maxima, which round nothing;
# convolutions, whose kernels are ours; `cumsum` and `cumprod`, which TVM compiles before it
# legalizes (`transform.half_scans`).
_SUMS = """
    sum mean variance std prod collapse_sum_to collapse_sum_like
    nn.softmax nn.log_softmax nn.cross_entropy_with_logits nn.nll_loss grad.nll_loss_backward
    nn.batch_norm nn.layer_norm nn.group_norm nn.instance_norm nn.rms_norm
    nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d grad.avg_pool2d_backward
    nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d
    scatter_elements scatter_nd grad.take_backward
    power"""
_PRODUCTS = """
    matmul einsum nn.attention nn.attention_bias"""
PRODUCTS = frozenset(f"relax.{name}" for name in _PRODUCTS.split())
REDUCTIONS = tuple(f"relax.{name}" for name in f"{_SUMS}{_PRODUCTS}".split())

LEGALIZER = "legalize.half_reductions:wide_rule"


def _wide(x: Any) -> Any:
    return R.astype(x, "float32")


def mean(call: relax.Call, ct: relax.Var, axes: list[int], sizes: list[Any]) -> Partials:
    """The cotangent's share for each element, whose count need not be a float16, nor a number,
    which upstream's rule wants."""
    share = _shared(ct, sizes)
    return [R.broadcast_to(_expanded(call, share, axes), call.args[0].ty.shape)]


def open_variance(call: relax.Call, ct: relax.Var, axes: list[int], sizes: list[Any]) -> Partials:
    """2 (x - mean) times the cotangent's share."""
    x, share = call.args[0], _expanded(call, _shared(ct, sizes), axes)
    slope = R.subtract(x, R.mean(x, axes, True))
    return [R.multiply(slope, R.add(share, share))]


def open_cross_entropy(call: relax.Call, ct: relax.Var, _: list[int], sizes: list[Any]) -> Partials:
    """Minus the other operand's share, of a batch that is symbolic."""
    x, y = call.args
    share = R.negative(_shared(ct, sizes[:1] if len(sizes) > 1 else []))
    return [R.multiply(share, other) for other in (y, x)]


def _shared(ct: relax.Var, sizes: Sequence[Any]) -> Any:
    """A cotangent over the product of sizes; ones are counted of those that are symbolic."""
    half = _dtype(ct) in HALVES
    wide = wide_of(_dtype(ct))
    share = R.divide(
        _wide(ct) if half else ct,
        relax.const(float(math.prod(n for n in sizes if isinstance(n, int))), wide),
    )
    for size in sizes:
        if not isinstance(size, int):
            share = R.divide(share, R.sum(R.ones((size,), wide)))
    return R.astype(share, _dtype(ct)) if half else share


def variance(call: relax.Call, ct: relax.Var, axes: list[int], sizes: list[int]) -> Partials:
    """2 (x - mean) / count times the cotangent."""
    x = _wide(call.args[0])
    share = R.multiply(_wide(ct), relax.const(2.0 / math.prod(sizes), "float32"))
    slope = R.subtract(x, R.mean(x, axes, True))
    return [R.astype(R.multiply(slope, _expanded(call, share, axes)), _dtype(ct))]


def cross_entropy_with_logits(
    call: relax.Call, ct: relax.Var, axes: list[int], sizes: list[int]
) -> Partials:
    """Of -sum(x y) / batch: minus the other operand over the batch, times the cotangent."""
    x, y = call.args
    batch = sizes[0] if len(sizes) > 1 else 1
    share = R.multiply(_wide(ct), relax.const(-1.0 / batch, "float32"))
    return [R.astype(R.multiply(share, _wide(other)), _dtype(ct)) for other in (y, x)]


def log_softmax(call: relax.Call, ct: relax.Var) -> Partials:
    """The cotangent less its sum, which need not be a float16, times softmax."""
    axis, g = call.attrs.axis, _wide(ct)
    sums = R.sum(g, axis, keepdims=True)
    slope = R.subtract(g, R.multiply(sums, R.nn.softmax(_wide(call.args[0]), axis)))
    return [R.astype(slope, _dtype(ct))]


def _expanded(call: relax.Call, x: Any, axes: list[int]) -> Any:
    """With the axes that a reduction took away."""
    return x if call.attrs.keepdims else R.expand_dims(x, axes)


def _dtype(x: Any) -> str:
    return str(x.ty.dtype)


_COUNTED: dict[str, Callable[..., Partials]] = {
    "relax.mean": mean,
    "relax.variance": variance,
    "relax.nn.cross_entropy_with_logits": cross_entropy_with_logits,
}
# Of sizes that are symbolic, in any precision.
_OPEN: dict[str, Callable[..., Partials]] = {
    "relax.mean": mean,
    "relax.variance": open_variance,
    "relax.nn.cross_entropy_with_logits": open_cross_entropy,
}
_OF_ANY_SIZE: dict[str, Callable[..., Partials]] = {"relax.nn.log_softmax": log_softmax}
GRADIENTS = frozenset((*_COUNTED, *_OF_ANY_SIZE))


def gradient_rule(name: str, upstream: Any) -> Callable[..., Partials]:
    """The gradient for half precision, of known sizes where it needs them; upstream's for all
    else."""

    def rule(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Any:
        x = call.args[0]
        if _dtype(x) in HALVES and name in _OF_ANY_SIZE:
            return _OF_ANY_SIZE[name](call, ct)
        sizes = [as_size(n) for n in x.ty.shape.values] if x.ty.shape is not None else [None]
        is_open = not all(isinstance(n, int) for n in sizes)
        rules = _OPEN if is_open else _COUNTED if _dtype(x) in HALVES else {}
        if None in sizes or name not in rules:
            return upstream(var, call, ct, ctx)
        given = getattr(call.attrs, "axis", None)
        axes = sorted(int(a) % len(sizes) for a in (range(len(sizes)) if given is None else given))
        return rules[name](call, ct, axes, [sizes[a] for a in axes])

    return rule
