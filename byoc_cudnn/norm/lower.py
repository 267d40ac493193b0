"""Which normalizations of a module go to generated functions, and how they are written then.

Where a backward call is told by y what an activation let through, and the forward call that made y
is here, bits go from one to the other instead.  A sum of two gradients, which is what comes back to
where a residual branches off, is added by the backward call itself.  Where a residual is a
normalization's own result, made for nothing else, one call computes both.  Other sums beside calls
become parts of them (`sums`).  What is joined with others is written into the joined tensor
(`places`), which may grow (`grown`), and rows for products in half are halves (`rounded`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.ops import batch_norm_train, batch_norm_train_backward
from relay_wgrad.ops.train_norm import BACKWARDS, FORWARDS, dtype_of
from relay_wgrad.problem import DTYPE_BYTES

from ..codegen.lowering import DirectEntry, Field, Plan, Site, Symbols, lower, same_type
from ..joins.channels import Channels, is_plain
from .call import BITS, NormCall, check, longest_row
from .codegen import NORMS
from .gates import VECTOR, mask_type, take_gates
from .grown import grow
from .places import take_places
from .pool_fusion import take_pools
from .rounded import take_rounded
from .sums import take_sums

_Y = 6  # the backward operators' operand


def lower_norms(
    mod: tvm.IRModule, arch: int, *, bits: bool = True
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with all normalizations that `check` takes as calls of generated functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).
    bits : whether what passes an activation after a residual, or a gate, goes backward as bits.

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each normalization in program order.
    """
    return lower(mod, NORMS, lambda view: planned(view, bits), arch, in_joins)


def in_joins(func: relax.Function, symbols: Symbols) -> tuple[relax.Function, dict[str, str]]:
    """The function whose normalizations read and write channels of joined tensors, or halves, and
    the symbols of those by the names of their calls' variables; `symbols` are added to."""
    func, grown = grow(func, symbols)
    func, placed = take_places(func, symbols)
    func, rounded = take_rounded(func, symbols)
    return func, grown | placed | rounded


def planned(view: Graph, bits: bool = True) -> Plan:
    """Which calls of a function go, and how."""
    plan = Plan(view)
    for binding in view.bindings:
        value = view.call(binding.var, *FORWARDS, *BACKWARDS)
        if value is not None:
            call = _read(value)
            decision = check(replace(call, symbol=NORMS.codegen))
            if decision:
                plan.sites[binding.var] = Site(call, list(value.args))
            else:
                plan.refused[binding.var] = decision.reason
    take_gates(plan, bits)
    if bits:
        _pass_bits(plan)
    _take_sums(plan)
    take_pools(plan)
    _take_slices(plan)
    if bits:
        for backward, (_, forward) in list(plan.takes.items()):
            call = plan.sites[forward].call
            if call.forward and call.residual:
                _take_others(plan, forward, backward)
    take_sums(plan)
    return plan


def _pass_bits(plan: Plan) -> None:
    """Of backward calls whose y is a forward call's of the same activation, both going."""
    view = plan.function
    for var, site in plan.sites.items():
        item = view.value.get(view.resolved(site.args[_Y])) if site.call.stored else None
        if not isinstance(item, relax.TupleGetItem) or int(item.index) != 0:
            continue
        forward = view.resolved(item.tuple_value)
        made = plan.sites.get(forward)
        if made is None or not made.call.residual or site.call.activation not in BITS:
            continue
        if any(getattr(made.call, n) != getattr(site.call, n) for n in ("activation", "alpha")):
            continue
        if not view.is_whole(forward) and isinstance(forward, relax.DataflowVar):
            made.call, made.extra = (
                replace(made.call, bits=True),
                mask_type(view.value[forward].args[0].ty),
            )
            site.call = replace(site.call, bits=True)
            plan.takes[var] = (_Y, forward)


