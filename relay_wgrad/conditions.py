"""What must hold of sizes that only the run knows: it compares them, and raises ValueError.

Type relations refuse what numbers break, and trust symbolic sizes.  When a call is legalized its
rules are asked again, with sizes whose arithmetic and whose text stand for the run's numbers: what
neither holds nor breaks becomes a condition, and a call's conditions one small kernel before it
(`Conditions.emit`).  So whatever pipeline compiles the call, a library without Python refuses a
window that is larger than its image, in the words of the rule, before memory of a negative size is
asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import ir, relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from .keys import HOST, NO_ALIAS, SCHEDULED, SIZES

_PLACE = re.compile("\0(\\d+)\0")
_DIGITS = 20  # of a size, with its sign


class RunSize:
    """A symbolic size in a rule: an int wherever one comes out; the run fills in its text."""

    def __init__(self, expr: Any, shown: list[Any]) -> None:
        self.expr = expr
        self._shown = shown  # expressions whose numbers the texts have

    def _made(self, expr: Any) -> Any:
        expr = Analyzer().simplify(expr)
        return int(expr.value) if isinstance(expr, tirx.IntImm) else RunSize(expr, self._shown)

    def __add__(self, other: Any) -> Any:
        return self._made(self.expr + tvm_size(other))

    def __radd__(self, other: Any) -> Any:
        return self._made(tvm_size(other) + self.expr)

    def __sub__(self, other: Any) -> Any:
        return self._made(self.expr - tvm_size(other))

    def __rsub__(self, other: Any) -> Any:
        return self._made(tvm_size(other) - self.expr)

    def __mul__(self, other: Any) -> Any:
        return self._made(self.expr * tvm_size(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._made(tirx.floordiv(self.expr, tvm_size(other)))

    def __mod__(self, other: Any) -> Any:
        return self._made(tirx.floormod(self.expr, tvm_size(other)))

    def __str__(self) -> str:
        self._shown.append(self.expr)
        return f"\0{len(self._shown) - 1}\0"

    __repr__ = __str__


def tvm_size(size: Any) -> Any:
    """A size as TVM takes it."""
    return size.expr if isinstance(size, RunSize) else size


class Condition(NamedTuple):
    """What must hold, and the words of the error where it does not; `%lld` for each number."""

    holds: Any
    words: str
    numbers: tuple[Any, ...]


class Conditions:
    """Those of one call: given to its rules, which ask of sizes that are `size`."""

    def __init__(self) -> None:
        self._found: list[Condition] = []
        self._shown: list[Any] = []

    def size(self, expr: Any) -> Any:
        """A size as rules take it: simplified, so that layers of one size ask the same."""
        return expr if isinstance(expr, int) else RunSize(expr, self._shown) + 0

    def equal(self, difference: Any) -> Any:
        return tirx.EQ(difference.expr, tirx.const(0, "int64"))

    def at_least(self, size: Any, low: int) -> Any:
        return tirx.GE(size.expr, tirx.const(low, "int64"))

    def add(self, holds: Any, message: str) -> None:
        """`message`: the error's, with sizes as their text is."""
        numbers: list[Any] = []

        def number(place: re.Match[str]) -> str:
            numbers.append(self._shown[int(place[1])])
            return "%lld"

        words = _PLACE.sub(number, message.replace("%", "%%"))
        self._found.append(Condition(holds, words, tuple(numbers)))

    def emit(self, bb: relax.BlockBuilder, name: str) -> None:
        """Writes the call of the kernel, if there are any; `name`: the operator's.

        TVM takes it for impure, so that no pass removes it for want of a result; `well_formed`,
        which no pipeline asks, would not have it in a dataflow block.
        """
        if self._found:
            bb.emit(self.call(bb, name))

    def call(self, bb: relax.BlockBuilder, name: str) -> relax.Call:
        """The call of the kernel, which goes into the builder's module."""
        func, sizes = check(self._found)
        return bb.normalize(relax.Call(bb.add_func(func, f"sizes_of_{name}"), sizes))


def check(conditions: Sequence[Condition]) -> tuple[tirx.PrimFunc, list[Any]]:
    """A kernel that raises the first error there is, and the sizes that it takes."""
    used: dict[Any, None] = {}
    for condition in conditions:
        for expr in (condition.holds, *condition.numbers):
            used |= dict.fromkeys(tirx.analysis.undefined_vars(expr))
    own = {var: tirx.Var(str(var.name), "int64") for var in used}

    def within(expr: Any) -> Any:
        return structural_map(expr, (tirx.Var, lambda var: own.get(var, var)))

    steps = [
        tirx.IfThenElse(
            tirx.Not(within(condition.holds)),
            _raised(condition.words, list(map(within, condition.numbers))),
            None,
        )
        for condition in conditions
    ]
    func = tirx.PrimFunc(list(own.values()), tirx.SeqStmt(steps) if len(steps) > 1 else steps[0])
    return func.with_attr({SCHEDULED: True, NO_ALIAS: True, HOST: True, SIZES: True}), list(used)


def _raised(words: str, numbers: list[Any]) -> tirx.Stmt:
    """Raises ValueError of these words.

    TVM's own statement for it, AssertStmt, takes no numbers.
    """
    length = len(words.encode()) + _DIGITS * len(numbers) + 1
    text = tirx.Var("text", "handle")
    memory = tirx.call_intrin("handle", "tirx.tvm_stack_alloca", _text("shape"), length // 8 + 1)
    written = [
        tirx.call_extern(
            "int32", "snprintf", text, tirx.const(length, "int64"), _text(words), *numbers
        ),
        tirx.call_extern("int32", "TVMFFIErrorSetRaisedFromCStr", _text("ValueError"), text),
        tirx.tvm_throw_last_error(),
    ]
    return tirx.SeqStmt([tirx.Bind(text, memory), *map(tirx.Evaluate, written)])


def _text(value: str) -> Any:
    return ir.StringImm(value)
