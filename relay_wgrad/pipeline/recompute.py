"""A pass that recomputes what is cheaper to compute again than to read back from memory.

A training graph uses an element-wise result in several kernels: what batch normalization subtracts
in the sum of squares, in the result and twice in the gradient, say.  Fusion gives each of its users
a tensor in memory then, though it was made from another of the same size.  Here each of those
kernels gets a copy of the operation, which fusion makes part of it.  The operations that make a
value stay the same (a compiler for a GPU may contract other pairs of them).

Tensors are counted in bytes.  With s kernels that use it, a result of O bytes from operands of I
bytes costs I + O + s O where it is stored and s I where it is recomputed; an operand that is itself
recomputed counts as what that one reads, and one that a kernel reads anyway counts nothing there.
Of what is stored as a view, as a library's product reads it, the view is free.
Operands live until the last of these kernels, so they may be larger than the result only where that
is near, or reads them anyway.

What is much smaller than its operand, such as the mask of ReLU's gradient, is computed as soon as
the operand is, which then need not be kept; where that is kept anyway, as what the next convolution
reads is until its weights' gradient, it is read again instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import tvm
from tvm import DataType, relax, tirx

from ..graph.def_use import Graph
from ..graph.rebuild import rebuilt, with_functions, with_type
from ..graph.walk import Block, variables_of
from ..ir import is_a, op_name, tensor_bytes
from ..keys import OP_PATTERN
from .reshapes import only_reshapes

# Kinds of kernels, as AnnotateTIROpPattern numbers them.
INJECTIVE, SUM = 2, 3
# Operands of kernels far away may be this much larger than the result.
_LARGER = 1.26  # a mask of bytes beside float32
_NEAR = 64  # bindings
_MOST_COPIES = 8
_MOST_READ = 16  # tensors of which a kernel's operands are made; beyond, operands are counted
_NOT_FUSED = 99


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.recompute")
class Recompute:
    """For kernels that AnnotateTIROpPattern has marked, before FuseOps."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module with copies of operations."""
        marked = {
            var: func
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and func.attrs and OP_PATTERN in func.attrs
        }
        patterns = {var: int(func.attrs[OP_PATTERN]) for var, func in marked.items()}
        views = {
            var
            for var, func in marked.items()
            if patterns[var] <= INJECTIVE and only_reshapes(func)
        }

        def recomputed(_: Any, func: relax.Function) -> relax.Function:
            graph = Graph(func)
            return rebuilt(
                func,
                lambda block: (
                    _Block(block, graph, patterns, views).rewritten()
                    if isinstance(block, relax.DataflowBlock)
                    else None
                ),
            )

        return with_functions(mod, recomputed)


