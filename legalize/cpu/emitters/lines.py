"""Lines of the caller's memory that are asked for while sums are computed, before they are copied.

A copy that moves channels to another place reads or writes a line of each of many rows, which no
hardware sees coming, and waits for memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES

from .loops import Expr, bind, ceildiv, int64, prefetch
from .memory import Activation, Memory


@dataclass(frozen=True)
class Lines:
    """Of each of some `runs`, which begin `step` elements apart, `each` lines."""

    buffer: Expr
    begin: Expr
    runs: int
    step: int
    each: int
    line: int

    @property
    def count(self) -> int:
        return self.runs * self.each

    def ask(self, number: Expr) -> None:
        """Asks for one of them."""
        number = bind(T.min(int64(number), int64(self.count - 1)))
        place = number // self.each * self.step + number % self.each * self.line
        prefetch(self.buffer, self.begin + place, level=2)

    @staticmethod
    def are_apart(memory: Memory, wanted: Activation) -> bool:
        """Whether a pixel's channels are copied from lines of their own, or to such ones, a number
        of elements apart that is known: with images between them it may be the call's."""
        is_known = isinstance(memory.strides(wanted.role)["C"], int)
        return wanted.is_copied and is_known and memory.problem.layout(wanted.role).endswith("HW")

    @staticmethod
    def of(memory: Memory, wanted: Activation, begin: Expr, planes: int) -> Lines:
        """Of all channels, from an element of the first one on."""
        *_, height, width = memory.problem.canonical_shape(wanted.role)
        line = memory.line_bytes // DTYPE_BYTES[memory.problem.dtype(wanted.role)]
        channels = memory.problem.canonical_shape(wanted.role)[1]
        each = ceildiv(planes * height * width, line)
        step = memory.strides(wanted.role)["C"]
        return Lines(memory.flat(wanted.role), begin, channels, step, each, line)
