"""Relay's reductions in half precision: rows as those of `tests.support.half_cases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests.support.half_cases import (
    Row,
    affine,
    classes,
    groups,
    logits,
    norm,
    pair,
    plane,
    rows,
    small,
    standardized,
    statistics,
)


def _batch_norm(args: Sequence[Any], _: int) -> Any:
    x, gamma, beta, mean, var = args
    column = (1, -1, 1, 1)
    return affine((x - mean.reshape(column)) / torch.sqrt(var.reshape(column) + 1e-5), gamma, beta)


def _cross_entropy(args: Sequence[Any], _: int) -> Any:
    return -(args[1] * torch.log(args[0])).sum() / args[0].shape[0]


RELAY = (
    Row("sum", small, lambda R, a, n: R.sum(a[0], 1), lambda a, n: a[0].sum(1)),
    Row("mean", rows, lambda R, a, n: R.mean(a[0], 1), lambda a, n: a[0].mean(1)),
    Row("mean of planes", lambda n: [(plane(n, 1), "x")],
        lambda R, a, n: R.mean(a[0], axis=[2, 3]), lambda a, n: a[0].mean((2, 3))),
    Row("variance", rows, lambda R, a, n: R.variance(a[0], 1),
        lambda a, n: a[0].var(1, correction=0), roundings=6),
    Row("std", rows, lambda R, a, n: R.std(a[0], 1), lambda a, n: a[0].std(1, correction=0),
        grad=False, roundings=6),
    Row("prod", lambda n: [((3, n), "near 1")], lambda R, a, n: R.prod(a[0], 1),
        lambda a, n: a[0].prod(1), grad=False),
    # Relay's program has the sum, up to n, as a number of the operands' type.
    # Its gradient is in equal parts, as many as there are maxima.
    Row("max", rows, lambda R, a, n: R.max(a[0], 1), lambda a, n: a[0].amax(1)),
    Row("logsumexp", lambda n: rows(min(n, 65_000)), lambda R, a, n: R.logsumexp(a[0], 1),
        lambda a, n: a[0].logsumexp(1), grad=False, roundings=6),
    Row("nn.softmax", rows, lambda R, a, n: R.nn.softmax(a[0], 1), lambda a, n: a[0].softmax(1)),
    Row("nn.log_softmax", rows, lambda R, a, n: R.nn.log_softmax(a[0], 1),
        lambda a, n: a[0].log_softmax(1)),
    Row("nn.layer_norm", lambda n: [((3, n), "x"), ((n,), "w"), ((n,), "w")],
        lambda R, a, n: R.nn.layer_norm(*a), lambda a, n: standardized(a[0], 1) * a[1] + a[2]),
    Row("nn.instance_norm", norm, lambda R, a, n: R.nn.instance_norm(*a),
        lambda a, n: affine(standardized(a[0], (2, 3)), *a[1:])),
    Row("nn.group_norm", norm, lambda R, a, n: R.nn.group_norm(*a, 2),
        lambda a, n: affine(groups(a[0], 2), *a[1:])),
    # Its gradient by the shift is a sum over all pixels.
    Row("nn.batch_norm", statistics, lambda R, a, n: R.nn.batch_norm(*a)[0], _batch_norm),
    Row("nn.l2_normalize", small, lambda R, a, n: R.nn.l2_normalize(a[0], 1e-5, [1]),
        lambda a, n: a[0] / torch.sqrt((a[0] ** 2).sum(1, keepdim=True).clamp(min=1e-5))),
    Row("nn.lrn", lambda n: [((1, n, 2, 2), "x")], lambda R, a, n: R.nn.lrn(a[0], 5, 1, 2.0, 1.0),
        lambda a, n: F.local_response_norm(a[0], 5, 1.0, 0.75, 2.0)),
    Row("nn.avg_pool2d", lambda n: [(plane(n), "x")],
        lambda R, a, n: R.nn.avg_pool2d(a[0], pair(n)),
        lambda a, n: a[0].mean((2, 3), keepdim=True)),
    Row("nn.global_avg_pool2d", lambda n: [(plane(n), "x")],
        lambda R, a, n: R.nn.global_avg_pool2d(a[0]), lambda a, n: a[0].mean((2, 3), keepdim=True)),
    Row("nn.adaptive_avg_pool2d", lambda n: [(plane(n), "x")],
        lambda R, a, n: R.nn.adaptive_avg_pool2d(a[0], (2, 2)),
        lambda a, n: F.adaptive_avg_pool2d(a[0], (2, 2))),
    Row("nn.dense", lambda n: [((3, n), "s"), ((2, n), "x")], lambda R, a, n: R.nn.dense(*a),
        lambda a, n: F.linear(*a)),
    Row("nn.matmul", lambda n: [((3, n), "s"), ((n, 2), "x")], lambda R, a, n: R.nn.matmul(*a),
        lambda a, n: a[0] @ a[1]),
    Row("nn.batch_matmul", lambda n: [((2, 3, n), "s"), ((2, 4, n), "x")],
        lambda R, a, n: R.nn.batch_matmul(*a), lambda a, n: a[0] @ a[1].transpose(1, 2)),
    Row("nn.conv2d", lambda n: [((1, n, 2, 2), "s"), ((2, n, 1, 1), "x")],
        lambda R, a, n: R.nn.conv2d(*a, kernel_size=(1, 1)), lambda a, n: F.conv2d(*a)),
    Row("nn.bias_add", lambda n: [(plane(n), "s"), ((2,), "w")],
        lambda R, a, n: R.nn.bias_add(*a), lambda a, n: a[0] + a[1].reshape(1, 2, 1, 1)),
    Row("nn.cross_entropy", lambda n: [((n // 4 + 1, 4), "positive"), ((n // 4 + 1, 4), "x")],
        lambda R, a, n: R.nn.cross_entropy(*a), _cross_entropy),
    Row("nn.cross_entropy_with_logits", logits,
        lambda R, a, n: R.nn.cross_entropy_with_logits(*a),
        lambda a, n: -(a[0] * a[1]).sum() / a[0].shape[0]),
    Row("nn.nll_loss", classes, lambda R, a, n: R.nn.nll_loss(*a),
        lambda a, n: F.nll_loss(a[0], a[1], a[2].detach())),
    Row("collapse_sum_to", lambda n: [((n, 3), "s")],
        lambda R, a, n: R.collapse_sum_to(a[0], (3,)), lambda a, n: a[0].sum(0)),
    Row("take", lambda n: [((5,), "w"), ((n,), "index")], lambda R, a, n: R.take(*a, axis=0),
        lambda a, n: a[0][a[1]]),
)  # fmt: skip
