"""The partition of a Relax module: backends bound to their options, then function by function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm

from relay_wgrad import registry
from relay_wgrad.graph.walk import functions_in
from relay_wgrad.ir import is_closed

from ..backends.base import Backend
from ..codegen import external
from ..codegen.regions import Region
from ..report import Entry
from ..table import backend_of
from ..tuning.selection import Selection
from .composite import Composites, composite_in, short_name
from .offload import FunctionPartition, family_calls, repro_of
from .products import entries_of, raised, told

TAKEN = "in a function that another pass has taken"


def check_registered() -> None:
    """Raises RuntimeError before `relay_wgrad.register()`."""
    if not registry.is_registered():
        raise RuntimeError("partition: call relay_wgrad.register() first")


def regions_of(mod: tvm.IRModule, backend: str, options: Any) -> list[Region]:
    """What a backend takes of a module, matrix products too, in the order of the program."""
    check_registered()
    chosen, made = bound_backends((backend,), {backend: options}, fuse=True)
    parts, _ = decide(raised(mod, chosen)[0], chosen, made)
    return [taken.region for part in parts.values() for taken in part.taken]


def bound_backends(
    backends: Sequence[str], options: Mapping[str, Any], fuse: bool
) -> tuple[list[Backend], dict[str, Any]]:
    """The backends, bound to their options, and the options by name."""
    if isinstance(backends, str) or not isinstance(backends, Sequence) or not backends:
        raise TypeError(f"partition: backends must be a list of names, got {backends!r}")
    chosen = [backend_of(name) for name in backends]
    for backend in chosen:
        external.register(backend)  # `RunCodegen` finds it, also without `build`
    if not fuse:
        chosen = [replace(b, rows=tuple(r for r in b.rows if not r.epilogue)) for b in chosen]
    for name in options:
        backend_of(name)
        if name not in backends:
            raise ValueError(
                f"partition: options for {name}, which is not among {', '.join(backends)}"
            )
    made_options = {b.name: b.make_options(options.get(b.name)) for b in chosen}
    return [b.with_options(made_options[b.name]) for b in chosen], made_options


def decide(
    mod: tvm.IRModule,
    chosen: Sequence[Backend],
    options: Mapping[str, Any],
    measured: Selection | None = None,
) -> tuple[dict[tvm.ir.GlobalVar, FunctionPartition], list[Entry]]:
    """What is to be partitioned of a module, and the decision on each of its convolutions."""
    made = {gv: composite_in(func) for gv, func in mod.functions_items()}
    parts: dict[tvm.ir.GlobalVar, FunctionPartition] = {}
    entries: list[Entry] = []
    for gv, func in functions_in(mod, by_name=True):
        if made[gv] is not None:
            continue
        name = str(gv.name_hint)
        if is_closed(func):
            entries += [
                Entry(name, "", short_name(call), repro_of(call), reason=TAKEN)
                for call in family_calls(func)
            ]
            continue
        parts[gv] = FunctionPartition(name, func, chosen, options, made, measured)
        entries += parts[gv].entries
    return parts, entries


def partition_relax(
    mod: tvm.IRModule,
    chosen: Sequence[Backend],
    options: Mapping[str, Any],
    measured: Selection | None = None,
    products: bool = False,
) -> tuple[tvm.IRModule, list[Entry]]:
    mod, found = raised(mod, chosen) if products else (mod, [])
    parts, entries = decide(mod, chosen, options, measured)
    composites = Composites({gv.name_hint for gv, _ in mod.functions_items()})
    out = mod.clone()
    for gv, part in parts.items():
        result = part.written(composites)
        if result is not mod[gv]:
            out.update_func(gv, result)
    for var, func in composites.functions.items():
        out.update_func(var, func)
    return told(out, options), entries_of(found, entries, out)
