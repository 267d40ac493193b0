"""One block of memory for functions that are called one after another, and for what they hand on.

A forward part keeps a step's activations for its backward part, each in memory of its own, so that
beside those there were the places of two functions' intermediate results, of which one never needs
any while the other runs, and nothing took the place of what the backward part had read for the last
time: ResNet-50's two parts took a quarter more than the whole step, of which they are a cut.  Here
each function of a chain (`relay_wgrad.facts.Link`) is there a second time, with a plan for all of
them together: results too lie in the one block, at the same place each time.

Who calls those has of a call what it was given until another function of the chain runs: results
that none of them takes are to be copied before, and what one takes is gone when it has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from .. import keys
from ..facts import Link, chain_link
from ..graph.rebuild import with_type
from ..graph.walk import bindings_of, functions_in, result_of
from .aliases import Parts, all_of, parts_of
from .arena import Planned, arena_of, lifetimes, may_alias, placed, places_of
from .packing import packed
from .storages import maker_of, taking

SUFFIX = "_joined"
"""Of the names of the functions that share memory."""
_STORAGES, _NUMBER = f"chain{SUFFIX}", 1 << 20
"""Of what a machine makes once; no number of `KeepStorages`."""


@dataclass
class _Part:
    """A function of a chain, a copy.

    tensors : that get places; a step is a binding of the whole chain.  results : those of them that
        it gives.  last : of each parameter the last step that reads it.  end : the step behind all.
    """

    name: str
    func: relax.Function
    link: Link
    tensors: list[Planned]
    results: list[Planned]
    last: list[int]
    end: int


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Chains")
class Chains:
    """Adds to the functions of a chain those that share memory; to run before `Arena`.

    There are none where a result is no tensor of static size that the function makes: an argument,
    or one that may be any of two.
    """

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module, with the functions of `SUFFIX` if there is a chain."""
        links = {var: link for var, f in functions_in(mod) if (link := chain_link(f)) is not None}
        parts: list[_Part] = []
        for var, link in sorted(links.items(), key=lambda item: item[1].place):
            start = parts[-1].end + 1 if parts else 0
            part = _part(str(var.name_hint), mod, mod[var], link, start)
            if part is None:
                return mod
            parts.append(part)
        return _joined(mod, parts) if parts else mod


def _part(
    name: str, mod: tvm.IRModule, func: relax.Function, link: Link, start: int
) -> _Part | None:
    func = relax.utils.copy_with_new_vars(func)
    tensors = lifetimes(func, mod, results=True)
    places = {tensor.binding.var: i for i, tensor in enumerate(tensors)}
    # Arguments are numbered behind them.
    parts: dict[Any, Parts] = {
        var: frozenset([i]) for i, var in enumerate(func.params, start=len(tensors))
    }
    last = [0] * len(func.params)
    bindings = bindings_of(func)
    for step, binding in enumerate(bindings):
        for i in all_of(parts_of(binding.value, parts)):
            if i >= len(tensors):
                last[i - len(tensors)] = step + start
        at = places.get(binding.var)
        parts[binding.var] = parts_of(binding.value, parts) if at is None else frozenset([at])
    found = [all_of(part) for part in _fields(parts_of(result_of(func.body), parts))]
    if not found or any(len(some) != 1 or max(some) >= len(tensors) for some in found):
        return None
    end = start + len(bindings)
    for tensor in tensors:
        tensor.first, tensor.last = tensor.first + start, tensor.last + start
    results = [tensors[i] for (i,) in found]
    for tensor in results:
        tensor.last = end  # when its caller copies it
    return _Part(name, func, link, tensors, results, last, end)


def _fields(parts: Parts) -> list[Any]:
    return parts if isinstance(parts, list) else []


def _joined(mod: tvm.IRModule, parts: Sequence[_Part]) -> tvm.IRModule:
    for part in parts:
        for take, last in zip(part.link.takes, part.last, strict=True):
            if take is not None:
                made = parts[take[0]].results[take[1]]
                made.last = max(made.last, last)
    tensors = [tensor for part in parts for tensor in part.tensors]
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        return mod
    lives, of_each = places_of(tensors)
    plan = packed(lives)
    arena = arena_of(plan.size, devices.pop())
    rows = [
        row
        for tensor, place in zip(tensors, of_each, strict=True)
        for row in placed(tensor.binding, arena.var, plan.offsets[place])
    ]
    used = [tensor.binding.var for tensor in tensors]
    storages = {tensor.storage for tensor in tensors if tensor.storage is not None}
    made, out = maker_of([arena, *rows], used), may_alias(mod, tensors)
    maker = with_type(tvm.ir.GlobalVar(_STORAGES), made.ty)
    out[maker] = made
    for part in parts:
        mine = [tensor.binding.var for tensor in part.tensors]
        func = taking(part.func, {*mine, *storages}, used, maker, made.ret_ty, _NUMBER)
        name = part.name + SUFFIX
        out[tvm.ir.GlobalVar(name)] = func.with_attr(keys.SYMBOL, name).without_attr(keys.CHAIN)
    return out
