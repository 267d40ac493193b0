"""Where a function has a softmax's gradient: weights (g - sum(g weights)), in the forms that front
ends and gradient rules write it, with the factor and the rounding that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from relay_wgrad.dtypes import HALVES
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.match import number_of
from relay_wgrad.ir import beside, op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.layout_rules.table import RESHAPES

CAST, PRODUCT, QUOTIENT = "relax.astype", "relax.multiply", "relax.divide"
SUM, DIFFERENCE, NEGATIVE, TOTAL = (
    f"relax.{name}" for name in ("sum", "subtract", "negative", "add")
)
Expr = Any


@dataclass(frozen=True)
class Gradient:
    """A softmax's gradient.

    members : the variables of the weights' other uses, which the call is instead of.
    var : of the gradient; given : the weights' gradient, of the same dtype.
    result : what is made of it by a factor, `scale`, and in dtype `dtype`: itself if nothing is.
    wide : whether something else uses it.
    narrow : the same of halves, if there is one.
    """

    members: tuple[relax.Var, ...]
    var: relax.Var
    given: Expr
    result: relax.Var
    scale: float = 1.0
    wide: bool = False
    narrow: Gradient | None = None

    def of(self, dtype: str) -> Gradient | None:
        """The one whose given gradient and result are of a dtype, as the weights are."""
        both = (self, *((self.narrow,) if self.narrow is not None else ()))
        return next((one for one in both if _dtype(one.given) == _dtype(one.result) == dtype), None)


def gradients_of(view: Graph, weights: relax.Var) -> list[Gradient]:
    """All gradients of a softmax's result within a function."""
    found = []
    for binding in view.users_of(weights):
        made = _gradient(view, weights, binding)
        if made is not None:
            found.append(made)
    return found


def _gradient(view: Graph, weights: relax.Var, binding: Any) -> Gradient | None:
    """The one that begins with this product of the weights and their gradient."""
    if op_name(binding.value) != PRODUCT:
        return None
    given = beside(binding.value, weights)
    product, sizes = binding.var, sizes_of(weights.ty)
    if given is None or sizes is None or sizes_of(given.ty) != sizes:
        return None
    users = view.users_of(product)
    sums = [b for b in users if _sums_rows(b.value, len(sizes))]
    if len(sums) != 1 or product in view.results or sums[0].var in view.results:
        return None
    if view.block[sums[0].var] != view.block[product]:
        return None
    last = _less_mean(view, weights, given, product, sums[0].var)
    if last is None:
        return None
    members, var = last
    if {b.var for b in users} - {sums[0].var, *members}:
        return None
    inner = view.resolved(given)
    cast = view.call(inner, CAST)
    half = view.resolved(cast.args[0]) if cast is not None else None
    made = Gradient((product, *members), var, inner, var)
    if half is not None and _dtype(half) in HALVES:
        return replace(made, narrow=_followed(view, replace(made, given=half), _dtype(half)))
    plain = _dtype(inner)
    return _followed(view, made, plain) or made


def _sums_rows(value: Any, rank: int) -> bool:
    if op_name(value) != SUM or not value.attrs.keepdims or value.attrs.axis is None:
        return False
    axes = [int(axis) % rank for axis in value.attrs.axis]
    return axes == [rank - 1]


def _less_mean(
    view: Graph, weights: relax.Var, given: Expr, product: relax.Var, inner: relax.Var
) -> tuple[list[relax.Var], relax.Var] | None:
    """(the weights' uses and what is between, the gradient) behind the sums of a product's rows."""
    use = view.sole_use(inner)
    if use is None:
        return None
    minus = False
    if op_name(use.value) == NEGATIVE:  # product + weights * -sums
        minus, inner = True, use.var
        use = view.sole_use(inner)
        if use is None:
            return None
    name = op_name(use.value)
    if name == DIFFERENCE and not minus and use.value.args[1].same_as(inner):  # (g - sums) weights
        if not view.resolved(use.value.args[0]).same_as(view.resolved(given)):
            return None
        last = view.sole_use(use.var)
        if last is None or op_name(last.value) != PRODUCT:
            return None
        return ([last.var], last.var) if _is(beside(last.value, use.var), weights) else None
    if name == PRODUCT and _is(beside(use.value, inner), weights):  # product - sums weights
        last = view.sole_use(use.var)
        if last is None or op_name(last.value) != (TOTAL if minus else DIFFERENCE):
            return None
        left, right = last.value.args
        good = left.same_as(product) and right.same_as(use.var)
        good = good or (minus and right.same_as(product) and left.same_as(use.var))
        return ([use.var, last.var], last.var) if good else None
    return None


def _is(expr: Expr, weights: relax.Var) -> bool:
    return expr is not None and expr.same_as(weights)


def _followed(view: Graph, made: Gradient, dtype: str) -> Gradient | None:
    """With what follows, up to the last of a dtype; None where nothing is of it.

    What else reads the gradient itself, also in another shape, has the second result.
    """
    best = made if _dtype(made.var) == dtype else None
    at, scale, wide, plain = made.var, 1.0, False, True
    while (found := _next(view, at, dtype, plain)) is not None:
        use, shared = found
        name = op_name(use.value)
        if name in (PRODUCT, QUOTIENT):
            factor = factor_of(use.value)
            if factor is None or sizes_of(use.var.ty) != sizes_of(at.ty):
                break
            scale, plain = scale * factor[1], False
        elif name in RESHAPES:
            if (sizes_of(use.var.ty) or [None])[-1:] != (sizes_of(made.var.ty) or [0])[-1:]:
                break
        elif name == CAST and _dtype(use.var) in (*HALVES, "float32"):
            plain = False
        else:
            break
        at, wide = use.var, wide or shared
        if _dtype(at) == dtype:
            best = replace(made, result=at, scale=scale, wide=wide)
    return best


def _next(view: Graph, at: relax.Var, dtype: str, plain: bool) -> tuple[Any, bool] | None:
    """The use that goes on, and whether there are others: the only one, or of several uses of what
    has nothing but another shape the only cast to a half, else the only reshape."""
    use = None if _kept(view, at) else view.sole_use(at)
    if use is not None or not plain or dtype not in HALVES:
        return None if use is None else (use, False)
    here = [b for b in view.users_of(at) if view.block[b.var] == view.block[at]]
    casts = [b for b in here if op_name(b.value) == CAST and _dtype(b.var) == dtype]
    shapes = [b for b in here if op_name(b.value) in RESHAPES]
    found = casts or shapes
    return (found[0], True) if len(found) == 1 else None


def factor_of(call: relax.Call) -> tuple[Expr, float] | None:
    """What a product or a quotient multiplies by a finite number, and that."""
    numbers = [number_of(arg) for arg in call.args]
    at = 0 if numbers[1] is None and op_name(call) == PRODUCT else 1
    number = numbers[at]
    if number is None or not math.isfinite(number) or number == 0:
        return None
    return call.args[1 - at], 1 / number if op_name(call) == QUOTIENT else number


def _kept(view: Graph, var: relax.Var) -> bool:
    return var in view.results or not isinstance(var, relax.DataflowVar)


def _dtype(expr: Expr) -> str:
    return str(expr.ty.dtype)
