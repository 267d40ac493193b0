"""The passes that send parts of a program to other compilers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm

from ...keys import COMPILER
from ..ast import Function, IRModule
from ..infer import infer_module
from .annotate_target import annotate_target
from .merge_compiler_regions import merge_compiler_regions
from .merge_composite import merge_composite, rows_of
from .partition_graph import partition_graph
from .passes import INFER_TYPE, Pass, PassInfo, on_functions


def _pass(name: str, change: Callable[[Function, IRModule], Function]) -> Pass:
    """A pass on functions that no other compiler has taken."""
    return Pass(
        on_functions(lambda f, mod, _: f if COMPILER in f.attrs else change(f, mod)),
        PassInfo(name, 0, (INFER_TYPE,)),
    )


def MergeComposite(pattern_table: Sequence[tuple[Any, ...]]) -> Pass:  # noqa: N802
    """What matches a row (name, pattern[, check]) as a function with `Composite=name`.

    Rows are tried in their order, so the large ones come first; `check(call)` gets the last call
    of a match.  Raises TypeError for rows of another form.
    """
    rows = rows_of(pattern_table)
    return _pass("MergeComposite", lambda f, mod: merge_composite(f, rows, mod))


def AnnotateTarget(targets: str | Sequence[str], include_non_call_ops: bool = True) -> Pass:  # noqa: N802
    """Marks around what the compilers take; the first of `targets` that takes a call has it.

    A compiler takes a call of a composite function `<compiler>.<anything>`, and of an operator
    whose attribute `target.<compiler>` (`relay.op.register_op_attr`) is true of the call.
    `include_non_call_ops`: tuples and their fields belong to the compiler of all their operands.
    """
    names = [targets] if isinstance(targets, str) else list(targets)
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"AnnotateTarget: a target is a compiler's name, got {name!r}")
    return _pass(
        "AnnotateTarget", lambda f, mod: annotate_target(f, names, bool(include_non_call_ops))
    )


def MergeCompilerRegions() -> Pass:  # noqa: N802
    """Neighbouring regions of one compiler as one, where nothing else must run in between."""
    return _pass("MergeCompilerRegions", lambda f, mod: merge_compiler_regions(f))


def PartitionGraph(mod_name: str = "default", bind_constants: bool = True) -> Pass:  # noqa: N802
    """Each region of a compiler as a global function with `Compiler`, and no marks any more.

    The functions' names begin with `tvmgen_<mod_name>_`; `bind_constants` puts constant operands
    into them.  A global function of TVM's named `relay.ext.<compiler>.optimize` changes each: it
    takes a module with the function as @main, without its attributes, and gives one.
    """

    def change(mod: IRModule, _: Any) -> IRModule:
        made = infer_module(partition_graph(mod, mod_name, bind_constants))
        optimized = {
            name: function if name in mod.functions else _optimized(name, function)
            for name, function in made.functions.items()
        }
        is_new = any(made.functions[name] is not f for name, f in optimized.items())
        return infer_module(replace(made, functions=optimized)) if is_new else made

    return Pass(change, PassInfo("PartitionGraph", 0, (INFER_TYPE,)))


def _optimized(name: str, function: Function) -> Function:
    """A function for a compiler, as that compiler's own pass makes it."""
    registered = f"relay.ext.{function.attrs[COMPILER]}.optimize"
    optimize = tvm.get_global_func(registered, allow_missing=True)
    if optimize is None:
        return function
    plain = infer_module(IRModule({"main": replace(function, attrs={})}))
    out = optimize(plain)
    made = out["main"] if isinstance(out, IRModule) and "main" in out else None
    if made is None or made.checked_type != function.checked_type:
        raise ValueError(
            f"PartitionGraph: {registered} must give a Relay module with @main of the type"
            f" {function.checked_type}, got {out!r} for @{name}"
        )
    return replace(made, attrs=function.attrs)
