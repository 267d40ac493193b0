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

from typing import Any

import tvm
from tvm import DataType, relax, s_tir, tirx
from tvm.relax.analysis import has_reshape_pattern

from ..graph.def_use import Graph
from ..graph.rebuild import rebuilt, with_functions, with_type
from ..graph.walk import Block, variables_of
from ..ir import is_a, op_name, tensor_bytes
from ..keys import OP_PATTERN

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
            if patterns[var] <= INJECTIVE
            and isinstance(func.body, s_tir.SBlockRealize)
            and has_reshape_pattern(func)
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
    """

    def __init__(
        self, block: Block, graph: Graph, patterns: dict[Any, int], views: set[Any]
    ) -> None:
        self.patterns, self.views, self.graph = patterns, views, graph
        bindings = block.bindings[:]
        self.place = {binding.var: i for i, binding in enumerate(bindings)}
        self.kinds = {b.var: self._kind_of(b.value) for b in bindings}
        self.operands: dict[Any, list[relax.Var]] = {}
        self.bindings = self._early(bindings)
        self.index = {binding.var: i for i, binding in enumerate(self.bindings)}
        self.users = [
            sorted(self.index[u.var] for u in graph.users_of(b.var) if u.var in self.index)
            for b in self.bindings
        ]
        self.kernels: list[list[int]] = [[i] for i in range(len(self.bindings))]
        self.reads: list[Any] = []
        for _ in range(2):  # what operands read is known once it is known which are recomputed
            self.reads = self._reads()
            for i in reversed(range(len(self.bindings))):
                self.kernels[i] = self._kernels(i)

    def _reads(self) -> list[Any]:
        """Of each binding's call the stored tensors that it is made of, in a kernel of its own."""
        reads: list[Any] = []
        for binding in self.bindings:
            found: dict[relax.Var, None] = {}
            for var in self._tensors(binding) if self._kind(binding) <= SUM else ():
                at = self.index.get(var)
                found |= {var: None} if at is None or self.kernels[at] == [at] else reads[at]
            reads.append(
                found if len(found) <= _MOST_READ else dict.fromkeys(self._tensors(binding))
            )
        return reads

    def _kernels(self, i: int) -> list[int]:
        binding, stored = self.bindings[i], [i]
        if not isinstance(binding.var, relax.DataflowVar) or self._kind(binding) > INJECTIVE:
            return stored
        if any(self._kind(self.bindings[user]) > SUM for user in self.users[i]):
            return stored
        found = list(dict.fromkeys(k for user in self.users[i] for k in self.kernels[user]))
        if len(found) == 1:
            far = found[0] - i > _NEAR
            waits = far and _halves(binding.value) and not self._is_kept(binding, found[0])
            return stored if waits else found
        if any(self.kernels[user] == [user] and self._is_view(user) for user in self.users[i]):
            return stored  # what is stored as a view of it is there with it
        return found if 1 < len(found) <= _MOST_COPIES and self._pays(i, found) else stored

    def _is_view(self, i: int) -> bool:
        """Whether a binding is a reshape, which is no kernel where its operand is stored."""
        binding = self.bindings[i]
        return self._kind(binding) <= INJECTIVE and binding.value.args[0] in self.views

    def _early(self, bindings: list[Any]) -> list[Any]:
        """What halves its operand comes right after it, unless others keep that until its own
        place, as of a slice that was put where what is joined ends (`joined`)."""
        index = {binding.var: i for i, binding in enumerate(bindings)}
        place = list(range(len(bindings)))
        for i, binding in enumerate(bindings):
            if self._kind(binding) <= INJECTIVE and _halves(binding.value):
                if self._is_kept(binding, i):
                    continue
                made = [index[v] for v in variables_of(binding.value) if v in index]
                place[i] = max((place[m] for m in made), default=0)
        return [bindings[i] for i in sorted(range(len(bindings)), key=lambda i: (place[i], i))]

    def _is_kept(self, binding: Any, end: int) -> bool:
        """Whether all operands of a call are parameters, or something else reads them about as late
        as at `end`."""
        for var in self._tensors(binding):
            made = self.graph.maker(var)
            if made is None or var in self.graph.results:
                continue
            users = [u for u in self.graph.users_of(var) if not u.var.same_as(binding.var)]
            if all(self.place.get(user.var, -1) < end - _NEAR for user in users):
                return False
        return True

    def _kind(self, binding: Any) -> int:
        return self.kinds[binding.var]

    def _tensors(self, binding: Any) -> list[relax.Var]:
        """A kernel's operands, each once; none of another call."""
        if binding.var not in self.operands:
            call = binding.value
            has_some = is_a(call, relax.Call) and len(call.args) > 1
            self.operands[binding.var] = _tensors(call) if has_some else []
        return self.operands[binding.var]

    def _kind_of(self, call: Any) -> int:
        if op_name(call) != "relax.call_tir" or not is_a(call.ty, relax.TensorType):
            return _NOT_FUSED
        args = call.args[:]
        return self.patterns.get(args[0], _NOT_FUSED) if len(args) == 2 else _NOT_FUSED

    def _pays(self, i: int, kernels: list[int]) -> bool:
        call = self.bindings[i].value
        result = tensor_bytes(call.ty)
        operands = [tensor_bytes(var.ty) for var in self.reads[i]]
        count = _elements(call.ty)
        users = [_elements(self.bindings[u].value.ty) for u in self.users[i]]
        if result is None or None in operands or count is None or None in users:
            return False
        if any(size > 2 * count for size in users if size is not None):
            return False  # it is broadcast: computed for each element of a larger result
        read, more = _total(operands), [self._read_only_for(i, kernel) for kernel in kernels]
        far = more[kernels.index(max(kernels))] > _LARGER * result and max(kernels) - i > _NEAR
        if far and not self._is_kept(self.bindings[i], max(kernels)):
            return False
        return sum(more) <= read + (len(kernels) + 1) * result

    def _read_only_for(self, i: int, kernel: int) -> int:
        """Bytes that a kernel reads to compute binding `i` again, and for nothing else."""
        others: set[relax.Var] = set()
        seen, left = {i, kernel}, [kernel]
        while left:
            for var in self._tensors(self.bindings[left.pop()]):
                at = self.index.get(var)
                if at is None or self.kernels[at] == [at] != [i]:
                    others.add(var)
                elif at not in seen and kernel in self.kernels[at]:
                    seen.add(at)
                    left.append(at)
        return _total([tensor_bytes(var.ty) for var in self.reads[i] if var not in others])

    def rewritten(self) -> list[relax.Binding] | None:
        """The bindings with a copy for each of a binding's kernels; None where each has one."""
        if all(len(kernels) <= 1 for kernels in self.kernels):
            return None
        copies: dict[tuple[int, int], relax.Var] = {}
        bindings = []
        for i, binding in enumerate(self.bindings):
            several = len(self.kernels[i]) > 1
            for kernel in self.kernels[i] or [i]:
                value = self._with_copies(binding.value, kernel, copies)
                if not several and value.same_as(binding.value):
                    bindings.append(binding)
                    continue
                var = binding.var
                if several:
                    var = relax.DataflowVar(var.name, var.ty)
                    copies[i, kernel] = var
                bindings.append(relax.VarBinding(var, value, binding.span))
        return bindings

    def _with_copies(self, value: Any, kernel: int, copies: dict[tuple[int, int], Any]) -> Any:
        """The value as that kernel computes it: a call of kernels, whose operands are variables."""
        given = value.args[:] if is_a(value, relax.Call) else []
        if len(given) != 2 or not is_a(given[1], relax.Tuple):
            return value
        fields = given[1].fields[:]
        operands = [
            copies.get((at, kernel), arg) if (at := self.index.get(arg)) is not None else arg
            for arg in fields
        ]
        if all(a is b for a, b in zip(operands, fields, strict=True)):
            return value
        args = [given[0], relax.Tuple(operands)]
        call = relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
        return with_type(call, value.ty)


def _tensors(call: relax.Call) -> list[relax.Var]:
    """A kernel's operands, each once."""
    return [arg for arg in dict.fromkeys(call.args[1].fields[:]) if is_a(arg, relax.Var)]


def _halves(call: relax.Call) -> bool:
    """Whether a kernel's result is at most half as large as what it reads."""
    result = tensor_bytes(call.ty)
    return result is not None and 2 * result <= _total([tensor_bytes(v.ty) for v in _tensors(call)])


def _elements(ty: relax.TensorType) -> int | None:
    """Of a tensor of known sizes."""
    size = tensor_bytes(ty)
    return None if size is None else size * 8 // int(DataType(str(ty.dtype)).bits)


def _total(sizes: list[int | None]) -> int:
    """Of the sizes that are known."""
    return sum(size for size in sizes if size is not None)
