"""Memory over time: which results of a function are alive at each of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tvm import relax

from ..graph.walk import bindings_of
from ..ir import bytes_of, op_name

# Their result is their operand's memory under another shape.
_VIEWS = {f"relax.{name}" for name in ("reshape", "expand_dims", "squeeze", "flatten")}


@dataclass(frozen=True)
class Memory:
    """Bytes alive while each step runs, by what they are.

    A step is a call of the function, in program order.  Every result counts from the step that
    makes it to its last use, each in memory of its own; a reshape's is its operand's.  In a
    compiled program some results are never made, because ops are fused, and others share memory.

    `parameters` : the function's arguments, alive all the time; `forward` : results of the forward
    part; `backward` : those of the backward part that are not returned; `returned` : results of the
    function, such as the gradients.
    """

    parameters: int
    forward: list[int]
    backward: list[int]
    returned: list[int]

    @property
    def peak(self) -> int:
        """The most that is alive at once, without the parameters."""
        return max(self.totals, default=0)

    @property
    def totals(self) -> list[int]:
        """The sum for each step, without the parameters."""
        parts = zip(self.forward, self.backward, self.returned, strict=True)
        return [sum(part) for part in parts]


def memory(func: relax.Function, boundary: int) -> Memory:
    """The memory of a function over its steps; the backward part starts with step `boundary`."""
    roots: dict[Any, tuple[Any, ...]] = dict.fromkeys(func.params, ())
    made: dict[Any, int] = {}
    last: dict[Any, int] = {}
    sizes: dict[Any, int] = {}
    step = -1
    for binding in bindings_of(func, branches=False):
        value = binding.value
        used = {root for var in _variables(value) for root in roots.get(var, ())}
        if not isinstance(value, (relax.Call, relax.If)):
            roots[binding.var] = tuple(used)
            continue
        step += 1
        for root in used:
            last[root] = step
        if op_name(value) in _VIEWS:
            roots[binding.var] = tuple(used)
        else:
            roots[binding.var] = (binding.var,)
            made[binding.var] = last[binding.var] = step
            sizes[binding.var] = bytes_of(binding.var.ty)
    returned = {root for var in _variables(func.body.body) for root in roots.get(var, ())}
    changes = [[0] * (step + 2) for _ in range(3)]
    for var, start in made.items():
        part = 2 if var in returned else 0 if start < boundary else 1
        end = step if var in returned else last[var]
        changes[part][start] += sizes[var]
        changes[part][end + 1] -= sizes[var]
    forward, backward, out = (list(accumulate(change))[: step + 1] for change in changes)
    return Memory(sum(bytes_of(param.ty) for param in func.params), forward, backward, out)


def _variables(expr: Any) -> list[Any]:
    return list(relax.analysis.free_vars(expr))
