"""Relax modules of one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax


def built(
    params: Sequence[relax.Var], body: Callable[[Callable[[Any], Any]], Any], name: str = "main"
) -> tvm.IRModule:
    """A function of one dataflow block; `body(emit)` gives its result, or a list of results."""
    bb = relax.BlockBuilder()
    with bb.function(name, list(params)):
        with bb.dataflow():
            made = body(bb.emit)
            several = isinstance(made, list)
            outs = [bb.emit_output(one) for one in (made if several else [made])]
        bb.emit_func_output(outs if several else outs[0])
    return bb.get()
