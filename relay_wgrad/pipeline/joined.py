"""What is joined with others is not kept besides.

A U-Net joins what it has of a level on its way down with what comes up, and the joined tensor is
kept for its convolution's weight gradient.  What came down is part of it, but is kept once more:
the convolution below reads it again for a gradient, long after.  Here who comes after the
joined tensor's last use reads a slice of that, taken at its end, so that meanwhile there is one of
both.  An element-wise reader has the slice in its kernel; for another one it is a copy, so what is
taken is at least a hundredth of the most that is alive, where about as much is alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax

from ..graph.rebuild import Writer, rebuilt, with_functions
from ..graph.walk import Block, variables_of
from ..ir import bytes_of, op_name, tensor_bytes
from .aliases import Parts, all_of, parts_of
from .storages import is_static

_VIEWS = ("relax.reshape",)
# What takes an operand for its sizes: the last one.
_FOR_SIZES = ("relax.grad.avg_pool2d_backward",)
_PACK = 16
_LEAST, _NEAR = 0.01, 0.8  # of the most that is alive


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Joined")
class Joined:
    """For dataflow blocks of operators, before they are legalized."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with slices of joined tensors in the place of what was joined."""
        return joined_once(mod)


def joined_once(mod: tvm.IRModule) -> tvm.IRModule:
    """What `Joined` makes of a module."""
    return with_functions(mod, lambda _, func: rebuilt(func, _sliced))


class Part(NamedTuple):
    """An operand of a concatenation: where it begins, and the places of uses.

    before, end : the last use of the operand that comes no later than the joined tensor's last one,
        and that one.
    """

    operand: relax.Var
    joined: relax.Var
    axis: int
    first: int
    before: int
    end: int


def _sliced(block: Block) -> list[relax.Binding] | None:
    """A block's bindings with slices, or None."""
    if not isinstance(block, relax.DataflowBlock):
        return None
    taken = taken_parts(block)
    return _with_slices(block, taken) if taken else None


def taken_parts(block: relax.DataflowBlock) -> list[Part]:
    """The operands of concatenations that later readers of theirs take from what is joined."""
    bindings = list(block.bindings)
    names = [op_name(binding.value) for binding in bindings]
    if "relax.concat" not in names:
        return []
    tensors = _Alive(bindings)
    taken: list[Part] = []
    sizes = {part: tensor_bytes(part.operand.ty) or 0 for part in _parts(bindings, names, tensors)}
    for part in sorted(sizes, key=lambda part: -sizes[part]):
        alive = tensors.alive()
        most = alive.max()
        between = alive[part.before + 1 : part.end]
        if len(between) and between.max() >= _NEAR * most and sizes[part] >= _LEAST * most:
            tensors.shorten(part)
            taken.append(part)
    return taken


def _parts(bindings: list[Any], names: list[str], tensors: _Alive) -> list[Part]:
    """What is joined and used after the joined tensor's end."""
    uses = tensors.uses
    found = []
    seen: set[Any] = set()
    for i, name in enumerate(names):
        if name != "relax.concat":
            continue
        var, given = bindings[i].var, bindings[i].value.args[0]
        fields = list(given.fields) if isinstance(given, relax.Tuple) else []
        known = [_lengths(field) for field in fields]
        lengths = [length for length in known if length is not None]
        if not isinstance(var, relax.DataflowVar) or not uses.get(var) or None in known:
            continue
        axis = int(bindings[i].value.attrs.axis) % len(var.ty.shape.values)
        end, first = uses[var][-1], 0
        for field, length in zip(fields, lengths, strict=True):
            own = isinstance(field, relax.DataflowVar) and field not in seen
            if axis + 1 == len(length):  # else its readers would not read 16 bytes at once
                own &= first * _element(field) % _PACK == 0
            if own and uses[field][-1] > end and tensors.is_only_its_own(field, end):
                before = max(use for use in uses[field] if use <= end)
                found.append(Part(field, var, axis, first, before, end))
                seen.add(field)
            first += length[axis]
    return found


