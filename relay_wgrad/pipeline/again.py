"""Kernels that move parameters' elements run again rather than keep what they made.

A step's weights are cast to a half type once, by one kernel for all, and each cast is kept from its
convolution's forward part to its backward part.  What it was made of is there all the time.  So
where that lowers the most that is alive by a fiftieth the kernel runs once more, as soon after the
most is alive as there is room, and what is used on both sides is given up in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax, s_tir, tirx
from tvm_ffi import structural_walk

from .. import keys
from ..graph.rebuild import Writer, rebuilt, substitute, with_functions
from ..graph.walk import Block, variables_of
from ..ir import op_name
from .kernel_order import KERNELS, VIEWS, Step, alive_at, steps_of

_LEAST = 0.98


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Again")
class Again:
    """For dataflow blocks of kernels, once they are ordered."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with such kernels called twice."""

        def changed(_: Any, func: relax.Function) -> relax.Function:
            params = set(func.params[:])
            return rebuilt(func, lambda block: _with_calls(block, params, mod))

        return with_functions(mod, changed)


class _Twice(NamedTuple):
    """A kernel's binding, and before which one it runs again."""

    binding: int
    place: int


def _with_calls(
    block: Block, params: set[relax.Var], mod: tvm.IRModule
) -> list[relax.Binding] | None:
    """A block's bindings with a second call, or None."""
    found = steps_of(block, mod) if isinstance(block, relax.DataflowBlock) else None
    if found is None:
        return None
    bindings = block.bindings[:]
    cheap = [
        i
        for i, binding in enumerate(bindings)
        if op_name(binding.value) in KERNELS
        and isinstance(binding.value.args[1], relax.Tuple)
        and len(binding.value.args[1].fields) > 0
        and all(arg in params for arg in binding.value.args[1].fields)
        and moves(mod, binding.value.args[0])
    ]
    twice = best_twice(*found, cheap)
    return None if twice is None else _written(block, twice)


def moves(mod: tvm.IRModule, callee: Any) -> bool:
    """Whether a kernel takes no longer than its operands and results are read and written once.

    A generated one does that sums nothing, and whose schedule is not its own.
    """
    if isinstance(callee, relax.ExternFunc):
        known = mod.attrs[keys.MOVES] if mod.attrs and keys.MOVES in mod.attrs else ()
        return str(callee.global_symbol) in map(str, known)
    func = mod[callee]
    if not isinstance(func, tirx.PrimFunc) or (func.attrs and keys.SCHEDULED in func.attrs):
        return False
    blocks: list[Any] = []
    structural_walk(func.body, (s_tir.SBlock, blocks.append))
    axes = [axis for block in blocks for axis in block.iter_vars]
    return len(blocks) > 1 and all(axis.iter_type == tirx.IterVar.DataPar for axis in axes)


def best_twice(steps: list[Step], sizes: list[int], cheap: list[int]) -> _Twice | None:
    """Of steps that may run again the one that saves most; None where none saves enough.

    Steps are in their order.
    """
    alive = np.array(alive_at(steps, sizes, range(len(steps))), np.int64)
    if not cheap or not alive.max():
        return None
    least, best = int(_LEAST * alive.max()), None
    uses: list[list[int]] = [[] for _ in sizes]
    for i, step in enumerate(steps):
        for tensor in step.reads:
            uses[tensor].append(i)
    after = int(np.flatnonzero(alive > least)[-1]) + 1
    for i in cheap:
        more = sum(sizes[tensor] for tensor in steps[i].makes)
        room = np.flatnonzero(alive[after:] + more <= least)
        if not len(room):
            continue
        place, now = after + int(room[0]), alive.copy()
        for tensor in steps[i].makes:
            before = [use for use in uses[tensor] if use < place]
            if before and len(before) < len(uses[tensor]):
                now[before[-1] + 1 : place] -= sizes[tensor]
        if now.max() <= least and (best is None or now.max() < best[0]):
            best = int(now.max()), _Twice(i, place)
    return None if best is None else best[1]


def _written(block: relax.DataflowBlock, twice: _Twice) -> list[relax.Binding]:
    """The bindings with the second call, whose results what follows takes."""
    bindings = block.bindings
    # The first call's results, and what only names them, as they are made.
    again = {bindings[twice.binding].var: bindings[twice.binding].value}
    writer, renamed = Writer(block), dict[Any, Any]()
    for i, binding in enumerate(bindings):
        value = binding.value
        is_name = not isinstance(value, relax.Call) or op_name(value) in VIEWS
        if i == twice.place:
            for var, made in again.items():
                renamed[var] = writer.emit(f"{var.name}_again", substitute(made, renamed))
        elif i < twice.place and is_name and any(var in again for var in variables_of(value)):
            again[binding.var] = value
        writer.keep(binding, renamed)
    return writer.bindings
