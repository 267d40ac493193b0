"""Reductions in half precision whose sums are long: each operator on a surface, and what it is.

A row is an operator, its operands' shapes for a reduction of `n` terms, how to call it, and the
same in PyTorch, which computes it in float64 from the rounded operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from relay_wgrad.dtypes import numpy_dtype

Specs = Sequence[tuple[tuple[int, ...], str]]
FILLS = ("ones", "uniform", "offset", "normal")
# Of the dtype: half of the distance from 1 to the next number, and the least number.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-126}


@dataclass(frozen=True)
class Row:
    """`specs(n)`: (shape, kind) of each operand; `call(ops, args, n)`: the call; `want(args, n)`.

    Kinds: "x", as the case's fill says; "s", that over 16, for sums that are to stay finite; "w",
    normal; "near 1"; "labels"; "zeros"; "index", all zero; "positive".
    """

    name: str
    specs: Callable[[int], Specs]
    call: Callable[[Any, Sequence[Any], int], Any]
    want: Callable[[Sequence[Any], int], Any]
    grad: bool = True
    pipelines: tuple[str, ...] = ("stock", "ours")
    roundings: float = 3.0

    @property
    def key(self) -> str:
        """The name without spaces."""
        return self.name.replace(" ", "-")


def operands(specs: Specs, dtype: str, fill: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)

    def filled(shape: tuple[int, ...], kind: str) -> np.ndarray:
        if kind == "labels":
            return rng.integers(0, 4, shape)
        if kind == "index":
            return np.zeros(shape, "int64")
        uniform = rng.random(shape)
        if kind in ("x", "s"):
            x = {
                "ones": np.ones(shape), "uniform": uniform, "offset": 4 + uniform,
                "normal": rng.standard_normal(shape),
            }[fill]  # fmt: skip
            return x / 16 if kind == "s" else x
        return {
            "w": rng.standard_normal(shape), "zeros": np.zeros(shape), "positive": 0.5 + uniform,
            "near 1": 1 + (uniform - 0.5) / 32,
        }[kind]  # fmt: skip

    drawn = [(filled(shape, kind), kind) for shape, kind in specs]
    return [x if kind in ("labels", "index") else x.astype(numpy_dtype(dtype)) for x, kind in drawn]


def as_torch(array: np.ndarray) -> Any:
    floats = array.dtype.kind not in "iu"
    return torch.tensor(array.astype("float64") if floats else array, requires_grad=floats)


LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38}


def error(got: np.ndarray, want: np.ndarray, dtype: str) -> float:
    """The largest error in units of what roundings of results and of float32 sums may make."""
    want = want.reshape(got.shape)
    got = got.astype("float64")
    if not (np.isnan(got) == np.isnan(want)).all():
        return math.inf
    assert np.isfinite(want).all() or np.isnan(want).any()
    # Above the type's range infinity is right; near it, either.
    beyond = np.abs(want) > LARGEST[dtype] * (1 - 4 * ROUNDOFF[dtype])
    right = beyond & np.isinf(got) & (np.sign(got) == np.sign(want))
    kept = ~np.isnan(want) & ~right
    got, want = got[kept], want[kept]
    size = float(np.sqrt((want**2).mean())) if want.size else 0.0
    allowed = (
        ROUNDOFF[dtype] * np.abs(want) + SMALLEST[dtype] + 2e-4 * ROUNDOFF[dtype] * 2**11 * size
    )
    return float((np.abs(got - want) / allowed).max()) if want.size else 0.0


def pair(n: int) -> tuple[int, int]:
    """Height and width of about n pixels."""
    height = max(h for h in range(1, math.isqrt(n) + 1) if n % h == 0)
    return height, n // height


def plane(n: int, channels: int = 2) -> tuple[int, ...]:
    return (1, channels, *pair(n))


def standardized(x: Any, axes: Any, eps: float = 1e-5) -> Any:
    mean = x.mean(axes, keepdim=True)
    var = ((x - mean) ** 2).mean(axes, keepdim=True)
    return (x - mean) / torch.sqrt(var + eps)


def _column(v: Any, ndim: int) -> Any:
    return v.reshape(1, -1, *[1] * (ndim - 2))


def groups(x: Any, groups: int) -> Any:
    wide = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return standardized(wide, tuple(range(2, wide.ndim))).reshape(x.shape)


def affine(x: Any, gamma: Any, beta: Any) -> Any:
    return x * _column(gamma, x.ndim) + _column(beta, x.ndim)


def _trained_norm(args: Sequence[Any], _: int) -> Any:
    x, gamma, beta = args[:3]
    return affine(standardized(x, (0, 2, 3)), gamma, beta)


def _first(x: Any) -> Any:
    """The first of a tuple of results."""
    from tvm import relax

    return relax.TupleGetItem(x, 0)


def _attention(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
    return (weights @ v).transpose(1, 2)


def rows(n: int, kind: str = "x") -> Specs:
    return [((3, n), kind)]


def small(n: int) -> Specs:
    return rows(n, "s")


def norm(n: int) -> Specs:
    return [(plane(n, 4), "x"), ((4,), "w"), ((4,), "w")]


def statistics(n: int) -> Specs:
    return [*norm(n), ((4,), "w"), ((4,), "positive")]


def classes(n: int) -> Specs:
    return [((n // 4 + 1, 4), "x"), ((n // 4 + 1,), "labels"), ((4,), "positive")]


def logits(n: int) -> Specs:
    return [((n // 4 + 1, 4), "positive"), ((n // 4 + 1, 4), "x")]


def _scattered(n: int) -> Specs:
    return [((5,), "zeros"), ((n,), "index"), ((n,), "s")]


def _total(args: Sequence[Any], _: int) -> Any:
    return torch.cat([args[2].sum()[None], torch.zeros(4, dtype=torch.float64)])


RELAX = (
    Row("sum", small, lambda R, a, n: R.sum(a[0], [1]), lambda a, n: a[0].sum(1)),
    Row("sum of all", small, lambda R, a, n: R.sum(a[0]), lambda a, n: a[0].sum()),
    Row("sum of columns", lambda n: [((n, 3), "s")], lambda R, a, n: R.sum(a[0], [0], True),
        lambda a, n: a[0].sum(0, keepdim=True)),
    Row("sum of squares", small, lambda R, a, n: R.sum(R.multiply(a[0], a[0]), [1]),
        lambda a, n: (a[0] ** 2).sum(1)),
    Row("mean", rows, lambda R, a, n: R.mean(a[0], [1]), lambda a, n: a[0].mean(1)),
    Row("mean of planes", lambda n: [(plane(n, 1), "x")], lambda R, a, n: R.mean(a[0], [2, 3]),
        lambda a, n: a[0].mean((2, 3))),
    Row("variance", rows, lambda R, a, n: R.variance(a[0], [1]),
        lambda a, n: a[0].var(1, correction=0)),
    Row("std", rows, lambda R, a, n: R.std(a[0], [1]), lambda a, n: a[0].std(1, correction=0),
        grad=False),
    Row("prod", lambda n: [((3, n), "near 1")], lambda R, a, n: R.prod(a[0], [1]),
        lambda a, n: a[0].prod(1), grad=False),
    # Its gradient is in equal parts, as many as there are maxima.
    Row("max", rows, lambda R, a, n: R.max(a[0], [1]), lambda a, n: a[0].amax(1)),
    Row("nn.softmax", rows, lambda R, a, n: R.nn.softmax(a[0], 1), lambda a, n: a[0].softmax(1)),
    Row("nn.log_softmax", rows, lambda R, a, n: R.nn.log_softmax(a[0], 1),
        lambda a, n: a[0].log_softmax(1)),
    Row("nn.cross_entropy_with_logits", logits,
        lambda R, a, n: R.nn.cross_entropy_with_logits(*a),
        lambda a, n: -(a[0] * a[1]).sum() / a[0].shape[0]),
    Row("nn.nll_loss", classes, lambda R, a, n: R.nn.nll_loss(*a),
        lambda a, n: F.nll_loss(a[0], a[1], a[2].detach())),
    Row("nn.batch_norm", statistics,
        lambda R, a, n: _first(R.nn.batch_norm(*a, 1, training=True)), _trained_norm, grad=False),
    Row("nn.layer_norm", lambda n: [((3, n), "x"), ((n,), "w"), ((n,), "w")],
        lambda R, a, n: R.nn.layer_norm(*a, [-1]),
        lambda a, n: standardized(a[0], 1) * a[1] + a[2], grad=False),
    Row("nn.instance_norm", norm, lambda R, a, n: R.nn.instance_norm(*a, 1, [2, 3]),
        lambda a, n: affine(standardized(a[0], (2, 3)), *a[1:]), grad=False),
    Row("nn.group_norm", norm, lambda R, a, n: R.nn.group_norm(*a, 2, 1, [2, 3]),
        lambda a, n: affine(groups(a[0], 2), *a[1:]), grad=False),
    Row("nn.rms_norm", lambda n: [((3, n), "x"), ((n,), "w")],
        lambda R, a, n: R.nn.rms_norm(*a, [-1]),
        lambda a, n: a[0] / torch.sqrt((a[0] ** 2).mean(1, keepdim=True) + 1e-5) * a[1],
        grad=False),
    Row("nn.avg_pool1d", lambda n: [((1, 2, n), "x")],
        lambda R, a, n: R.nn.avg_pool1d(a[0], [n]), lambda a, n: a[0].mean(2, keepdim=True),
        grad=False),
    Row("nn.avg_pool2d", lambda n: [(plane(n), "x")],
        lambda R, a, n: R.nn.avg_pool2d(a[0], pair(n)),
        lambda a, n: a[0].mean((2, 3), keepdim=True)),
    Row("nn.avg_pool3d", lambda n: [((1, 2, 1, *pair(n)), "x")],
        lambda R, a, n: R.nn.avg_pool3d(a[0], [1, *pair(n)]),
        lambda a, n: a[0].mean((2, 3, 4), keepdim=True), grad=False),
    Row("nn.adaptive_avg_pool1d", lambda n: [((1, 2, n), "x")],
        lambda R, a, n: R.nn.adaptive_avg_pool1d(a[0], [1]),
        lambda a, n: a[0].mean(2, keepdim=True), grad=False),
    Row("nn.adaptive_avg_pool2d", lambda n: [(plane(n), "x")],
        lambda R, a, n: R.nn.adaptive_avg_pool2d(a[0], [1, 1]),
        lambda a, n: a[0].mean((2, 3), keepdim=True), grad=False),
    Row("nn.adaptive_avg_pool3d", lambda n: [((1, 2, 1, *pair(n)), "x")],
        lambda R, a, n: R.nn.adaptive_avg_pool3d(a[0], [1, 1, 1]),
        lambda a, n: a[0].mean((2, 3, 4), keepdim=True), grad=False),
    Row("matmul", lambda n: [((3, n), "s"), ((n, 2), "x")], lambda R, a, n: R.matmul(*a),
        lambda a, n: a[0] @ a[1]),
    Row("matmul with out_dtype", lambda n: [((70, n), "s"), ((n, 66), "w")],
        lambda R, a, n: R.matmul(*a, str(a[0].ty.dtype)), lambda a, n: a[0] @ a[1], grad=False),
    Row("matmul of vectors", lambda n: [((n,), "s"), ((n,), "x")], lambda R, a, n: R.matmul(*a),
        lambda a, n: a[0] @ a[1], grad=False),
    Row("matmul of batches", lambda n: [((2, 3, n), "s"), ((2, n, 4), "x")],
        lambda R, a, n: R.matmul(*a), lambda a, n: a[0] @ a[1]),
    Row("linear", lambda n: [((3, n), "s"), ((2, n), "x"), ((2,), "w")],
        lambda R, a, n: R.linear(*a), lambda a, n: F.linear(*a), roundings=6),
    Row("einsum", lambda n: [((3, n), "s"), ((n, 2), "x")],
        lambda R, a, n: R.einsum(tuple(a), "ij,jk->ik"), lambda a, n: a[0] @ a[1], grad=False),
    Row("nn.attention", lambda n: [((1, 2, 1, 8), "w"), ((1, n, 1, 8), "w"), ((1, n, 1, 8), "x")],
        lambda R, a, n: R.nn.attention(*a), lambda a, n: _attention(*a), grad=False),
    Row("nn.conv1d", lambda n: [((1, n, 4), "s"), ((2, n, 1), "x")],
        lambda R, a, n: R.nn.conv1d(*a), lambda a, n: F.conv1d(*a), grad=False),
    Row("nn.conv2d", lambda n: [((1, n, 2, 2), "s"), ((2, n, 1, 1), "x")],
        lambda R, a, n: R.nn.conv2d(*a), lambda a, n: F.conv2d(*a)),
    Row("nn.conv3d", lambda n: [((1, n, 1, 2, 2), "s"), ((2, n, 1, 1, 1), "x")],
        lambda R, a, n: R.nn.conv3d(*a), lambda a, n: F.conv3d(*a), grad=False),
    Row("nn.conv1d_transpose", lambda n: [((1, n, 4), "s"), ((n, 2, 1), "x")],
        lambda R, a, n: R.nn.conv1d_transpose(*a), lambda a, n: F.conv_transpose1d(*a), grad=False),
    Row("nn.conv3d_transpose", lambda n: [((1, n, 1, 2, 2), "s"), ((n, 2, 1, 1, 1), "x")],
        lambda R, a, n: R.nn.conv3d_transpose(*a), lambda a, n: F.conv_transpose3d(*a), grad=False),
    Row("collapse_sum_to", lambda n: [((n, 3), "s")],
        lambda R, a, n: R.collapse_sum_to(a[0], (3,)), lambda a, n: a[0].sum(0)),
    Row("collapse_sum_like", lambda n: [((n, 3), "s"), ((1, 3), "w")],
        lambda R, a, n: R.collapse_sum_like(*a), lambda a, n: a[0].sum(0, keepdim=True) + 0 * a[1]),
    # Its gradient by b is a sum over all pixels.
    Row("bias", lambda n: [(plane(n), "s"), ((2, 1, 1), "w")], lambda R, a, n: R.add(*a),
        lambda a, n: a[0] + a[1]),
    Row("scatter_elements", _scattered,
        lambda R, a, n: R.scatter_elements(*a, 0, "add"), _total, grad=False),
    Row("scatter_nd", lambda n: [((5,), "zeros"), ((n, 1), "index"), ((n,), "s")],
        lambda R, a, n: R.scatter_nd(*a, "add"), _total, grad=False),
    # Its gradient is a sum over all places that took an element.
    Row("take", lambda n: [((5,), "w"), ((n,), "index")], lambda R, a, n: R.take(*a, 0),
        lambda a, n: a[0][a[1]]),
    Row("cumsum", small, lambda R, a, n: R.cumsum(a[0], 1), lambda a, n: a[0].cumsum(1),
        grad=False, pipelines=("ours",)),
    Row("cumprod", lambda n: [((3, n), "near 1")], lambda R, a, n: R.cumprod(a[0], 1),
        lambda a, n: a[0].cumprod(1), grad=False, pipelines=("ours",)),
)  # fmt: skip


def named(rows: Sequence[Row], key: str) -> Row:
    return next(row for row in rows if row.key == key)
