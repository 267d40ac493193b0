"""`relax.nn.group_norm_train_backward(dy, x, …)`: the gradient of `group_norm_train`.

    g = dy act'(z)    dbeta = sum(g)    dgamma = sum(g xhat)    (dresidual = g)
    dx = rstd (gamma g - mean(gamma g) - xhat mean(gamma g xhat))

with means over a group's channels of an image.  As `batch_norm_train_backward`, whose rules it has.
"""

from __future__ import annotations

from tvm import relax

from .. import opdef
from ..layout_rules.stock import follow_rule
from .algebra import get_op, operands
from .batch_norm_train_backward import DEF as OF_BATCH
from .train_norm import GROUP_BACKWARD, given_backward, make_call, read_attrs

OP = "group_norm_train_backward"


def group_norm_train_backward(
    dy: relax.Expr,
    x: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    mean: relax.Expr,
    rstd: relax.Expr,
    *y: relax.Expr,
    groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: str = "",
    alpha: float = 0.0,
) -> relax.Expr:
    """The gradients of `group_norm_train`, given that of its y.

    Parameters
    ----------
    dy : of x's type.
    x, gamma, beta : the operands of the forward call.
    mean, rstd : its results, (N, groups).
    y : its result, where it had a residual and an activation; else nothing.
    groups, axis, epsilon, activation, alpha : its attributes.

    Returns
    -------
    relax.Expr : a call whose result is the tuple (dx, dgamma, dbeta), with y (dx, dgamma, dbeta,
        dresidual).

    Raises
    ------
    TypeError, ValueError, RuntimeError : as `group_norm_train`.
    """
    get_op(GROUP_BACKWARD)
    more = dict(zip(("y",), y, strict=False))
    operands(OP, dy=dy, x=x, gamma=gamma, beta=beta, mean=mean, rstd=rstd, **more)
    given = {"axis": axis, "epsilon": epsilon, "activation": activation, "alpha": alpha,
             "groups": groups}  # fmt: skip
    args = [dy, x, gamma, beta, mean, rstd, *y]
    return make_call(GROUP_BACKWARD, args, read_attrs(GROUP_BACKWARD, given))


DEF = opdef.OpDef(
    name=GROUP_BACKWARD,
    summary="the gradient of group_norm_train",
    arguments=given_backward("each group of an image"),
    variadic=True,
    constructor=group_norm_train_backward,
    rules={**OF_BATCH.rules, opdef.INFER_LAYOUT: follow_rule(GROUP_BACKWARD)},
)
