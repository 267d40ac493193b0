"""Sums of two tensors become parts of the normalizations beside them, forward and backward.

Of a residual branch, whose sum would be a kernel that reads two tensors and writes one:
- what a normalization gives, behind its activation, is added to the branch by the pass that writes;
- what is normalized next is summed, and written, by the pass that makes the moments;
- backward the sum of two gradients is written by the pass that makes the sums;
- and what comes back by the branch is added to dx by the pass that writes that.
A half sum by way of float32 is such a sum too: that is how it is rounded.

A sum whose operand TVM computes for it alone stays TVM's, which makes both in one kernel; so does
one that is needed before the normalization, or of channels that joins look through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.walk import variables_of
from relay_wgrad.ir import beside, op_name
from relay_wgrad.ops.elementwise import PER_ELEMENT

from ..codegen.lowering import Field, Plan, Site, same_type
from .call import check
from .codegen import NORMS
from .gates import CAST, narrowed

_ADD, _JOINS = "relax.add", ("relax.concat", "relax.split")
Expr = Any


def take_sums(plan: Plan) -> None:
    """Into all calls of a function that go, if there are kernels for it."""
    for var, site in list(plan.sites.items()):
        if site.call.direction in ("forward", "backward") and not plan.function.is_whole(var):
            _behind(plan, var, site)
            _whole(plan, var, site)


def _behind(plan: Plan, var: relax.Var, site: Site) -> None:
    """Into a call the sum of its first result, which nothing else reads, and an earlier tensor."""
    call, view = site.call, plan.function
    known = replace(call, skip=True) if not call.forward else replace(
        call, residual=True, after=call.activation != ""
    )  # fmt: skip
    if (call.forward and call.residual) or not _is_known(known):
        return
    found = [v for index, v in view.fields_of(var) if index == 0]
    if len(found) != 1 or found[0] in plan.dropped:
        return
    at, gone, other = found[0], set[relax.Var](), None
    while other is None or str(at.ty.dtype) != call.dtype:
        user = view.sole_use(at)
        if user is None or not isinstance(at, relax.DataflowVar):
            return
        gone.add(at)
        if op_name(user.value) == _ADD and other is None:
            other = _tensor(view, beside(user.value, at), call.dtype)
        elif op_name(user.value) != CAST and not isinstance(user.value, relax.Var):
            return
        at = user.var
        if other is None and op_name(user.value) == _ADD:
            return
    fits = same_type(other, found[0]) and same_type(at, found[0])
    if not fits or _is_fused(plan, other, {*gone, at}) or not _is_there(plan, other, var):
        return
    if at in plan.renamed or at in plan.dropped:
        return
    site.call = known
    if call.forward:
        site.args = [*site.args[:3], other, *site.args[3:]]
    else:
        site.args = [*site.args, other]
    plan.renamed[at] = (var, 0)
    plan.dropped |= gone


def _whole(plan: Plan, var: relax.Var, site: Site) -> None:
    """Into a call the sum that its first pass reads: x, or dy where no mask is on it before."""
    call, view = site.call, plan.function
    known = replace(call, total=True, summed=not call.forward)
    if (call.summed and not call.forward) or not _is_known(known):
        return
    whole = _tensor(view, site.args[0], call.dtype)
    found = None if whole is None else _parts(plan, whole, call.dtype)
    if found is None or whole in plan.renamed or whole in plan.dropped:
        return
    parts, total, between = found
    if any(_is_fused(plan, part, {total, whole}) for part in parts):
        return
    if not all(_is_there(plan, part, var) for part in parts) or not _may_wait(plan, whole, var):
        return
    types = site.fields or list(view.value[var].ty.fields)
    site.fields = [*types, whole.ty]
    site.call, site.args = known, [*parts, *site.args[1:]]
    plan.renamed[whole] = (var, len(types))
    plan.dropped |= between


def _tensor(view: Graph, expr: Expr, dtype: str) -> Expr:
    """What a tensor is in a dtype but for other names, and for casts of it to float32 and back."""
    found = None if expr is None else narrowed(view, view.resolved(expr), dtype)
    return None if found is None else view.resolved(found)


def _is_known(call: Any) -> bool:
    return bool(check(replace(call, symbol=NORMS.codegen)))


def _parts(
    plan: Plan, whole: relax.Var, dtype: str
) -> tuple[list[Expr], relax.Var, set[relax.Var]] | None:
    """The two tensors that one is the sum of, the sum before it is rounded, and what is between for
    it alone."""
    view, at, between = plan.function, whole, set[relax.Var]()
    if view.block.get(whole) is None:
        return None
    if (cast := view.call(at, CAST)) is not None:
        at = cast.args[0]
    total = view.call(at, _ADD)
    if total is None or not all(isinstance(arg, relax.Var) for arg in total.args):
        return None
    parts = [_tensor(view, arg, dtype) for arg in total.args]
    if not all(part is not None and same_type(part, whole) for part in parts):
        return None
    rest = [at] if at is not whole else []
    while rest:
        one = rest.pop()
        users = {binding.var for binding in view.users_of(one)}
        if isinstance(one, relax.DataflowVar) and users <= {whole, *between}:
            between.add(one)
            rest += [v for v in variables_of(view.value[one]) if view.call(v, CAST) is not None]
    return parts, at, between - set(parts)


def _is_fused(plan: Plan, part: relax.Var, users: set[relax.Var]) -> bool:
    """Whether TVM computes a tensor where it is read, or joins look through it."""
    view = plan.function
    if part in plan.renamed:
        return False
    value = view.value.get(view.resolved(part))
    if isinstance(value, relax.TupleGetItem):
        value = view.value.get(view.resolved(value.tuple_value))
        return op_name(value) in _JOINS
    return op_name(value) in _JOINS or (
        op_name(value) in PER_ELEMENT and _readers(view, part) <= users
    )


def _readers(view: Graph, var: relax.Var) -> set[relax.Var]:
    """What a tensor's users are but for casts and other names of it."""
    found, rest = set[relax.Var](), [var]
    while rest:
        for binding in view.users_of(rest.pop()):
            if isinstance(binding.value, relax.Var) or op_name(binding.value) == CAST:
                rest.append(binding.var)
            else:
                found.add(binding.var)
    return found


def _is_there(plan: Plan, expr: Expr, var: relax.Var) -> bool:
    """Whether a tensor is there when a site's call is written."""
    view, rest = plan.function, [expr]
    while rest:
        one = rest.pop()
        host = plan.renamed[one][0] if one in plan.renamed else one
        value = view.value.get(one)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in plan.fields:
            host = plan.fields[value.tuple_value][0]
        if view.index.get(host, -1) >= view.index[var] or host.same_as(var):
            return False
        if isinstance(value, relax.Var) or op_name(value) == CAST:
            rest += variables_of(value)
    return True


def _may_wait(plan: Plan, whole: relax.Var, var: relax.Var) -> bool:
    """Whether what is made of a tensor before a site's call may come after it."""
    view = plan.function
    if view.block[whole] != view.block[var]:
        return False
    made = {v for v in view.made_of([whole]) if view.index[v] < view.index[var]}
    taken = {*plan.sites, *plan.renamed, *plan.fields, *plan.dropped}
    operands = [arg for arg in plan.sites[var].args[1:] if not isinstance(arg, Field)]
    begin = view.index[whole]
    needed = view.needed_for(operands, lambda one: view.index[one] > begin)
    return not (made & taken or (made | {whole}) & needed)
