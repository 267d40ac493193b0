"""A volume's planes some at a time, so that copies of them stay in the level-2 caches.

A slab has some planes of the result.  The planes of the operand that they need wait in a ring, each
at its number modulo the ring's length, so that none is copied twice.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES

from .axes import Axis
from .lines import Lines
from .loops import Expr, bind, int64, serial
from .memory import Activation, Image, Memory


class Slabs:
    """The slabs of all images, one after another, for fprop and dgrad along an axis of depth."""

    def __init__(
        self, memory: Memory, depth: Axis, most: int, operand: Activation, result: Activation
    ) -> None:
        """`most`: bytes of copies."""
        self._memory, self._depth = memory, depth
        self._first, self._last = depth.ends
        bytes_ = [
            math.prod(memory.size(x)) * DTYPE_BYTES[memory.accum] if x.is_copied else 0
            for x in (operand, result)
        ]
        each = depth.scale * bytes_[0] + depth.phases * bytes_[1]
        rest = (self._last - self._first + 1 - depth.scale) * bytes_[0]
        planes = max(1, (most - rest) // max(each, 1))
        # Of each phase; as many in each slab, whose number is then a constant.
        self.count = max(x for x in range(1, planes + 1) if depth.count % x == 0)
        slots = (self.count - 1) * depth.scale + self._last - self._first + 1
        self._x = self._room(operand, slots)
        self._y = self._room(result, self.count * depth.phases)
        self._operand, self._result = operand, result

    def _room(self, wanted: Activation, planes: int) -> Image:
        if not wanted.is_copied:
            return self._memory.in_place(wanted)
        return replace(self._memory.room(wanted, 1, planes), slots=planes)

    @contextlib.contextmanager
    def each(self) -> Iterator[tuple[tuple[Expr, int], tuple[Image, Image], list[Lines]]]:
        """A loop over slabs: (first plane of each phase, their number), the operand, the result,
        and the lines that the next slab reads and this one is to write.

        What a slab needs of the operand is copied in before, its planes of the result out after.
        """
        memory, depth, problem = self._memory, self._depth, self._memory.problem
        size = problem.canonical_shape(self._operand.role)[2]
        count = self.count
        with serial(problem.n) as n, serial(depth.count // count) as number:
            first = bind(number * count)
            tensors = [
                image if wanted.is_copied else replace(image, base=n * image.n_step)
                for wanted, image in ((self._operand, self._x), (self._result, self._y))
            ]
            if self._operand.is_copied:
                begin = bind(T.max(int64(first * depth.scale + self._first), int64(0)))
                begin = bind(T.if_then_else(number == 0, begin, T.max(begin, self._seen(first))))
                end = (first + count - 1) * depth.scale + self._last + 1
                end = bind(T.max(T.min(int64(end), int64(size)), begin))
                memory.move_planes(self._operand, tensors[0], n, (begin, end))
            yield (first, count), (tensors[0], tensors[1]), self._lines(n, number)
            if self._result.is_copied:
                begin = bind(first * depth.phases)
                end = bind(T.min(int64(begin + count * depth.phases), int64(depth.out)))
                memory.move_planes(self._result, tensors[1], n, (begin, end))

    def _seen(self, first: Expr) -> Expr:
        """Planes of the operand that outputs before `first` reach."""
        size = self._memory.problem.canonical_shape(self._operand.role)[2]
        return T.min(int64((first - 1) * self._depth.scale + self._last + 1), int64(size))

    def _lines(self, n: Expr, number: Expr) -> list[Lines]:
        """Of the caller's memory, between which and the copies elements change their places."""
        memory, depth, problem, count = self._memory, self._depth, self._memory.problem, self.count
        found = []
        if Lines.are_apart(memory, self._operand):
            step, planes = memory.strides(self._operand.role), count * depth.scale
            here = n * step["N"] + self._seen((number + 1) * count) * step["D"]
            next_image = T.min(int64(n + 1), int64(problem.n - 1)) * step["N"]
            is_last = number == depth.count // count - 1
            place = bind(T.if_then_else(is_last, int64(next_image), int64(here)))
            found.append(Lines.of(memory, self._operand, place, planes))
        if Lines.are_apart(memory, self._result):
            step, planes = memory.strides(self._result.role), count * depth.phases
            place = bind(n * step["N"] + number * planes * step["D"])
            found.append(Lines.of(memory, self._result, place, planes))
        return found
