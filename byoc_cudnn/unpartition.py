"""The way back: composites inlined, so that TVM's own kernels compute them."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from relay_wgrad.graph.rebuild import rebuilt, variable_of, with_functions
from relay_wgrad.graph.walk import Block
from relay_wgrad.ir import is_closed

from .split.composite import called_composite, composite_in, inline


def unpartition(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with this package's composites inlined: TVM's own kernels compute them.

    Raises TypeError for what is no module.
    """
    if not isinstance(mod, tvm.IRModule):
        raise TypeError(f"unpartition: mod must be an IRModule, got {type(mod).__name__}")
    made = {gv: composite_in(func) for gv, func in mod.functions_items()}
    out = with_functions(
        mod.clone(), lambda _, func: func if is_closed(func) else _inlined(func, made)
    )
    for gv, inner in made.items():
        if inner is not None:
            del out[gv]
    return out


def _inlined(
    func: relax.Function, made: Mapping[tvm.ir.GlobalVar, relax.Function | None]
) -> relax.Function:
    def rewrite(block: Block) -> list[relax.Binding] | None:
        bindings, changed = [], False
        for binding in block.bindings:
            inner = called_composite(binding, made)
            changed |= inner is not None
            bindings += [binding] if inner is None else inline(inner, binding, variable_of(block))
        return bindings if changed else None

    return rebuilt(func, rewrite)
