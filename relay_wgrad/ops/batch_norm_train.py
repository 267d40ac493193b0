"""`relax.nn.batch_norm_train(x, gamma, beta, …)`: batch normalization by the batch's statistics.

    y = act((x - mean) rstd gamma + beta (+ residual))        rstd = 1 / sqrt(variance + epsilon)

One operator from the training graph to the kernel, with what follows it: a residual that is added
and an activation.  Upstream's `batch_norm` has no gradient but that of its parts, twenty
element-wise operators in float32.  x may be of half precision; what is summed is float32.
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
    FORWARD,
    GIVEN,
    GRADIENT_OF,
    NormAttrs,
    NormChecks,
    Terms,
    call_attrs,
    dtype_of,
    make_call,
    read_attrs,
    short,
)

R = relax.op
OP = "batch_norm_train"
_OTHERS: dict[int, tuple[str, ...]] = {
    3: (),
    4: ("residual",),
    5: ("running_mean", "running_var"),
    6: ("residual", "running_mean", "running_var"),
}
"""How many operands -> what follows x, gamma and beta."""


def batch_norm_train(
    x: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    *others: relax.Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
    activation: str = "",
    alpha: float = 0.0,
    momentum: float = 0.1,
    unbiased: bool = True,
) -> relax.Expr:
    """Batch normalization by the batch's statistics, with what follows it.

    Parameters
    ----------
    x : float tensor of at least 2 axes, C channels on one of them.
    gamma, beta : (C,) in float32 (float64 for x of float64).
    others : nothing, `residual`, `running_mean, running_var`, or all three in this order: a tensor
        of x's shape and dtype, which is added before the activation, and (C,) vectors.
    axis : the channels', from 0.
    epsilon : added to the variance.
    activation : "", "relu", "relu6", "leaky_relu", or without a residual "silu", "gelu",
        "gelu_tanh", "hardswish", "elu".
    alpha : the slope of "leaky_relu" below 0, or what "elu" tends to there, negated; else 0.
    momentum, unbiased : running' = (1 - momentum) running + momentum statistic; of the variance
        n/(n-1) times the population's, if unbiased.

    Returns
    -------
    relax.Expr : a call whose result is the tuple (y, mean, rstd), with running statistics (y, mean,
        rstd, running_mean', running_var'); y is of x's type, all else (C,).

    Raises
    ------
    TypeError, ValueError : for attributes of wrong type here; for values and shapes that do not fit
        when the call's type is inferred.
    RuntimeError : before `relay_wgrad.register()`.
    """
    get_op(FORWARD)
    optional = zip(_OTHERS.get(3 + len(others), ()), others, strict=False)
    operands(OP, x=x, gamma=gamma, beta=beta, **dict(optional))
    given = {"axis": axis, "epsilon": epsilon, "activation": activation, "alpha": alpha,
             "momentum": momentum, "unbiased": unbiased}  # fmt: skip
    return make_call(FORWARD, [x, gamma, beta, *others], read_attrs(FORWARD, given))


# ---- rules, which group normalization shares -----------------------------------------------------


def read(call: relax.Call) -> NormAttrs:
    return call_attrs(call)


def operands_by_name(call: relax.Call) -> dict[str, Any]:
    """The operands by their names.  Raises ValueError for another number of them than there is."""
    name, count = op_name(call), len(call.args)
    others = _OTHERS.get(count)
    if name == FORWARD and others is None:
        raise ValueError(
            f"{OP}: takes 3 to 6 arguments (x, gamma, beta, residual if any, running_mean and"
            f" running_var if any), got {count}"
        )
    if others is None or ("running_mean" in others and name != FORWARD):
        raise ValueError(
            f"{short(name)}: takes 3 or 4 arguments (x, gamma, beta, residual if any), got {count}"
        )
    return dict(zip(("x", "gamma", "beta", *others), call.args, strict=True))


def infer_type(call: relax.Call, ctx: relax.BlockBuilder) -> relax.Type:
    """(x, gamma, beta, …) -> (y, mean, rstd, …)."""
    attrs, given = read(call), operands_by_name(call)
    op = short(op_name(call))
    checks = NormChecks(op, attrs)
    x = checks.data("x", given["x"])
    for name, arg in given.items():
        if name == "residual":
            checks.like(name, arg, "x", x)
        elif name != "x":
            checks.vector(name, arg, x)
    if "residual" in given and not ACTIVATIONS[attrs.activation].by_result:
        raise ValueError(f"{op}: activation={attrs.activation!r} takes no residual, got one")
    if "running_var" in given and attrs.unbiased and checks.count(x) == 1:
        raise ValueError(
            f"{op}: an unbiased variance needs more than one value per channel, got 1: x {x}"
        )
    checks.result_vdevice(list(given.values()))
    statistic = checks.statistics(x)
    return relax.TupleType([x, *[statistic] * (4 if "running_mean" in given else 2)])


def composite(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """FLegalize: the operators that it is made of."""
    attrs, given = read(call), operands_by_name(call)
    t = Terms(bb, given["x"], attrs)
    mean = t.emit(R.mean(t.x, t.axes))
    centred = t.minus(t.x, t.lift(mean))
    variance = t.emit(R.mean(t.times(centred, centred), t.axes))
    rstd = t.over(t.number(1), t.emit(R.sqrt(t.plus(variance, t.number(attrs.epsilon)))))
    z = t.affine(t.times(centred, t.lift(rstd)), given["gamma"], given["beta"])
    if "residual" in given:
        z = t.plus(z, t.wide(given["residual"]))
    results = [t.like_x(t.activated(z)), mean, rstd]
    if "running_mean" in given:
        kept, share = t.number(1 - attrs.momentum), t.number(attrs.momentum)
        results.append(t.plus(t.times(given["running_mean"], kept), t.times(mean, share)))
        if attrs.unbiased:
            share = _unbiased(t)
        results.append(t.plus(t.times(given["running_var"], kept), t.times(variance, share)))
    return relax.Tuple(results)


def _unbiased(t: Terms) -> Any:
    """momentum n/(n-1), of n values: a number where n is one, since a compiler would make and run
    three kernels to find it."""
    values = t.values()
    if values is not None:
        return t.number(t.attrs.momentum * (values / (values - 1)))
    count = t.count()
    return t.times(t.number(t.attrs.momentum), t.over(count, t.minus(count, t.number(1))))


def gradient(var: Any, call: relax.Call, ct: Any, ctx: Any) -> list[Any]:
    """One call of the backward operator, and what comes by the statistics if anything does."""
    attrs, given = read(call), operands_by_name(call)
    whole = ctx.lookup_binding(ct) if isinstance(ct, relax.Var) else ct
    count = len(call.ty.fields)
    cts = (
        list(whole.fields)
        if isinstance(whole, relax.Tuple)
        else [ctx.emit(relax.TupleGetItem(ct, i)) for i in range(count)]
    )
    y, mean, rstd = (ctx.emit(relax.TupleGetItem(var, i)) for i in range(3))
    by_y = "residual" in given and attrs.activation != ""
    args = [cts[0], given["x"], given["gamma"], given["beta"], mean, rstd, *([y] if by_y else [])]
    made = ctx.emit(make_call(GRADIENT_OF[op_name(call)], args, attrs))
    dx, dgamma, dbeta = (ctx.emit(relax.TupleGetItem(made, i)) for i in range(3))
    partials = {"x": dx, "gamma": dgamma, "beta": dbeta}
    if "residual" in given:
        partials["residual"] = ctx.emit(relax.TupleGetItem(made, 3)) if by_y else cts[0]
    if "running_mean" in given:
        kept = relax.const(1 - attrs.momentum, dtype_of(mean))
        partials["running_mean"] = R.multiply(cts[3], kept)
        partials["running_var"] = R.multiply(cts[4], kept)
    flowing = [i for i in range(1, count) if not _is_zero(cts[i], ctx)]
    if flowing:
        more = _by_statistics(Terms(ctx, given["x"], attrs), mean, rstd, cts, flowing)
        partials["x"] = R.add(dx, R.astype(more, dtype_of(dx)))
    return [partials[name] for name in given]


def _by_statistics(t: Terms, mean: Any, rstd: Any, cts: list[Any], flowing: list[int]) -> Any:
    """x's share of the cotangents of mean, rstd and the new running statistics."""
    share, nothing = t.number(t.attrs.momentum), t.number(0)
    by_mean = [cts[1]] if 1 in flowing else []
    by_mean += [t.times(cts[3], share)] if 3 in flowing else []
    cube = t.times(rstd, rstd, rstd, t.number(-0.5))  # of rstd by the variance
    by_variance = [t.times(cts[2], cube)] if 2 in flowing else []
    if 4 in flowing:
        factor = _unbiased(t) if t.attrs.unbiased else share
        by_variance.append(t.times(cts[4], factor))
    count = t.count()
    first = t.over(t.plus(*by_mean), count) if by_mean else nothing
    made = t.times(t.emit(R.ones_like(t.x)), t.lift(first)) if by_mean else None
    if by_variance:
        second = t.over(t.times(t.plus(*by_variance), t.number(2)), count)
        slope = t.times(t.minus(t.x, t.lift(mean)), t.lift(second))
        made = slope if made is None else t.plus(made, slope)
    return None if made is None else t.whole(made)


def _is_zero(ct: Any, ctx: Any) -> bool:
    """Whether the stock pass filled in zeros, where nothing uses a result."""
    value = ctx.lookup_binding(ct) if isinstance(ct, relax.Var) else ct
    return op_name(value) in ("relax.zeros", "relax.zeros_like")


DEF = opdef.OpDef(
    name=FORWARD,
    summary="batch normalization by the batch's statistics, with residual and activation",
    arguments=(
        *GIVEN,
        ("others", "Tensor", "residual; running_mean and running_var; or all three."),
    ),
    variadic=True,
    constructor=batch_norm_train,
    rules={
        opdef.INFER_TYPE: infer_type,
        opdef.LEGALIZE: lambda upstream: composite,
        opdef.GRADIENT: gradient,
        opdef.INFER_LAYOUT: follow_rule(FORWARD),
        opdef.PURITY: True,
        opdef.MIXED_POLICY: opdef.MIXED_NEVER,
    },
)
