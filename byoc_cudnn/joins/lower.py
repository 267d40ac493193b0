"""Which joins, cuts and sums of a module go to generated functions, and how they are written then.

What is read by something else than joins, cuts and sums is computed where it is bound, of the
tensors that it is made of (`channels`): what lies between is not stored.  Fields of a split that
are needed themselves come from one call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import with_functions, without_unused
from relay_wgrad.ir import bytes_of, is_closed, op_name
from relay_wgrad.pipeline.joined import joined_once

from ..codegen.lowering import DirectEntry, Plan, Site, lower
from .call import JoinsCall, Piece, Term, check
from .channels import Channels, Form, is_plain
from .codegen import JOINS


def lower_joins(mod: tvm.IRModule, arch: int) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with joins, cuts and sums of channels as calls of generated functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each call, and for each join and cut that
        stays, in program order.
    """
    # A cut that only what is unused reads would be computed, and count as something alive.
    used = with_functions(mod, lambda _, func: func if is_closed(func) else without_unused(func))
    # While a join is still one: of a call nobody knows which operand is where in its result.
    return lower(joined_once(used), JOINS, planned, arch)


@dataclass(frozen=True)
class Copy:
    """What is copied along channels: the tensor's name, what is done, the bytes that are read and
    written (0 where sizes are not known; without what may stay where it is), and why TVM does it,
    "" where a kernel of joins does."""

    name: str
    what: str
    bytes: int
    reason: str = ""


def copies(func: relax.Function) -> list[Copy]:
    """The copies of a function in program order.

    func : as it is when joins are lowered, what normalizations and poolings read in place gone.
    """
    view = Graph(without_unused(func))
    plan, found = planned(view), []
    for binding in view.bindings:
        var = binding.var
        if var in plan.sites:
            site = plan.sites[var]
            pieces = [piece for piece in site.call.pieces if not _stays_there(site.call, piece)]
            written = sum(piece.width for piece in pieces)
            moved = written + sum(piece.width * len(piece.terms) for piece in pieces)
            tensor: Any = site.args[0]
            row = bytes_of(tensor.ty) // site.call.channels[0]
            found.append(Copy(str(var.name), _what(site.call), row * moved))
        elif var in plan.refused:
            moved = 2 * bytes_of(var.ty)
            what = "cut" if op_name(binding.value) == "relax.split" else "join"
            found.append(Copy(str(var.name), what, moved, plan.refused[var]))
    return found


def _stays_there(call: JoinsCall, piece: Piece) -> bool:
    """Whether the memory plan lays a result's piece where it is read."""
    over = {operand for _, operand in call.overwrites}
    return len(piece.terms) == 1 and piece.terms[0].operand in over


def _what(call: JoinsCall) -> str:
    parts = max(map(len, call.results))
    words = f"join of {parts} parts" if parts > 1 else "cut"
    terms = max(len(piece.terms) for piece in call.pieces)
    return words if terms < 2 else f"{words}, {terms} added" if parts > 1 else f"{terms} added"


def planned(view: Graph) -> Plan:
    """Which tensors of a function are computed by calls, and of what."""
    plan, channels = Plan(view), Channels(view)
    plan.refused.update(channels.refused)
    stored = _stored(view, channels)
    for binding in view.bindings:
        if channels.has(binding.var) and binding.var not in stored:
            plan.dropped.add(binding.var)
    _place(plan, channels, stored)
    return plan


def _stored(view: Graph, channels: Channels) -> dict[relax.Var, Form | None]:
    """The tensors that must be there, with their forms; None of those that stay as they are."""
    found: dict[relax.Var, Form | None] = {}
    waiting = []
    for binding in view.bindings:
        var = binding.var
        if not channels.has(var):
            continue
        outside = [b for b in view.users_of(var) if not _reads(view, channels, b, var)]
        if var in view.results or outside:
            waiting.append(var)
    while waiting:
        var = waiting.pop()
        if var in found:
            continue
        form = channels.form(var)
        found[var] = None if form is None or _stays(view.value[var], form, var) else form
        needed = (
            _operands(view, var)
            if found[var] is None
            else [source.tensor for some in form or () for source in some.sources]
        )
        waiting += [one for one in needed if channels.has(one)]
    return found


def _stays(value: Any, form: Form, var: relax.Var) -> bool:
    """Whether a tensor is left to TVM: another name, zeros, and what neither joins nor cuts."""
    if isinstance(value, relax.Var) or not any(some.sources for some in form):
        return True
    return op_name(value) in ("relax.add", "relax.astype") and is_plain(form, var)


def _reads(view: Graph, channels: Channels, user: Any, var: relax.Var) -> bool:
    """Whether a binding only stands for channels of a variable, or for those of what it is."""
    if channels.has(user.var):
        return True
    if op_name(user.value) == "relax.split":
        items = view.fields_of(user.var)
        return not view.is_whole(user.var) and all(channels.has(item) for _, item in items)
    return False


def _operands(view: Graph, var: relax.Var) -> list[relax.Var]:
    """The tensors that a binding which stays reads."""
    value = view.value[var]
    if isinstance(value, relax.Var):
        return [value]
    if isinstance(value, relax.TupleGetItem):
        return list(view.value[view.resolved(value.tuple_value)].args)
    return [arg for arg in value.args if isinstance(arg, relax.Var)]


def _place(plan: Plan, channels: Channels, stored: dict[relax.Var, Form | None]) -> None:
    """A call for each tensor that must be there; of a split one for all its fields."""
    view = plan.function
    cuts: dict[relax.Var, dict[int, relax.Var]] = {}
    for var in sorted(stored, key=lambda one: view.index[one]):
        value, form = view.value[var], stored[var]
        if form is not None and isinstance(value, relax.TupleGetItem):
            split = view.resolved(value.tuple_value)
            items = cuts.setdefault(split, {})
            if items.setdefault(int(value.index), var) is not var:  # the field has two names
                plan.sites[var] = _site([var], [form])
        elif form is not None:
            plan.sites[var] = _site([var], [form])
    for split, items in cuts.items():
        order = [items[i] for i in sorted(items)]
        site = _site(order, [stored[var] or () for var in order])
        names = [var for index, var in view.fields_of(split) if index in items]
        if len(order) > 1 and len(names) == len(order) and check(_named(site.call)):
            site.fields = [var.ty for var in order]
            plan.sites[split] = site
            plan.fields[split] = (split, {index: i for i, index in enumerate(sorted(items))})
        else:
            plan.sites |= {var: _site([var], [stored[var] or ()]) for var in order}
    for binding in view.bindings:
        var = binding.var
        if op_name(binding.value) == "relax.split" and var not in plan.sites:
            fields = [item for _, item in view.fields_of(var)]
            gone = all(item in plan.dropped or item in plan.sites for item in fields)
            if fields and gone and not view.is_whole(var):
                plan.dropped.add(var)


def _named(call: JoinsCall) -> JoinsCall:
    return replace(call, symbol=JOINS.codegen)


def _site(results: list[relax.Var], forms: list[Form]) -> Site:
    """The call that computes tensors of their forms."""
    tensors = list(dict.fromkeys(s.tensor for f in forms for some in f for s in some.sources))
    places = {tensor: i for i, tensor in enumerate(tensors)}
    call = JoinsCall(
        symbol="",
        dtype=str(results[0].ty.dtype),
        channels=tuple(int(tensor.ty.shape.values[-1]) for tensor in tensors),
        results=tuple(
            tuple(
                Piece(some.width, tuple(Term(places[s.tensor], s.first) for s in some.sources))
                for some in form
            )
            for form in forms
        ),
    )
    return Site(call, list(tensors))
