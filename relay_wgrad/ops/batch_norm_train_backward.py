"""`relax.nn.batch_norm_train_backward(dy, x, …)`: the gradient of `batch_norm_train`.

    g = dy act'(z)    dbeta = sum(g)    dgamma = sum(g xhat)    (dresidual = g)
    dx = gamma rstd (g - mean(g) - xhat mean(g xhat))

z is computed again from x, as the forward operator does it, or told by y where a residual was
added; so neither a mask nor a normalized x is kept.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from .. import opdef
from ..ir import op_name
from ..layout_rules.stock import follow_rule
from .activations import ACTIVATIONS
from .algebra import get_op, operands
from .train_norm import (
    BACKWARD,
    NormAttrs,
    NormChecks,
    Terms,
    call_attrs,
    dtype_of,
    given_backward,
    make_call,
    read_attrs,
    short,
)

OP = "batch_norm_train_backward"
_NAMES = ("dy", "x", "gamma", "beta", "mean", "rstd", "y")
R = relax.op


def batch_norm_train_backward(
    dy: relax.Expr,
    x: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    mean: relax.Expr,
    rstd: relax.Expr,
    *y: relax.Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: str = "",
    alpha: float = 0.0,
) -> relax.Expr:
    """The gradients of `batch_norm_train`, given that of its y.

    Parameters
    ----------
    dy : of x's type.
    x, gamma, beta : the operands of the forward call.
    mean, rstd : its results, (C,).
    y : its result, where it had a residual and an activation; else nothing.
    axis, epsilon, activation, alpha : its attributes.

    Returns
    -------
    relax.Expr : a call whose result is the tuple (dx, dgamma, dbeta), with y (dx, dgamma, dbeta,
        dresidual).

    Raises
    ------
    TypeError, ValueError, RuntimeError : as `batch_norm_train`.
    """
    get_op(BACKWARD)
    more = dict(zip(("y",), y, strict=False))
    operands(OP, dy=dy, x=x, gamma=gamma, beta=beta, mean=mean, rstd=rstd, **more)
    given = {"axis": axis, "epsilon": epsilon, "activation": activation, "alpha": alpha}
    args = [dy, x, gamma, beta, mean, rstd, *y]
    return make_call(BACKWARD, args, read_attrs(BACKWARD, given))


# ---- rules, which group normalization shares -----------------------------------------------------


def read(call: relax.Call) -> NormAttrs:
    return call_attrs(call)


def operands_by_name(call: relax.Call) -> dict[str, Any]:
    """The operands by their names.  Raises ValueError for another number of them than there is."""
    if len(call.args) not in (6, 7):
        raise ValueError(
            f"{short(op_name(call))}: takes 6 or 7 arguments ({', '.join(_NAMES)} if any),"
            f" got {len(call.args)}"
        )
    return dict(zip(_NAMES, call.args, strict=False))


def infer_type(call: relax.Call, ctx: relax.BlockBuilder) -> relax.Type:
    """(dy, x, …) -> (dx, dgamma, dbeta, …)."""
    attrs, given = read(call), operands_by_name(call)
    op = short(op_name(call))
    checks = NormChecks(op, attrs)
    x = checks.data("x", given["x"])
    for name, arg in given.items():
        if name in ("dy", "y"):
            checks.like(name, arg, "x", x)
        elif name in ("mean", "rstd"):
            checks.statistic(name, arg, x)
        elif name != "x":
            checks.vector(name, arg, x)
    if "y" in given and (not attrs.activation or not ACTIVATIONS[attrs.activation].by_result):
        raise ValueError(f"{op}: activation={attrs.activation!r} takes no y, got one")
    checks.result_vdevice(list(given.values()))
    vector = checks.vectors(x)
    return relax.TupleType([x, vector, vector, *([x] if "y" in given else [])])


class _Values:
    """What the operator and its gradient both need."""

    def __init__(self, bb: Any, call: relax.Call) -> None:
        given = operands_by_name(call)
        self.t = t = Terms(bb, given["x"], read(call))
        self.gamma, self.beta, self.rstd = given["gamma"], given["beta"], given["rstd"]
        self.centred, self.xhat = t.xhat(given["mean"], self.rstd)
        self.z = None
        if t.attrs.activation:
            y = given.get("y")
            affine = t.affine(self.xhat, self.gamma, self.beta) if y is None else t.wide(y)
            self.z = affine
        self.dy = t.wide(given["dy"])
        self.g = self.passed(self.dy)
        self.scale = t.scale(self.gamma, self.rstd)

    def passed(self, value: Any) -> Any:
        return value if self.z is None else self.t.passed(value, self.z)

    def weighed(self, g: Any) -> Any:
        return self.t.weighed(g, self.gamma)

    def projected(self, g: Any, mean: Any, product: Any) -> Any:
        """g - mean - xhat product, of the means of g and of g xhat."""
        t = self.t
        return t.minus(t.minus(g, t.lift(mean)), t.times(self.xhat, t.lift(product)))


def composite(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """FLegalize: the operators that it is made of."""
    v = _Values(bb, call)
    t, count = v.t, v.t.count()
    sums = t.sum(v.g), t.sum(t.times(v.g, v.xhat))
    means = (t.over(t.in_groups(one, v.gamma), count) for one in sums)
    inner = v.projected(v.weighed(v.g), *means)
    dx = t.like_x(t.times(inner, t.lift(v.scale)))
    dbeta, dgamma = map(t.parameter, sums)
    results = [dx, dgamma, dbeta]
    if len(call.args) == 7:
        results.append(t.like_x(v.g))
    return relax.Tuple(results)


def gradient(var: Any, call: relax.Call, ct: Any, ctx: Any) -> list[Any]:
    """The transpose of the derivative, in operators that have gradients themselves.

    With u, p, q, w the cotangents of dx, dgamma, dbeta, dresidual, a = gamma g, s = rstd (where
    one channel has statistics to itself a = g, s = gamma rstd) and means over what shares
    statistics, what is differentiated is

        L = sum(u s (a - mean(a) - xhat mean(a xhat))) + p sum(g xhat) + q sum(g) + sum(w g)

    by a, g and xhat:

        La    = s (u - mean(u) - xhat mean(u xhat))
        Lg    = La (gamma La, where a is gamma g) + p xhat + q + w
        Lxhat = -s (u mean(a xhat) + a mean(u xhat)) + p g

    g depends on dy, and on z where the activation is curved; s, a and xhat on all else.
    """
    v = _Values(ctx, call)
    t, names = v.t, list(operands_by_name(call))
    whole = ctx.lookup_binding(ct) if isinstance(ct, relax.Var) else ct
    fields = whole.fields if isinstance(whole, relax.Tuple) else [
        ctx.emit(relax.TupleGetItem(ct, i)) for i in range(len(call.ty.fields))
    ]  # fmt: skip
    (u, *w), (p, q) = (t.wide(f) for f in (fields[0], *fields[3:])), map(t.column, fields[1:3])
    a = v.weighed(v.g)
    mean_a, product_a = t.mean(a), t.mean(t.times(a, v.xhat))
    mean_u, product_u = t.mean(u), t.mean(t.times(u, v.xhat))
    by_a = t.times(v.projected(u, mean_u, product_u), t.lift(v.scale))
    by_g = t.plus(v.weighed(by_a), t.times(v.xhat, p), q, *w)
    crossed = t.plus(t.times(u, t.lift(product_a)), t.times(a, t.lift(product_u)))
    by_xhat = t.minus(t.times(v.g, p), t.times(crossed, t.lift(v.scale)))
    by_scale = t.shared(t.times(u, v.projected(a, mean_a, product_a)))
    if t.split:
        by_gamma, by_rstd = t.parameter(t.sum(t.times(by_a, v.g))), by_scale
    else:
        by_gamma = t.parameter(t.times(by_scale, v.rstd))
        by_rstd = t.times(by_scale, v.gamma)
    by_beta = None
    if t.act.curved is not None:
        by_z = t.times(by_g, v.dy, t.emit(t.act.curved(v.z, t.attrs.alpha)))
        by_gamma = t.plus(by_gamma, t.parameter(t.sum(t.times(by_z, v.xhat))))
        by_beta = t.parameter(t.sum(by_z))
        by_xhat = t.plus(by_xhat, t.times(by_z, t.column(v.gamma)))
    by_x = t.times(by_xhat, t.lift(v.rstd))
    partials = {
        "dy": t.whole(v.passed(by_g)),
        "x": t.whole(by_x),
        "gamma": by_gamma,
        "beta": by_beta,
        "mean": t.times(t.shared(by_x), t.number(-1)),
        "rstd": t.plus(by_rstd, t.shared(t.times(by_xhat, v.centred))),
        "y": None,
    }
    made = []
    for name, arg in zip(names, call.args, strict=True):
        partial = partials[name]
        made.append(R.zeros_like(arg) if partial is None else R.astype(partial, dtype_of(arg)))
    return made


DEF = opdef.OpDef(
    name=BACKWARD,
    summary="the gradient of batch_norm_train",
    arguments=given_backward("each channel"),
    variadic=True,
    constructor=batch_norm_train_backward,
    rules={
        opdef.INFER_TYPE: infer_type,
        opdef.LEGALIZE: lambda upstream: composite,
        opdef.GRADIENT: gradient,
        opdef.INFER_LAYOUT: follow_rule(BACKWARD),
        opdef.PURITY: True,
        opdef.MIXED_POLICY: opdef.MIXED_NEVER,
    },
)
