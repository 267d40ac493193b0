"""A pass that sums all of a tensor in two steps on CUDA: over rows, then over what is left.

The gradient of a parameter that is one number (a learned scale, PReLU's slope) and a loss over
pixels are sums of everything, for which upstream's rule has one block of threads: one of an H200's
132 multiprocessors reads all of it.  Over rows it is a sum for each column, which has a schedule
for many blocks (`cuda_reduction`) and may be one with what makes the tensor (`made_sums`); one
block then adds a few thousand numbers.  A mean is such a sum and a division.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from ..dtypes import HALVES
from ..graph.rebuild import normal, rebuilt, variable_of, with_functions
from ..graph.walk import Block
from ..ir import op_name
from ..layout_rules.in_layout import sizes_of
from .targets import cuda_target

_SUMS, _MEAN = ("relax.sum", "relax.collapse_sum_to"), "relax.mean"
_DTYPES = ("float32", "float64")  # halves would be rounded in another order
LEAST = 1 << 15  # elements; of fewer one block is done in some microseconds
_COLUMNS = (8, 4096)  # of a row: a pack of halves, and what one block adds


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.whole_sums")
class WholeSums:
    """For operators, before they are legalized."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with such sums in two steps."""
        if cuda_target() is None:
            return mod
        return with_functions(mod, lambda _, func: rebuilt(func, _written))


def _written(block: Block) -> list[relax.Binding] | None:
    rows, variable = [], variable_of(block)

    def emit(name: str, value: relax.Expr) -> relax.Var:
        value = normal(value)
        rows.append(relax.VarBinding(variable(name, value.ty), value))
        return rows[-1].var

    for binding in block.bindings:
        if (view := _view(binding.value)) is None:
            rows.append(binding)
            continue
        x, dtype = binding.value.args[0], str(binding.var.ty.dtype)
        if dtype not in _DTYPES:  # a mean, which is a sum in float32 in any case
            x = emit("wide", relax.op.astype(x, "float32"))
        if [*view] != sizes_of(x.ty):
            x = emit("rows", relax.op.reshape(x, view))
        total: Any = relax.op.sum(emit("columns", relax.op.sum(x, list(range(len(view) - 1)))))
        if op_name(binding.value) == _MEAN:
            total = emit("total", total)
            count = relax.const(math.prod(view), str(total.ty.dtype))
            total = relax.op.divide(total, count)
        if dtype not in _DTYPES:
            total = relax.op.astype(emit("mean", total), dtype)
        if left := sizes_of(binding.var.ty):
            total = relax.op.reshape(emit("total", total), left)
        rows.append(relax.VarBinding(binding.var, normal(total), binding.span))
    return rows if len(rows) > len(block.bindings) else None


def _view(value: Any) -> list[int] | None:
    """The sizes, rows last, of what a value is the sum or mean of; None for another value."""
    name = op_name(value)
    taken = {**dict.fromkeys(_SUMS, _DTYPES), _MEAN: (*_DTYPES, *HALVES)}
    if str(getattr(value.ty, "dtype", "")) not in taken.get(name, ()):
        return None
    sizes, left = sizes_of(value.args[0].ty), sizes_of(value.ty)
    if sizes is None or left is None or not all(isinstance(n, int) for n in (*sizes, *left)):
        return None
    return in_rows([int(n) for n in sizes]) if math.prod(map(int, left)) == 1 else None


def in_rows(sizes: list[int]) -> list[int] | None:
    """A tensor's sizes with rows of eight to some thousand elements as its last axis.

    Those that it has where that is so already; else the fewest of its last axes together that are
    rows, or the largest part of these that is a whole one.  None where there is none, and for few
    elements.
    """
    least, most = _COLUMNS
    if math.prod(sizes) < LEAST:
        return None
    at = len(sizes)
    while at > 0 and math.prod(sizes[at:]) < least:
        at -= 1
    together = math.prod(sizes[at:])
    row = max((d for d in range(least, min(most, together) + 1) if together % d == 0), default=0)
    rest = [*sizes[:at], together // row] if row else []
    rest = rest[:-1] if len(rest) > 1 and rest[-1] == 1 else rest
    return [*rest, row] if math.prod(rest) > 1 else None
