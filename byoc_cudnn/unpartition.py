"""The way back: composites inlined, so that TVM's own kernels compute them."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from .split.blocks import Block, rewrite_blocks
from .split.composite import called_composite, composite_in, inline, is_closed


def unpartition(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with this package's composites inlined: TVM's own kernels compute them.

    Raises TypeError for what is no module.
    """
    if not isinstance(mod, tvm.IRModule):
        raise TypeError(f"unpartition: mod must be an IRModule, got {type(mod).__name__}")
    made = {gv: composite_in(func) for gv, func in mod.functions_items()}
    out = mod.clone()
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function) and not is_closed(func):
            result = _inlined(func, made)
            if result is not func:
                out.update_func(gv, result)
    for gv, inner in made.items():
        if inner is not None:
            del out[gv]
    return out


def _inlined(
    func: relax.Function, made: Mapping[tvm.ir.GlobalVar, relax.Function | None]
) -> relax.Function:
    def rewrite(block: Block) -> list[relax.Binding] | None:
        var = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
        bindings, changed = [], False
        for binding in block.bindings:
            inner = called_composite(binding, made)
            changed |= inner is not None
            bindings += [binding] if inner is None else inline(inner, binding, var)
        return bindings if changed else None

    return rewrite_blocks(func, rewrite)