def _take_sums(plan: Plan) -> None:
    """Into backward calls whose dy is a sum of two tensors, made for nothing else."""
    view = plan.function
    for var, site in plan.sites.items():
        dy = site.args[0]
        total = view.call(dy, "relax.add") if site.call.stored and view.only_use(dy) else None
        if total is not None and all(same_type(arg, dy) for arg in total.args):
            site.call, site.args = replace(site.call, summed=True), [*total.args, *site.args[1:]]
            plan.dropped.add(dy)
            if var in plan.takes:
                place, forward = plan.takes[var]
                plan.takes[var] = (place + 1, forward)


def _take_slices(plan: Plan) -> None:
    """Into backward calls without residual whose dy, made for nothing else, is channels of a tensor
    or the sum of two such; each in whole packs, without which a thread would load single ones."""
    view, channels = plan.function, Channels(plan.function)
    for site in plan.sites.values():
        call, dy = site.call, site.args[0]
        form = channels.form(dy) if isinstance(dy, relax.Var) and view.only_use(dy) else None
        if form is None or len(form) != 1 or not 1 <= len(form[0].sources) <= 2:
            continue
        if call.direction != "backward" or call.stored or is_plain(form, dy):
            continue
        sources, width = form[0].sources, form[0].width
        slices = tuple((s.first, int(s.tensor.ty.shape.values[-1])) for s in sources)
        pack = VECTOR // DTYPE_BYTES[call.dtype]
        sliced = replace(call, slices=slices, summed=len(sources) > 1, residual=False)
        whole = all(n % pack == 0 for n in (width, *(n for pair in slices for n in pair)))
        if whole and check(replace(sliced, symbol=NORMS.codegen)):
            site.call, site.args = sliced, [*(s.tensor for s in sources), *site.args[1:]]
            plan.dropped.add(dy)


def _field_of(view: Graph, expr: Any, index: int) -> Any:
    """The call of whose result a variable is this field; None where it is something else."""
    item: Any = view.value.get(view.resolved(expr))
    good = isinstance(item, relax.TupleGetItem) and int(item.index) == index
    return view.resolved(item.tuple_value) if good else None


def _take_others(plan: Plan, forward: relax.Var, backward: relax.Var) -> None:
    """Into a call with a residual and its gradient those of the normalizations whose sum that is.

    Each is forward a call without activation whose result is used as the one before's residual
    alone, and backward a call whose dy is this residual's gradient, which they alone use.
    """
    view, sites = plan.function, plan.sites
    one, others, residual = sites[forward], list[relax.Var](), sites[forward].args[3]
    while residual is not None:
        other = _field_of(view, residual, 0)
        if other not in sites or not view.only_use(residual):
            return
        call = sites[other].call
        if replace(call, residual=False) != replace(
            one.call, activation="", alpha=0.0, residual=False, bits=False
        ):
            return
        others.append(other)
        residual = sites[other].args[3] if call.residual else None
    if not check(replace(one.call, symbol=NORMS.codegen, others=len(others))):
        return
    gradients = []
    for other in others:
        found = [v for v, site in sites.items() if _is_gradient(view, site, backward, other)]
        if len(found) != 1 or not _is_of(sites[found[0]], sites[other]):
            return
        gradients += found
    passed = {v for index, v in view.fields_of(backward) if index == 3}
    users = {binding.var for binding in view.users_of(*passed, *_names(view, passed))}
    if users - _names(view, passed) != set(gradients) or passed & view.results:
        return
    if sum(_is(f, forward) for _, f in plan.takes.values()) > 1:
        return
    if any(map(view.is_whole, (*others, backward, *gradients))):
        return
    if not any(_used_before(view, other, forward) for other in others):
        _merge(plan, (forward, *others), (backward, *gradients))


def _names(view: Graph, variables: set[relax.Var]) -> set[relax.Var]:
    """Other names of variables."""
    found, rest = set[relax.Var](), list(variables)
    while rest:
        users = view.users_of(rest.pop())
        new = [binding.var for binding in users if isinstance(binding.value, relax.Var)]
        found |= set(new)
        rest += new
    return found


def _is_gradient(view: Graph, site: Site, backward: relax.Var, other: relax.Var) -> bool:
    """Whether a call is backward that of a normalization, of the residual's gradient."""
    if site.call.direction != "backward" or not _is(_field_of(view, site.args[0], 3), backward):
        return False
    return all(_is(_field_of(view, site.args[i], i - 3), other) for i in (4, 5))


