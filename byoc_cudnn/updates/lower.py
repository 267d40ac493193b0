"""Functions of an update, or of a count, that are marked so, as one call each.

`relay_wgrad.training.whole_step` writes them in Relax's operators and marks them with their rule.
The call writes parameters, state and statistics over.  Relax takes it for a pure one, whose results
are the state's scalars: nothing in the function reads what it writes, before or after, and its
results are the function's, so there is nothing to move it past and no reason to leave it out.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from relay_wgrad import keys
from relay_wgrad.facts import update_rule
from relay_wgrad.layout_rules.in_layout import sizes_of

from ..codegen.lowering import DirectEntry, Symbols, with_source
from .call import COUNT, UpdatesCall, check, numbers_of
from .codegen import UPDATES

_UPDATE = "updates"


def lower_updates(mod: tvm.IRModule, arch: int) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with marked functions as calls of generated ones.

    Parameters
    ----------
    mod : any module.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each marked function; one without a
        symbol stays as it is.
    """
    out, symbols, entries = mod.clone(), Symbols(UPDATES), []
    for var, func in sorted(mod.functions_items(), key=lambda item: str(item[0].name_hint)):
        told, name = update_rule(func), str(var.name_hint)
        if told is None:
            continue
        known = _call(func, told)
        decision = check(known)
        symbol = symbols.of(known) if decision else ""
        entries.append(DirectEntry(name, str(told["rule"]), _UPDATE, symbol, decision.reason))
        if symbol:
            write = _count if known.rule == COUNT else _update
            out.update_func(var, write(func, known, symbol))
    return with_source(out, symbols, arch), tuple(entries)


def _call(func: relax.Function, told: dict[str, Any]) -> UpdatesCall:
    """The call of a marked function, without its symbol."""
    rule, (first, *more) = str(told["rule"]), func.params
    types = list(first.ty.fields)
    if rule != COUNT:
        # Of the state the first is the count of updates.
        gradients, state, old, new = more[:4]
        types += [*gradients.ty.fields, *state.ty.fields[1:], *old.ty.fields, *new.ty.fields]
        types.append(more[-1].ty)
    dtype = "and".join(sorted({str(ty.dtype) for ty in types}))
    if rule == COUNT:
        return UpdatesCall("f", rule, dtype, _counts(first))
    return UpdatesCall(
        "f",
        rule,
        dtype,
        _counts(first),
        _counts(old),
        numbers_of(told),
        tuple(told.get("undecayed", ())),
    )


def _counts(param: relax.Var) -> tuple[int, ...]:
    sizes = [sizes_of(ty) for ty in param.ty.fields]
    known = (s if s is not None and all(isinstance(n, int) for n in s) else [0] for s in sizes)
    return tuple(math.prod(s) for s in known)


def _items(bb: relax.BlockBuilder, whole: relax.Var) -> list[relax.Var]:
    return [bb.emit(relax.TupleGetItem(whole, i)) for i in range(len(whole.ty.fields))]


def _count(func: relax.Function, call: UpdatesCall, symbol: str) -> relax.Function:
    bb, params = relax.BlockBuilder(), [relax.Var(p.name, p.ty) for p in func.params]
    name = str(func.attrs[keys.SYMBOL])
    with bb.function(name, params):
        with bb.dataflow():
            types = [relax.TensorType((call.blocks,), "int32"), relax.TensorType((), "float64")]
            made = relax.call_dps_packed(symbol, _items(bb, params[0]), types)
            found = bb.emit_output(relax.TupleGetItem(bb.emit(made), 1))
        bb.emit_func_output(found)
    return bb.get()[name]


def _update(func: relax.Function, call: UpdatesCall, symbol: str) -> relax.Function:
    bb, params = relax.BlockBuilder(), [relax.Var(p.name, p.ty) for p in func.params]
    name = str(func.attrs[keys.SYMBOL])
    with bb.function(name, params):
        with bb.dataflow():
            trained, gradients, state, old, new = (_items(bb, p) for p in params[:5])
            scalars, slots = state[: call.scalars], state[call.scalars :]
            args = [*trained, *gradients, *slots, *scalars, *old, *new, *params[5:]]
            types = [scalar.ty for scalar in scalars]
            made = bb.emit(relax.call_dps_packed(symbol, args, types if types[1:] else types[0]))
            now = [made] if call.scalars == 1 else _items(bb, made)
            fields = (trained, [*now, *slots], old)
            results = [bb.emit_output(relax.Tuple(field)) for field in fields]
        bb.emit_func_output(relax.Tuple(results))
    return bb.get()[name]
