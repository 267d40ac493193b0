"""`relax.nn.group_norm_train(x, gamma, beta, …)`: normalization of groups of an image's channels.

    y = act((x - mean) rstd gamma + beta (+ residual))        rstd = 1 / sqrt(variance + epsilon)

As `batch_norm_train`, whose rules it has, with statistics of each group of channels of each image;
instance normalization is that of one channel a group.
"""

from __future__ import annotations

from tvm import relax

from .. import opdef
from ..layout_rules.stock import follow_rule
from .algebra import get_op, operands
from .batch_norm_train import DEF as OF_BATCH
from .train_norm import GIVEN, GROUP_FORWARD, make_call, read_attrs

OP = "group_norm_train"


def group_norm_train(
    x: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    *residual: relax.Expr,
    groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: str = "",
    alpha: float = 0.0,
) -> relax.Expr:
    """Normalization of groups of an image's channels, with what follows it.

    Parameters
    ----------
    x : float tensor of at least 3 axes, N images on the first, C channels on another.
    gamma, beta : (C,) in float32 (float64 for x of float64).
    residual : nothing, or a tensor of x's shape and dtype, which is added before the activation.
    groups : into how many the channels are divided, in order; C of instance normalization.
    axis, epsilon, activation, alpha : as of `batch_norm_train`; axis is not 0.

    Returns
    -------
    relax.Expr : a call whose result is the tuple (y, mean, rstd); y is of x's type, the others are
        (N, groups).

    Raises
    ------
    TypeError, ValueError, RuntimeError : as `batch_norm_train`; ValueError for groups that do not
        divide the channels.
    """
    get_op(GROUP_FORWARD)
    optional = dict(zip(("residual",), residual, strict=False))
    operands(OP, x=x, gamma=gamma, beta=beta, **optional)
    given = {"axis": axis, "epsilon": epsilon, "activation": activation, "alpha": alpha,
             "groups": groups}  # fmt: skip
    return make_call(GROUP_FORWARD, [x, gamma, beta, *residual], read_attrs(GROUP_FORWARD, given))


DEF = opdef.OpDef(
    name=GROUP_FORWARD,
    summary="normalization of groups of channels, with residual and activation",
    arguments=(
        *GIVEN,
        ("residual", "Tensor", "What is added before the activation, if anything."),
    ),
    variadic=True,
    constructor=group_norm_train,
    rules={**OF_BATCH.rules, opdef.INFER_LAYOUT: follow_rule(GROUP_FORWARD)},
)
