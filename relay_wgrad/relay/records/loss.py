"""Losses of a batch of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...dtypes import numpy_dtype
from ..types import TensorType, Type
from .facts import NEVER, OPAQUE, OUT_ELEMWISE_FUSABLE
from .relations import agree, bounds
from .table import Attr, Call, Site, define, in_float32, show
from .te import choice

R = relax.op


def _cross_entropy_type(call: Call) -> Type:
    x, y = call.tensor(0), call.tensor(1)
    same = len(x.shape) == len(y.shape) == 2 and all(map(agree, x.shape, y.shape))
    if not same:
        call.fail(
            f"CrossEntropy: shapes of x and y is inconsistent, x shape = {show(x)},"
            f" y shape = {show(y)}"
        )
    return TensorType((), call.same_dtype(0, 1))


def _cross_entropy(s: Site, log: bool) -> Any:
    """Minus the mean over the batch of the sum of y * log(x), or of y * x."""
    x, y = s.args
    batch = s.tensor().shape[0]
    if log:
        x = s.emit(R.log(x))
    total = s.emit(R.sum(s.emit(R.multiply(x, y))))
    if isinstance(batch, int) and batch:
        return R.multiply(total, s.const(-1.0 / batch))
    return R.negative(s.emit(R.divide(total, s.number([batch], s.tensor().dtype))))


def _nll_loss_type(call: Call) -> Type:
    predictions, targets, weights = (call.tensor(i) for i in range(3))
    if len(predictions.shape) - len(targets.shape) != 1 or len(predictions.shape) < 2:
        call.fail(
            "predictions should be one dimension larger than targets,"
            f" got {show(predictions)} and {show(targets)}"
        )
    if len(weights.shape) != 1 or not agree(weights.shape[0], predictions.shape[1]):
        call.fail(
            "the second dimension of predictions should be the number of classes, which is"
            f" the length of weights, got {show(predictions)} and {show(weights)}"
        )
    rest = (predictions.shape[0], *predictions.shape[2:])
    if not all(map(agree, rest, targets.shape)):
        call.fail(f"targets must fit predictions, got {show(targets)} and {show(predictions)}")
    if call.same_dtype(0, 2).startswith(("int", "uint", "bool")):
        call.fail(f"predictions must be of a floating type, got {show(predictions)}")
    if not targets.dtype.startswith("int"):
        call.fail(f"targets should be of int type, got {show(targets)}")
    reduction = choice(call, "reduction", ("mean", "sum", "none"))
    return TensorType(targets.shape if reduction == "none" else (), predictions.dtype)


def _nll_loss(s: Site) -> Any:
    """Two classes more: that of ignored targets weighs nothing, that of wrong ones NaN.

    Relax's kernel reads the prediction of every target, also of one that is no class: that would be
    memory that is not the tensor's.
    """
    predictions, targets, weights = s.args
    shape, count = s.tensor().shape, s.tensor().shape[1]
    if not isinstance(count, int):
        s.fail(f"cannot be built with an unknown number of classes, got {show(s.tensor())}")
    least, most = bounds(s.tensor(1).dtype)
    if count + 1 > most:
        s.fail(f"{count} classes are too many for targets of {s.tensor(1).dtype}")
    wrong = s.emit(
        R.logical_or(
            s.emit(R.less(targets, s.const(0, 1))),
            s.emit(R.greater_equal(targets, s.const(count, 1))),
        )
    )
    safe = s.emit(R.where(wrong, s.const(count + 1, 1), targets))
    ignored = s.attrs["ignore_index"]
    if least <= ignored <= most:
        here = s.emit(R.equal(targets, s.const(ignored, 1)))
        safe = s.emit(R.where(here, s.const(count, 1), safe))
    widths = [0] * (2 * len(shape))
    widths[3] = 2
    more = s.emit(R.nn.pad(predictions, widths))
    extra = np.array([0, np.nan]).astype(numpy_dtype(s.tensor(2).dtype))
    scale = s.emit(R.concat([weights, relax.const(tvm.runtime.tensor(extra))], 0))
    return R.nn.nll_loss(more, safe, scale, s.attrs["reduction"], count)


define("nn.cross_entropy", "predictions targets", _cross_entropy_type,
       in_float32(lambda s: _cross_entropy(s, log=True)), "numpy",
       kind=OPAQUE, level=10, precision=NEVER,
       doc="-sum(targets · log(predictions)) over the batch size.")  # fmt: skip
define("nn.cross_entropy_with_logits", "predictions targets", _cross_entropy_type,
       in_float32(lambda s: _cross_entropy(s, log=False)), "numpy",
       kind=OPAQUE, level=10, precision=NEVER,
       doc="-sum(targets · predictions) over the batch size: predictions are log- "
           "probabilities.")  # fmt: skip
define("nn.nll_loss", "predictions targets weights", _nll_loss_type, _nll_loss, "torch",
       Attr("reduction", "mean", "str"),
       Attr("ignore_index", -100, "int", always=True),
       kind=OUT_ELEMWISE_FUSABLE,
       doc="Minus the log-probabilities of the target classes, weighted.")  # fmt: skip
