"""The order of a step's kernels: what frees more memory than it takes comes as soon as it can.

A gradient's graph has its kernels in an order that is right, but takes no heed of memory: of
EfficientNet's all weight gradients come last, so that each layer's gradient waits for its own.
Here a kernel whose result is smaller than the operands that nobody needs after it runs once these
are there, and so do the last two that need an operand; all others stay in their order.  Then those
wait with which more would be alive than in any other place, as long as less memory will do
(`order_within`).  Values are the same, for a dataflow block's kernels write nothing but their
results.

Where the most that is alive shrinks by less than half a hundredth the order stays as it was, in
which kernels that share operands are neighbours.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relax

from ..graph.rebuild import rebuilt, with_functions
from ..graph.walk import Block, variables_of
from ..ir import bytes_of, is_a, op_name
from .aliases import Parts, all_of, parts_of
from .overwrites import Pair, matched, overwrites_of

KERNELS = ("relax.call_tir", "relax.call_dps_packed")
VIEWS = ("relax.reshape",)  # another shape of the same memory, as the memory plan has it
_LEAST, _LESS = 0.995, 0.97


class Step(NamedTuple):
    """A binding: the steps that it needs, the tensors that it reads, and those that it makes.

    over : of what it makes, what it may write in the place of something that it reads.
    """

    needs: frozenset[int]
    reads: frozenset[int]
    makes: tuple[int, ...]
    over: tuple[Pair, ...] = ()


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Order")
class Order:
    """Orders dataflow blocks of kernels; to run once they are fused."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module; blocks that have calls of other kinds are as they were."""
        return with_functions(
            mod, lambda _, func: rebuilt(func, lambda block: _ordered(block, mod))
        )


def _ordered(block: Block, mod: tvm.IRModule) -> list[relax.Binding] | None:
    """A block's bindings in another order, if that is much better."""
    found = steps_of(block, mod) if isinstance(block, relax.DataflowBlock) else None
    if found is None:
        return None
    steps, sizes = found
    order = memory_saving_order(steps, sizes)
    most = most_alive(steps, sizes, order)
    while most and (other := order_within(steps, sizes, order, int(_LESS * most))):
        order, most = other, most_alive(steps, sizes, other)
    if most > _LEAST * most_alive(steps, sizes, range(len(steps))):
        return None
    bindings = block.bindings[:]
    return [bindings[i] for i in order]


def memory_saving_order(steps: Sequence[Step], sizes: Sequence[int]) -> list[int]:
    """An order of steps that are in one that is right: each as it was, or before.

    sizes : of the tensors, in bytes; 0 of those that are not given up.
    """
    users: list[set[int]] = [set() for _ in sizes]
    after: list[list[int]] = [[] for _ in steps]
    for i, step in enumerate(steps):
        for tensor in step.reads:
            users[tensor].add(i)
        for needed in step.needs:
            after[needed].append(i)
    waits = [len(step.needs) for step in steps]
    gains = [-sum(sizes[tensor] for tensor in step.makes) for step in steps]
    order: list[int] = []
    # What can run: the gain, negative, and the steps; what is no longer so may be there too.
    good: list[tuple[int, tuple[int, ...]]] = []
    done = [False] * len(steps)

    def offer(i: int) -> None:
        if not waits[i] and not done[i] and (gains[i] > 0 or not steps[i].makes):
            heapq.heappush(good, (-gains[i], (i,)))

    def offer_both(tensor: int) -> None:
        """Its last two users, of which neither frees it alone."""
        first, then = sorted(users[tensor], key=lambda i: (waits[i], i))
        if waits[first] or waits[then] > (first in steps[then].needs):
            return
        both, reads = {first, then}, steps[first].reads | steps[then].reads
        freed = sum(sizes[each] for each in reads if users[each] <= both)
        gain = freed - sum(sizes[each] for i in both for each in steps[i].makes)
        if gain > 0:
            heapq.heappush(good, (-gain, (first, then)))

    def last_of(tensor: int) -> None:
        if len(users[tensor]) == 1:
            (user,) = users[tensor]
            gains[user] += sizes[tensor]
            offer(user)
        elif len(users[tensor]) == 2 and sizes[tensor]:
            offer_both(tensor)

    def run(i: int) -> None:
        order.append(i)
        done[i] = True
        for tensor in steps[i].reads:
            users[tensor].discard(i)
            last_of(tensor)
        for later in after[i]:
            waits[later] -= 1
            offer(later)
            for tensor in () if waits[later] else steps[later].reads:
                if len(users[tensor]) == 2 and sizes[tensor]:
                    offer_both(tensor)

    for tensor in range(len(sizes)):
        last_of(tensor)
    for i in range(len(steps)):
        while good:
            _, best = heapq.heappop(good)
            if not any(done[each] for each in best):
                for each in best:
                    run(each)
        if not done[i]:
            run(i)
    return order


class _Alive:
    """Bytes that are alive while steps run one after another."""

    def __init__(self, steps: Sequence[Step], sizes: Sequence[int]) -> None:
        self.steps, self.sizes, self.now = steps, sizes, 0
        self.left = Counter(tensor for step in steps for tensor in step.reads)

    def _placed(self, i: int) -> dict[int, int]:
        return matched(self.steps[i].over, lambda made, read: self.left[read] == 1)

    def within(self, i: int) -> int:
        """How many are, while a step runs."""
        placed = self._placed(i) if self.steps[i].over else {}
        return self.now + sum(self.sizes[t] for t in self.steps[i].makes if t not in placed)

    def run(self, i: int) -> int:
        """Runs a step: how many were."""
        step, gone, most = self.steps[i], self._placed(i).values(), self.within(i)
        dead = [t for t in step.reads if self.left[t] == 1 and t not in gone]
        dead += [t for t in step.makes if not self.left[t]]
        self.now = most - sum(self.sizes[tensor] for tensor in dead)
        self.left.subtract(step.reads)
        return most


