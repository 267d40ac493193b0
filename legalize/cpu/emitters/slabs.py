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
from .loops import Expr, bind, int64, serial
from .memory import Activation, Image, Memory


class Slabs:
    """The slabs of all images, one after another, for fprop and dgrad along an axis of depth."""

    def __init__(
        self, memory: Memory, depth: Axis, operand: Activation, result: Activation
    ) -> None:
        self._memory, self._depth = memory, depth
        self._first, self._last = depth.ends
        bytes_ = [
            math.prod(memory.size(x)) * DTYPE_BYTES[memory.accum] if x.is_copied else 0
            for x in (operand, result)
        ]
        each = depth.scale * bytes_[0] + depth.phases * bytes_[1]
        rest = (self._last - self._first + 1 - depth.scale) * bytes_[0]
        most = max(1, (memory.slab_bytes - rest) // max(each, 1))
        # Of each phase; as many in each slab, whose number is then a constant.
        self.count = max(x for x in range(1, depth.count + 1) if depth.count % x == 0 and x <= most)
        slots = (self.count - 1) * depth.scale + self._last - self._first + 1
        self._x = self._room(operand, slots)
        self._y = self._room(result, self.count * depth.phases)
        self._operand, self._result = operand, result

    def _room(self, wanted: Activation, planes: int) -> Image:
        if not wanted.is_copied:
            return self._memory.in_place(wanted)
        return replace(self._memory.room(wanted, 1, planes), slots=planes)

    @contextlib.contextmanager
    def each(self) -> Iterator[tuple[tuple[Expr, int], tuple[Image, Image]]]:
        """A loop over slabs: (first plane of each phase, their number), the operand, the result.

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
                seen = T.min(int64((first - 1) * depth.scale + self._last + 1), int64(size))
                begin = bind(T.if_then_else(number == 0, begin, T.max(begin, seen)))
                end = (first + count - 1) * depth.scale + self._last + 1
                end = bind(T.max(T.min(int64(end), int64(size)), begin))
                memory.move_planes(self._operand, tensors[0], n, (begin, end))
            yield (first, count), (tensors[0], tensors[1])
            if self._result.is_copied:
                begin = bind(first * depth.phases)
                end = bind(T.min(int64(begin + count * depth.phases), int64(depth.out)))
                memory.move_planes(self._result, tensors[1], n, (begin, end))