def _is_of(back: Site, forward: Site) -> bool:
    """Whether a backward call has a forward one's operands, and nothing before its sums."""
    return all(map(_is, back.args[1:4], forward.args[:3])) and not back.call.stored


def _is(a: Any, b: Any) -> bool:
    return a is not None and bool(a.same_as(b))


def _used_before(view: Graph, call: relax.Var, end: relax.Var) -> bool:
    """Whether a statistic that a call gives is used before a binding."""
    waiting = [var for index, var in view.fields_of(call) if index > 0]
    while waiting:
        for binding in view.users_of(waiting.pop()):
            if view.index[binding.var] < view.index[end]:
                if not isinstance(binding.value, relax.Var):
                    return True
                waiting.append(binding.var)  # another name, which may wait too
    return False


def _merge(plan: Plan, forward: tuple[relax.Var, ...], backward: tuple[relax.Var, ...]) -> None:
    """One call for normalizations that are added, one for their gradients."""
    sites, value = plan.sites, plan.function.value
    all_of = [sites[var] for var in forward]
    one, site, count = all_of[0], sites[backward[0]], len(forward) - 1
    given = [[*each.args[:3], *each.args[3 + each.call.residual :]] for each in all_of]
    own = [list(value[var].ty.fields) for var in forward]
    one.args = [*(arg for g in given for arg in g[:3]), *(arg for g in given for arg in g[3:])]
    one.fields = [
        own[0][0], *(ty for types in own for ty in types[1:3]),
        *(ty for types in own for ty in types[3:]),
    ]  # fmt: skip
    one.call = replace(one.call, others=count)
    for n, var in enumerate(forward):
        running = 3 + 2 * count + 2 * n
        places = {1: 1 + 2 * n, 2: 2 + 2 * n, 3: running, 4: running + 1}
        plan.fields[var] = (forward[0], places if n else {0: 0, **places})
    mask = len(site.args) - 1
    site.args[mask:mask] = [
        arg
        for n, g in enumerate(given[1:], 1)
        for arg in (*g[:2], Field(forward[0], 1 + 2 * n), Field(forward[0], 2 + 2 * n))
    ]
    site.fields = [ty for var in backward for ty in list(value[var].ty.fields)[:3]]
    site.call = replace(site.call, others=count)
    plan.takes[backward[0]] = (len(site.args) - 1, forward[0])
    for n, var in enumerate(backward):
        plan.fields[var] = (backward[0], {i: 3 * n + i for i in range(3)})
    plan.dropped |= {*forward[1:], *backward[1:]}
    for var in (*forward[1:], *backward[1:]):
        del sites[var]


def _read(value: relax.Call) -> NormCall:
    """What a call computes, but for its symbol."""
    forward = op_name(value) in FORWARDS
    home: Any = batch_norm_train if forward else batch_norm_train_backward
    a, given = home.read(value), home.operands_by_name(value)
    x = given["x"]
    last = x.ty.ndim > 0 and a.axis == x.ty.ndim - 1
    sizes, plain = sizes_of(x.ty) or [], "residual" not in given and "y" not in given
    by_row = last and plain and a.groups == 1 and all(n == 1 for n in sizes[1:-1])
    return NormCall(
        symbol="",
        direction="forward" if forward else "backward",
        dtype=dtype_of(x),
        activation=a.activation,
        residual="residual" in given or "y" in given,
        running="running_mean" in given,
        layout="NHWC" if last else f"channels on axis {a.axis} of {x.ty.ndim}",
        alpha=a.alpha,
        grouped=a.groups > 0,
        by_row=by_row and len(sizes) > 2 and _is_short(sizes[-1], dtype_of(x)),
        epsilon=a.epsilon,
        momentum=a.momentum,
        unbiased=a.unbiased,
    )


def _is_short(channels: Any, dtype: str) -> bool:
    return isinstance(channels, int) and channels <= longest_row(dtype)