def order_within(
    steps: Sequence[Step], sizes: Sequence[int], order: Sequence[int], limit: int
) -> list[int] | None:
    """An order that is right, in which steps wait that would make more than a limit of bytes
    alive, until they do not; None where none is left that does not."""
    memory, found, waiting = _Alive(steps, sizes), list[int](), list[int]()
    waits = [len(step.needs) for step in steps]
    after: list[list[int]] = [[] for _ in steps]
    for i, step in enumerate(steps):
        for needed in step.needs:
            after[needed].append(i)

    def taken(i: int) -> bool:
        if waits[i] or (steps[i].makes and memory.within(i) > limit):
            return False
        memory.run(i)
        found.append(i)
        for later in after[i]:
            waits[later] -= 1
        return True

    for i in order:
        if not taken(i):
            waiting.append(i)
            continue
        while waiting and (one := next(filter(taken, waiting), None)) is not None:
            waiting.remove(one)
    return None if waiting else found


def most_alive(steps: Sequence[Step], sizes: Sequence[int], order: Iterable[int]) -> int:
    """Bytes alive at once at most, in an order of the steps."""
    return max(alive_at(steps, sizes, order), default=0)


def alive_at(steps: Sequence[Step], sizes: Sequence[int], order: Iterable[int]) -> list[int]:
    """Bytes alive while each step of an order runs."""
    return list(map(_Alive(steps, sizes).run, order))


def steps_of(block: relax.DataflowBlock, mod: tvm.IRModule) -> tuple[list[Step], list[int]] | None:
    """A block's steps and its tensors' sizes; None if it has other calls than those of kernels."""
    steps: list[Step] = []
    sizes: list[int] = []
    parts: dict[Any, Parts] = {}
    made_by: dict[Any, int] = {}
    casts: frozenset[int] = frozenset()  # that name lengths, which any later step may mention
    bindings = block.bindings[:]
    for i, binding in enumerate(bindings):
        value, first = binding.value, len(sizes)
        made = (made_by.get(var) for var in variables_of(value))
        needs = casts.union(number for number in made if number is not None)
        if is_a(binding, relax.MatchCast):
            casts |= {i}
        reads: frozenset[int] = frozenset()
        if op_name(value) in KERNELS:
            reads = frozenset(t for arg in value.args[:] for t in all_of(parts_of(arg, parts)))
            parts[binding.var] = _new_tensors(binding.var.ty, sizes)
        elif (is_a(value, relax.Call) or is_a(value, relax.If)) and not _is_free(value):
            return None
        else:
            parts[binding.var] = parts_of(value, parts)
        made_by[binding.var] = i
        makes = tuple(range(first, len(sizes)))
        over = _over(value, makes, parts, mod) if makes and reads else ()
        steps.append(Step(needs, reads, makes, over))
    for binding in bindings:
        if not is_a(binding.var, relax.DataflowVar):
            for tensor in all_of(parts[binding.var]):
                sizes[tensor] = 0  # it outlives the block
    return [_of_one_size(step, sizes) for step in steps], sizes


def _over(
    call: relax.Call, makes: Sequence[int], parts: Mapping[Any, Parts], mod: tvm.IRModule
) -> tuple[Pair, ...]:
    """What a kernel's call makes, and what it reads in the place of which that may be written."""
    pairs = overwrites_of(mod, call.args[0])
    if not pairs or not is_a(call.args[1], relax.Tuple):
        return ()
    read = [all_of(parts_of(operand, parts)) for operand in call.args[1].fields[:]]
    times = Counter(tensor for tensors in read for tensor in tensors)
    found = []
    for result, operand in pairs:
        tensors = read[operand]
        tensor = next(iter(tensors), -1)
        if len(tensors) == 1 and times[tensor] == 1:
            found.append((makes[result - len(read)], tensor))
    return tuple(found)


def _of_one_size(step: Step, sizes: Sequence[int]) -> Step:
    """The step without those that do not fit, or that something outlives."""
    fits = (pair for pair in step.over if sizes[pair[0]] == sizes[pair[1]] > 0)
    return step._replace(over=tuple(fits))


def _is_free(value: relax.Call | relax.If) -> bool:
    """Whether it makes no tensor: a view, or what only compares sizes (`conditions`)."""
    ty = value.ty
    return op_name(value) in VIEWS or (isinstance(ty, relax.TupleType) and not ty.fields)


def _new_tensors(ty: Any, sizes: list[int]) -> Parts:
    """New tensors of a type, whose sizes go to the others'; one that only the run knows is 0."""
    if isinstance(ty, relax.TupleType):
        return [_all_made(field, sizes) for field in ty.fields]
    return _all_made(ty, sizes)


def _all_made(ty: Any, sizes: list[int]) -> frozenset[int]:
    first, rest = len(sizes), [ty]
    while rest:
        part = rest.pop()
        if isinstance(part, relax.TupleType):
            rest += part.fields
        else:
            sizes.append(bytes_of(part))
    return frozenset(range(first, len(sizes)))