class _Block:
    """Of a dataflow block: each binding's kernels, from the last to the first.

    A binding's kernels are the bindings at whose place it will be computed: its own, if its result
    is stored, else those of its users.

    Variables are numbers here, which are compared in a twentieth of the time: a binding's is its
    place in the order that this finds, and behind those are the variables of others.
    """

    def __init__(
        self, block: Block, graph: Graph, patterns: dict[Any, int], views: set[Any]
    ) -> None:
        self.views, self.graph = views, graph
        self.bindings = block.bindings[:]
        self.count = len(self.bindings)
        self.variables = [binding.var for binding in self.bindings]
        numbers = {var: i for i, var in enumerate(self.variables)}

        def number(var: relax.Var) -> int:
            found = numbers.setdefault(var, len(self.variables))
            if found == len(self.variables):
                self.variables.append(var)
            return found

        self.values = [binding.value for binding in self.bindings]
        self.kinds = [_kind_of(value, patterns) for value in self.values]
        # Of a call of a kernel what it is given, -1 for what is no variable; else nothing.
        self.given = [
            [number(x) if is_a(x, relax.Var) else -1 for x in _given(value)]
            for value in self.values
        ]
        used = [
            set(map(number, variables_of(value))) if kind == _NOT_FUSED or -1 in given
            else set(given)
            for kind, given, value in zip(self.kinds, self.given, self.values, strict=True)
        ]  # fmt: skip
        self.users = _users(used, self.count)
        self.place = list(range(self.count))  # of a binding, as the function has it
        self.bytes = [tensor_bytes(var.ty) for var in self.variables]
        self._order(used)
        self.operands = [
            [] if kind > SUM else [i for i in dict.fromkeys(given) if i >= 0]
            for kind, given in zip(self.kinds, self.given, strict=True)
        ]
        self.kernels: list[list[int]] = [[i] for i in range(self.count)]
        self.reads: list[Any] = []
        for _ in range(2):  # what operands read is known once it is known which are recomputed
            self.reads = self._reads()
            for i in reversed(range(self.count)):
                self.kernels[i] = self._kernels(i)

    def _order(self, used: list[set[int]]) -> None:
        """What halves its operand comes right after it, unless others keep that until its own
        place, as of a slice that was put where what is joined ends (`joined`)."""
        place = list(range(self.count))
        for i in range(self.count):
            if self.kinds[i] <= INJECTIVE and self._halves(i) and not self._is_kept(i, i):
                place[i] = max((place[m] for m in used[i] if m < self.count), default=0)
        order = sorted(range(self.count), key=lambda i: (place[i], i))
        if order == self.place:
            return
        at = list(range(len(self.variables)))
        for new, old in enumerate(order):
            at[old] = new
        of_bindings = self.bindings, self.values, self.kinds, self.given, self.users
        tables: Sequence[list[Any]] = (*of_bindings, self.variables, self.bytes)
        for table in tables:
            table[: self.count] = [table[i] for i in order]
        self.place = order
        self.given = [[at[i] if i >= 0 else i for i in given] for given in self.given]
        self.users = [sorted(at[i] for i in users) for users in self.users]

    def _reads(self) -> list[Any]:
        """Of each binding's call the stored tensors that it is made of, in a kernel of its own."""
        reads: list[Any] = []
        for operands in self.operands:
            found: dict[int, None] = {}
            for i in operands:
                found |= {i: None} if self._is_stored(i) else reads[i]
            reads.append(found if len(found) <= _MOST_READ else dict.fromkeys(operands))
        return reads

    def _is_stored(self, i: int) -> bool:
        """Whether a tensor is there for who reads it: another's, or one that is not recomputed."""
        return i >= self.count or self.kernels[i] == [i]

    def _kernels(self, i: int) -> list[int]:
        stored = [i]
        if self.kinds[i] > INJECTIVE or not is_a(self.variables[i], relax.DataflowVar):
            return stored
        users = self.users[i]
        if any(self.kinds[user] > SUM for user in users):
            return stored
        found = list(dict.fromkeys(k for user in users for k in self.kernels[user]))
        if len(found) == 1:
            far = found[0] - i > _NEAR
            waits = far and self._halves(i) and not self._is_kept(i, found[0])
            return stored if waits else found
        if any(self.kernels[user] == [user] and self._is_view(user) for user in users):
            return stored  # what is stored as a view of it is there with it
        return found if 1 < len(found) <= _MOST_COPIES and self._pays(i, found) else stored

    def _is_view(self, i: int) -> bool:
        """Whether a binding is a reshape, which is no kernel where its operand is stored."""
        return self.kinds[i] <= INJECTIVE and self.values[i].args[0] in self.views

    def _is_kept(self, i: int, end: int) -> bool:
        """Whether all operands of a call are parameters, or something else reads them about as late
        as at `end`."""
        for read in dict.fromkeys(self.given[i]):
            if read < 0:
                continue
            var = self.variables[read]
            is_own = read < self.count
            if not (is_own or self.graph.maker(var)) or var in self.graph.results:
                continue
            if is_own and is_a(var, relax.DataflowVar):
                others = (self.place[user] for user in self.users[read] if user != i)
            else:  # other blocks may read it too, from before this one, as it were
                own = {self.variables[user]: self.place[user] for user in range(self.count)}
                users = (u.var for u in self.graph.users_of(var))
                others = (own.get(u, -1) for u in users if not u.same_as(self.variables[i]))
            if all(place < end - _NEAR for place in others):
                return False
        return True

    def _halves(self, i: int) -> bool:
        """Whether a kernel's result is at most half as large as what it reads."""
        result = self.bytes[i]
        return result is not None and 2 * result <= self._total(
            read for read in dict.fromkeys(self.given[i]) if read >= 0
        )

    def _total(self, tensors: Iterable[int]) -> int:
        """Bytes of those whose sizes are known."""
        return sum(self.bytes[i] or 0 for i in tensors)

    def _elements(self, i: int) -> int | None:
        """Of a binding's tensor of known sizes."""
        size = self.bytes[i]
        return None if size is None else size * 8 // _bits(str(self.variables[i].ty.dtype))

    def _pays(self, i: int, kernels: list[int]) -> bool:
        result, count = self.bytes[i], self._elements(i)
        users = [self._elements(user) for user in self.users[i]]
        if result is None or count is None or None in users:
            return False
        if any(self.bytes[read] is None for read in self.reads[i]):
            return False
        if any(size > 2 * count for size in users if size is not None):
            return False  # it is broadcast: computed for each element of a larger result
        read, more = self._total(self.reads[i]), [self._read_only_for(i, k) for k in kernels]
        far = more[kernels.index(max(kernels))] > _LARGER * result and max(kernels) - i > _NEAR
        if far and not self._is_kept(i, max(kernels)):
            return False
        return sum(more) <= read + (len(kernels) + 1) * result

    def _read_only_for(self, i: int, kernel: int) -> int:
        """Bytes that a kernel reads to compute binding `i` again, and for nothing else."""
        others: set[int] = set()
        seen, left = {i, kernel}, [kernel]
        while left:
            for at in self.operands[left.pop()]:
                if at >= self.count or (at != i and self.kernels[at] == [at]):
                    others.add(at)
                elif at not in seen and kernel in self.kernels[at]:
                    seen.add(at)
                    left.append(at)
        return self._total(read for read in self.reads[i] if read not in others)

    def rewritten(self) -> list[relax.Binding] | None:
        """The bindings with a copy for each of a binding's kernels; None where each has one."""
        if all(len(kernels) <= 1 for kernels in self.kernels):
            return None
        copies: dict[tuple[int, int], relax.Var] = {}
        bindings = []
        for i, binding in enumerate(self.bindings):
            several = len(self.kernels[i]) > 1
            for kernel in self.kernels[i] or [i]:
                value = self._with_copies(i, kernel, copies)
                if not several and value is self.values[i]:
                    bindings.append(binding)
                    continue
                var = self.variables[i]
                if several:
                    var = relax.DataflowVar(var.name, var.ty)
                    copies[i, kernel] = var
                bindings.append(relax.VarBinding(var, value, binding.span))
        return bindings

    def _with_copies(self, i: int, kernel: int, copies: dict[tuple[int, int], Any]) -> Any:
        """The value as that kernel computes it: a call of kernels, whose operands are variables."""
        value, given = self.values[i], self.given[i]
        if not any((at, kernel) in copies for at in given):
            return value
        fields = value.args[1].fields[:]
        operands = [copies.get((at, kernel), x) for at, x in zip(given, fields, strict=True)]
        args = [value.args[0], relax.Tuple(operands)]
        call = relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
        return with_type(call, value.ty)


def _kind_of(value: Any, patterns: dict[Any, int]) -> int:
    if op_name(value) != "relax.call_tir" or not is_a(value.ty, relax.TensorType):
        return _NOT_FUSED
    args = value.args[:]
    return patterns.get(args[0], _NOT_FUSED) if len(args) == 2 else _NOT_FUSED


def _given(value: Any) -> list[Any]:
    """What a call of two arguments, a kernel's, has in the tuple that is the second."""
    args = value.args[:] if is_a(value, relax.Call) else []
    return args[1].fields[:] if len(args) == 2 and is_a(args[1], relax.Tuple) else []


def _users(used: list[set[int]], count: int) -> list[list[int]]:
    """Of each of so many bindings those that use it, in order."""
    users: list[list[int]] = [[] for _ in range(count)]
    for i, variables in enumerate(used):
        for var in variables:
            if var < count:
                users[var].append(i)
    return users


@cache
def _bits(dtype: str) -> int:
    return int(DataType(dtype).bits)
