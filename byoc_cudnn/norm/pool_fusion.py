"""A max pooling after a normalization becomes a part of it, forward and backward.

The stem of a ResNet: what the normalization gives is read by the pooling alone, and what it gets
back is made by the pooling's gradient.  So neither is written, and which element each maximum was
goes from forward to backward, in a byte.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.ir import op_name

from ..codegen.lowering import Plan
from ..pool.lower import BACKWARD, CAST, FORWARD, windows_of


def take_pools(plan: Plan) -> None:
    """Into all forward calls without a residual after which a pooling stands alone."""
    for var, site in list(plan.sites.items()):
        alone = not (site.call.residual or site.call.grouped)
        if site.call.forward and alone and not plan.function.is_whole(var):
            _take(plan, var)


def _take(plan: Plan, forward: relax.Var) -> None:
    view = plan.function
    ys = {v for i, v in view.fields_of(forward) if i == 0 and v not in view.results}
    users = view.users_of(*ys)
    casts = {b.var for b in users if op_name(b.value) == CAST}
    wider = view.users_of(*casts)
    pools = [b for b in users if op_name(b.value) == FORWARD]
    backs = [b for b in (*users, *wider) if op_name(b.value) == BACKWARD]
    if len(pools) != 1 or len(backs) != 1 or len(users) + len(wider) != 2 + len(casts):
        return
    (pool,), (back,) = pools, backs
    windows = windows_of(pool.value)
    dy = _source(view, back.value.args[0], str(pool.var.ty.dtype))
    found = _gradient(plan, forward, back.var)
    if found is None or dy is None or windows is None or windows != windows_of(back.value):
        return
    gradient, between = found
    if back.value.args[1] not in ys | casts or not isinstance(pool.var, relax.DataflowVar):
        return
    site, other, types = plan.sites[forward], plan.sites[gradient], view.value[forward].ty.fields
    site.call = replace(site.call, pooled=windows)
    site.fields = [pool.var.ty, *list(types)[1:]]
    site.extra = relax.TensorType(pool.var.ty.shape, "uint8")
    plan.renamed[pool.var] = (forward, 0)
    other.call = replace(other.call, pooled=windows)
    other.args = [dy, dy, *other.args[1:]]  # the second is the index, once it is there
    plan.takes[gradient] = (1, forward)
    plan.dropped |= ys | casts | between | {back.var}


def _source(view: Graph, expr: Any, dtype: str) -> Any:
    """A tensor in a dtype, before a cast if that gives it; None where it is of another."""
    cast = view.call(expr, CAST)
    if str(expr.ty.dtype) != dtype and cast is not None:
        expr = cast.args[0]
    return expr if str(expr.ty.dtype) == dtype else None


def _gradient(
    plan: Plan, forward: relax.Var, pooled: relax.Var
) -> tuple[relax.Var, set[relax.Var]] | None:
    """The backward call of a forward one whose dy a pooling's gradient is, and what is between."""
    view = plan.function
    for var, site in plan.sites.items():
        if site.call.direction != "backward" or site.call.stored:
            continue
        at: Any = site.args[0]
        between: set[relax.Var] = set()
        while isinstance(at, relax.DataflowVar) and view.only_use(at) and not at.same_as(pooled):
            value = view.value[at]
            between.add(at)
            at = value if isinstance(value, relax.Var) else (
                value.args[0] if op_name(value) == CAST else None
            )  # fmt: skip
        operands = view.value[var].args
        told = [v for i, v in view.fields_of(forward)
                if i in (1, 2) and view.resolved(operands[3 + i]).same_as(v)]  # fmt: skip
        if at is not None and at.same_as(pooled) and view.only_use(pooled) and len(told) == 2:
            return var, between
    return None
