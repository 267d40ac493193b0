"""Which layout each tensor of a dataflow block should be stored in.

Convolutions want a layout for each operand and result.  Ops that follow make one group of their
tensors of the highest rank, so groups are all that lies between convolutions; a group gets the
layout that most convolutions want of it.  What is left, tensors beside which others are broadcast
and tensors on the far side of a reshape, is settled by a few sweeps over the block.  Every step is
linear in the block's length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ...graph.rebuild import normal
from ...ir import op_name
from ...layout_rules import table
from ...layout_rules.convs import CONVS, wanted_perms
from ...layout_rules.in_layout import Taken, leaf_types, rank_of
from ...layout_rules.perms import Group as ReshapeGroup
from ...layout_rules.perms import Perm, carried, groups_of, identity, is_identity

# A tensor: a variable, a constant, or (variable, field) of a tuple.
Key = Any
# A value: a tensor, or a list of values for a tuple; None for what is neither.
Value = Any

SWEEPS = 2  # there and back again; more would only matter for reshapes of reshapes of reshapes


@dataclass
class Step:
    """One binding: what it computes, its operands resolved to tensors."""

    kind: str  # conv, follow, reshape, permute, fixed, field, output
    var: relax.Var
    binding: relax.Binding
    call: relax.Call | None = None
    name: str = ""
    args: list[Value] = field(default_factory=list)
    results: list[Key] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)  # operands and results that are tensors
    rank: int = -1  # of the tensors whose layout a `follow` follows
    sizes: tuple[list[Any], list[Any]] = ([], [])  # a reshape's, operand's and result's
    groups: list[ReshapeGroup] = field(default_factory=list)

    @property
    def is_output(self) -> bool:
        return not isinstance(self.var, relax.DataflowVar)


@dataclass(frozen=True, eq=False)
class Plain:
    """What stands in a tuple beside tensors and is none."""

    expr: relax.Expr


@dataclass
class Group:
    """Tensors that share one layout."""

    votes: Counter[Perm] = field(default_factory=Counter)
    weight: bool = False  # a convolution's weight or its gradient is among them
    pinned: bool = False  # among them is one that something takes or makes only as it was
    perm: Perm | None = None


def is_constant(key: Key) -> bool:
    return isinstance(key, tvm.ir.Constant)


def tensors(value: Value) -> Iterator[Key]:
    """The tensors in a value."""
    if isinstance(value, list):
        for item in value:
            yield from tensors(item)
    elif value is not None and not isinstance(value, Plain):
        yield value


class Analysis:
    """The steps of a block and the layout of each of its tensors."""

    def __init__(self, block: relax.DataflowBlock, activation: str, kernel: str) -> None:
        self.activation, self.kernel = activation, kernel
        self.values: dict[relax.Var, Value] = {}  # what a variable only renames
        self.steps: list[Step] = []
        self._ids: dict[Key, int] = {}
        self._parent: list[int] = []
        self._groups: dict[int, Group] = {}
        self._ranks: dict[Key, int | None] = {}
        for binding in block.bindings:
            self._read(binding)
        for step in self.steps:
            self._join(step)
        for group in self._groups.values():
            if group.votes:
                group.perm = group.votes.most_common(1)[0][0]
        for _ in range(SWEEPS):
            self._sweep(self.steps, forward=True)
            self._sweep(reversed(self.steps), forward=False)

    # ---- reading --------------------------------------------------------------------------------

    def resolve(self, expr: relax.Expr) -> Value:
        if isinstance(expr, relax.Var):
            return self.values.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            items = [self.resolve(item) for item in expr.fields]
            if items and all(item is None for item in items):
                return None  # sizes, not tensors
            pairs = zip(items, expr.fields, strict=True)
            return [Plain(field) if item is None else item for item, field in pairs]
        if isinstance(expr, relax.TupleGetItem):
            whole = self.resolve(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, list) else (whole, int(expr.index))
        return expr if is_constant(expr) else None

    def type_of(self, key: Key) -> Any:
        if not isinstance(key, tuple):
            return key.ty
        return self.type_of(key[0]).fields[key[1]]

    def rank(self, key: Key) -> int | None:
        """A tensor's rank; None where unknown, or where it is no tensor."""
        if key not in self._ranks:
            self._ranks[key] = rank_of(self.type_of(key))
        return self._ranks[key]

    def _read(self, binding: relax.Binding) -> None:
        var, value = binding.var, binding.value
        is_output = not isinstance(var, relax.DataflowVar)
        if isinstance(binding, relax.MatchCast) or not isinstance(
            value, relax.Call | relax.Var | relax.Tuple | relax.TupleGetItem
        ):
            self.steps.append(
                Step("fixed", var, binding, args=[self.resolve(value)], results=[var])
            )
        elif isinstance(value, relax.Call):
            self.steps.append(self._read_call(var, binding, value))
        elif is_output:
            self.values[var] = self.resolve(value)  # later uses are of what it stands for
            self.steps.append(Step("output", var, binding, args=[self.values[var]]))
        else:
            self.values[var] = self.resolve(value)
            if isinstance(self.values[var], tuple):
                self.steps.append(Step("field", var, binding, args=[self.values[var]]))

    def _read_call(self, var: relax.Var, binding: relax.Binding, call: relax.Call) -> Step:
        args = [self.resolve(arg) for arg in call.args]
        types = leaf_types(var.ty)
        results = [var] if not isinstance(var.ty, relax.TupleType) else [
            (var, i) for i in range(len(types))
        ]  # fmt: skip
        name = op_name(call)
        step = Step("fixed", var, binding, call, name, args, results)
        step.keys = self._tensor_keys(step)
        if name in CONVS:
            step.kind = "conv"
        elif name in table.FOLLOW:
            ranks = [self.rank(key) for key in step.keys]
            known = [r for r in ranks if r is not None]
            if len(known) == len(ranks) and known:
                step.kind, step.rank = "follow", max(known)
                self._write_tuples_out(step)
        elif name in table.RESHAPES:
            sizes = table.reshape_sizes(call)
            if sizes is not None:
                step.kind, step.sizes, step.groups = "reshape", sizes, groups_of(*sizes)
        elif name == table.PERMUTE and self.rank(args[0]) is not None:
            step.kind = "permute"
        return step

    def _write_tuples_out(self, step: Step) -> None:
        """Tuples as tuples of tensors, where an argument is a variable that stands for one."""
        assert step.call is not None
        args = list(step.call.args)
        for i, arg in enumerate(args):
            if isinstance(arg, relax.Var) and isinstance(arg.ty, relax.TupleType):
                args[i] = relax.Tuple([relax.Var("field", ty) for ty in arg.ty.fields])
                if not isinstance(step.args[i], list):
                    step.args[i] = [(step.args[i], n) for n in range(len(arg.ty.fields))]
                    step.keys = self._tensor_keys(step)
        if not all(a.same_as(b) for a, b in zip(args, step.call.args, strict=True)):
            call = relax.Call(step.call.op, args, step.call.attrs)
            step.call = normal(call)

    def _tensor_keys(self, step: Step) -> list[Key]:
        keys = [key for arg in step.args for key in tensors(arg)] + step.results
        return [key for key in keys if isinstance(self.type_of(key), relax.TensorType)]

    # ---- groups ---------------------------------------------------------------------------------

    def _root(self, key: Key) -> int:
        # Numbers, since two handles of one variable are equal without being the same object.
        start = self._ids.setdefault(key, len(self._ids))
        if start == len(self._parent):
            self._parent.append(start)
            self._groups[start] = Group()
        root = start
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[start] != root:
            self._parent[start], start = root, self._parent[start]
        return root

    def group(self, key: Key) -> Group:
        return self._groups[self._root(key)]

    def _union(self, keys: list[Key]) -> None:
        keys = [key for key in keys if not is_constant(key)]
        for key in keys[1:]:
            a, b = self._root(keys[0]), self._root(key)
            if a != b:
                kept, gone = self._groups[a], self._groups.pop(b)
                self._parent[b] = a
                kept.votes += gone.votes
                kept.weight |= gone.weight
                kept.pinned |= gone.pinned

    def _join(self, step: Step) -> None:
        if step.kind == "conv":
            assert step.call is not None
            perms = wanted_perms(step.name, step.call, self.activation, self.kernel)
            keys = [step.args[0], step.args[1], step.results[0]]
            if perms is None or any(self.rank(key) != CONVS[step.name].rank + 2 for key in keys):
                step.kind = "fixed"
            else:
                for key, perm, weight in zip(keys, perms, CONVS[step.name].weights, strict=True):
                    self.group(key).votes[perm] += 1
                    self.group(key).weight |= weight
        elif step.kind == "follow":
            self._union([key for key in step.keys if self.rank(key) == step.rank])
        if step.kind in ("fixed", "output"):
            for key in step.keys or self._tensor_keys(step):
                self.group(key).pinned = True

    # ---- layouts --------------------------------------------------------------------------------

    def settled(self, key: Key) -> Perm | None:
        return None if is_constant(key) else self.group(key).perm

    def layout(self, key: Key) -> Perm:
        """The layout in which a tensor is made."""
        return self.settled(key) or identity(self.rank(key) or 0)

    def principal(self, step: Step) -> Perm:
        """The layout of the tensors that an op which follows has in common."""
        for key in step.keys:
            if self.rank(key) == step.rank and not is_constant(key):
                return self.layout(key)
        return identity(step.rank)

    def _settle(self, key: Key, perm: Perm | None) -> None:
        if perm is None or len(perm) < 2 or is_constant(key):
            return
        group = self.group(key)
        if group.perm is None and not group.pinned and not is_identity(perm):
            group.perm = perm

    def _sweep(self, steps: Iterable[Step], forward: bool) -> None:
        for step in steps:
            if step.kind == "reshape":
                self._through_reshape(step, forward)
            elif step.kind == "follow":
                self._beside(step, forward)

    def _through_reshape(self, step: Step, forward: bool) -> None:
        src, dst = step.args[0], step.results[0]
        known, other = (src, dst) if forward else (dst, src)
        perm = self.settled(known)
        if perm is None or self.settled(other) is not None:
            return
        self._settle(other, self.across(step, perm, 0 if forward else 1))

    def across(self, step: Step, perm: Perm, side: int) -> Perm | None:
        """`carried` for a reshape: the other side's layout from `side`'s."""
        other = step.results[0] if side == 0 else step.args[0]
        hint = self.settled(other)
        if hint is None and len(step.sizes[0]) == len(step.sizes[1]):
            hint = perm
        return carried(step.groups, side, perm, step.sizes[1 - side], hint)

    def _beside(self, step: Step, forward: bool) -> None:
        """Tensors of lower rank than those that an op follows."""
        lower = [
            key for key in step.keys
            if 2 <= (self.rank(key) or 0) < step.rank and self.settled(key) is None
        ]  # fmt: skip
        if not lower:
            return
        perm = self.principal(step)
        if is_identity(perm):
            return
        assert step.call is not None
        moved = table.call_in_layout(step.name, step.call, perm)
        if moved is None:
            return
        if forward:
            for key, made in zip(step.results, moved.outputs, strict=True):
                self._settle(key, made)
        else:
            for arg, taken in zip(step.args, moved.inputs, strict=True):
                if isinstance(taken, Taken) and arg is not None:
                    self._settle(arg, taken.perm)
