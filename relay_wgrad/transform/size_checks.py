"""Checks of a symbolic size that a compiled function makes itself, before anything else.

A check is two bindings.  A call of a PrimFunc of the module gives the size back, or raises
ValueError; and a match_cast compares what it gives with the size, which always holds, by which
dead-code elimination keeps both.  Nothing else takes their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, PrimType, StringImm

Condition = tuple[Any, str]
"""(what must hold of the size, the message where it does not)."""


def check_function(conditions: Any) -> tirx.PrimFunc:
    """The PrimFunc that raises ValueError where one of `conditions(size)` does not hold."""
    size = tirx.Var("size", "int64")
    kind = StringImm("ValueError")
    # TVM 0.27 declares the kind first, and takes the condition first.
    steps: list[Any] = [
        tirx.AssertStmt(condition, kind, [StringImm(message)])
        for condition, message in conditions(size)
    ]
    body = tirx.SeqStmt([*steps, tirx.Return(size)])
    func = tirx.PrimFunc([size], body, ret_type=PrimType("int64"))
    return func.with_attr("tirx.is_host_func", True)


def check_bindings(function: GlobalVar, size: Any) -> list[Any]:
    """The bindings of a check of `size` by a function of the module."""
    builder = relax.BlockBuilder()
    got = relax.DataflowVar("size", PrimType("int64"))
    shape = relax.ShapeType([size])
    call = builder.normalize(relax.Call(function, [size]))
    seen = builder.normalize(relax.ShapeExpr([got]))
    return [
        relax.VarBinding(got, call),
        relax.MatchCast(relax.DataflowVar("checked", shape), seen, shape),
    ]


def with_checks(func: relax.Function, checks: Sequence[tuple[GlobalVar, Any]]) -> relax.Function:
    """`func`, of one dataflow block, with checks before its first binding."""
    if not checks:
        return func
    (block,) = func.body.blocks
    first = [binding for check in checks for binding in check_bindings(*check)]
    body = relax.SeqExpr([relax.DataflowBlock([*first, *block.bindings])], func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def checks_of(func: relax.Function) -> list[tuple[GlobalVar, Any]]:
    """(function, size) of each check in a function."""
    return [
        (binding.value.op, binding.value.args[0])
        for block in func.body.blocks for binding in block.bindings if _is_call(binding)
    ]  # fmt: skip


def without_checks(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """The module with the checks of one function, and their PrimFuncs, left out."""
    func = mod[name]
    checks = checks_of(func)
    if not checks:
        return mod
    (block,) = func.body.blocks
    calls = {binding.var for binding in block.bindings if _is_call(binding)}
    kept = [
        binding for binding in block.bindings
        if binding.var not in calls
        and not calls.intersection(relax.analysis.free_vars(binding.value))
    ]  # fmt: skip
    body = relax.SeqExpr([relax.DataflowBlock(kept)], func.body.body)
    out = mod.clone()
    out[name] = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    for function, _ in checks:
        del out[function]
    return out


def carried(func: relax.Function, made: relax.Function) -> relax.Function:
    """`made`, a function of `func`'s parameters or their like, with `func`'s checks."""
    checks = checks_of(func)
    if not checks:
        return made
    old, new = (relax.analysis.defined_symbolic_vars(f) for f in (func, made))
    renamed = dict(zip(old, new, strict=True))
    kept = {(function.name_hint, size) for function, size in checks_of(made)}
    moved = [(function, renamed[size]) for function, size in checks]
    return with_checks(made, [c for c in moved if (c[0].name_hint, c[1]) not in kept])


def _is_call(binding: Any) -> bool:
    value = binding.value
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, GlobalVar)
        and isinstance(binding.var.ty, PrimType)
    )