def _lengths(expr: Any) -> list[int] | None:
    shape = expr.ty.shape if isinstance(expr, relax.Var) else None
    if not isinstance(shape, relax.ShapeExpr) or not is_static(shape):
        return None
    return [int(value) for value in shape.values]


def _element(var: relax.Var) -> int:
    return int(tvm.DataType(str(var.ty.dtype)).itemsize)


class _Alive:
    """When a block's tensors are alive, as if each operator were a kernel."""

    def __init__(self, bindings: list[Any]) -> None:
        self.parts: dict[Any, Parts] = {}
        self.sizes: list[int] = []
        self.lives: list[list[int]] = []
        self.steps = len(bindings)
        self.uses: dict[Any, list[int]] = {}
        self.names: dict[int, list[Any]] = {}
        # What only names a tensor has users of its own.
        self.reads_none = {
            i for i, b in enumerate(bindings)
            if op_name(b.value) in (*_FOR_SIZES, *_VIEWS) or not isinstance(b.value, relax.Call)
        }  # fmt: skip
        for i, binding in enumerate(bindings):
            value = binding.value
            for var in set(variables_of(value)):
                self.uses.setdefault(var, []).append(i)
            read = parts_of(value, self.parts)
            for tensor in all_of(read):
                self.lives[tensor][1] = i
            if isinstance(value, relax.Call) and op_name(value) not in _VIEWS:
                whole = isinstance(binding.var.ty, relax.TupleType)
                types = list(binding.var.ty.fields) if whole else [binding.var.ty]
                numbers = [frozenset([len(self.sizes) + k]) for k in range(len(types))]
                self.sizes += map(bytes_of, types)
                self.lives += [[i, i] for _ in types]
                read = list(numbers) if whole else numbers[0]
            self.parts[binding.var] = read
            for tensor in all_of(read):
                self.names.setdefault(tensor, []).append(binding.var)
            if not isinstance(binding.var, relax.DataflowVar):
                for tensor in all_of(read):
                    self.sizes[tensor] = 0  # it outlives the block

    def alive(self) -> Any:
        """Bytes at each step."""
        change = np.zeros(self.steps + 1, np.int64)
        for size, (first, last) in zip(self.sizes, self.lives, strict=True):
            change[first] += size
            change[last + 1] -= size
        return np.cumsum(change)[:-1]

    def is_only_its_own(self, var: relax.Var, end: int) -> bool:
        """Whether a variable is one tensor of the block's, which after `end` is only used by it."""
        tensors = all_of(self.parts[var])
        if len(tensors) != 1:
            return False
        (tensor,) = tensors
        others = (name for name in self.names[tensor] if not name.same_as(var))
        late = {use for name in others for use in self.uses.get(name, ()) if use > end}
        return self.sizes[tensor] > 0 and late <= self.reads_none

    def shorten(self, part: Part) -> None:
        """Ends an operand where it is no longer needed; from its joined tensor's end on there is
        a slice."""
        (tensor,) = all_of(self.parts[part.operand])
        self.lives.append([part.end, self.lives[tensor][1]])
        self.sizes.append(self.sizes[tensor])
        self.lives[tensor][1] = part.before


def _with_slices(block: relax.DataflowBlock, taken: list[Part]) -> list[relax.Binding]:
    after: dict[int, list[Part]] = {}
    for part in taken:
        after.setdefault(part.end, []).append(part)
    writer, renamed = Writer(block), dict[Any, Any]()
    for i, binding in enumerate(block.bindings):
        writer.keep(binding, renamed)
        for part in after.get(i, ()):
            length = int(part.operand.ty.shape.values[part.axis])
            call = relax.op.strided_slice(
                part.joined, [part.axis], [part.first], [part.first + length]
            )
            renamed[part.operand] = writer.emit(f"{part.operand.name}_again", call)
    return writer.bindings
