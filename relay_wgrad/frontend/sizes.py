"""Sizes of a graph whose batch is open: one compiled step takes any number of images.

In a function such a size is an expression of one variable, the batch N; a specification of inputs
has `Open` in its place.  All sizes of a graph are numbers or multiples of N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import PrimType
from tvm.sym import Analyzer

from ..relation import as_size
from ..transform.size_checks import with_check

NAME = "N"
"""What an open batch is called, in shapes and as the option that asks for one."""


@dataclass(frozen=True)
class Open:
    """A size that follows the batch: so many times N."""

    times: int = 1

    def __repr__(self) -> str:
        return NAME if self.times == 1 else f"{self.times}{NAME}"

    def at(self, batch: int) -> int:
        """The number, for a batch."""
        return self.times * batch


Size = int | Open
_SMALL = 16


@dataclass(frozen=True)
class Limits:
    """The batches that a graph of an open one takes: from `least` to `most`, None for no end."""

    least: int = 1
    most: int | None = None
    why: str = ""

    def check(self, name: str, batch: int) -> None:
        """Raises ValueError for a batch that is none of them."""
        if batch < self.least or (self.most is not None and batch > self.most):
            raise ValueError(f"{self.rule(name)}, got {batch}")

    def rule(self, name: str) -> str:
        """What a batch must be, in words."""
        most = "" if self.most is None else f" and at most {self.most}"
        why = f" ({self.why})" if self.why else ""
        return f"{name}: a batch must be of at least {self.least}{most}{why}"

    def conditions(self, name: str, batch: Any) -> list[tuple[Any, str]]:
        """What must hold of a batch that the run knows, each with its message.

        A message is text: small numbers are in it by a condition of their own.
        """
        rule, small = self.rule(name), range(min(self.least, _SMALL))
        found = [(batch != number, f"{rule}, got {number}") for number in small]
        found.append((batch >= self.least, f"{rule}, got fewer"))
        if self.most is not None:
            found.append((batch <= self.most, f"{rule}, got more"))
        return found

    def from_(self, least: int, why: str) -> Limits:
        """Those from another number on, if it is a larger one."""
        return self if least <= self.least else Limits(least, self.most, why)


def limited(module: tvm.IRModule, name: str, limits: Limits) -> tvm.IRModule:
    """The module, whose `main` itself raises ValueError for a batch that is out of the limits."""
    is_open = bool(relax.analysis.defined_symbolic_vars(module["main"]))
    if not is_open or (limits.least < 2 and limits.most is None):
        return module
    return with_check(module, "main", lambda batch: limits.conditions(name, batch))


def variable() -> Any:
    """The variable of an open batch."""
    return tirx.Var(NAME, "int64")


def is_size(value: Any) -> bool:
    """Whether a value is an expression of the batch, and no tensor."""
    return isinstance(getattr(value, "ty", None), PrimType)


def sizes_of(array: Any) -> list[Any]:
    """A list of sizes that is known on import: ints, and expressions of an open batch."""
    return [size if is_size(size) else int(size) for size in array.ravel()]


def is_open(shape: Sequence[Any]) -> bool:
    """Whether a size of a shape, of either kind, is no number."""
    return not all(isinstance(size, int) for size in shape)


def of_one(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape with one image where the batch is open, for checks that are not of the batch."""
    return (shape[0] if isinstance(shape[0], int) else 1, *shape[1:])


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal, whatever the batch."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(Analyzer().can_prove_equal(a, b))


def factor_and_power(size: Any) -> tuple[int, int]:
    """(factor, power of the batch) of a size: (7, 0), or (7, 1) for 7 N.

    Raises ValueError for another expression.
    """
    if isinstance(size, int):
        return size, 0
    names = tirx.analysis.undefined_vars(size)
    analyzer = Analyzer()
    if len(names) == 1:
        of_one = Analyzer()
        of_one.bind(names[0], tirx.const(1, "int64"))
        one = as_size(of_one.simplify(size))
        if isinstance(one, int) and analyzer.can_prove_equal(size, names[0] * one):
            return one, 1
    raise ValueError(f"a size of {size} is no multiple of the batch, which is open: give a number")


def spec_of(shape: Sequence[Any]) -> tuple[Size, ...]:
    """A tensor's shape as a specification has it."""
    found = [(s.times, 1) if isinstance(s, Open) else factor_and_power(s) for s in shape]
    return tuple(Open(times) if power else times for times, power in found)


def type_of(shape: Sequence[Size], dtype: str, batch: Any = None) -> relax.TensorType:
    """The type of an input; `batch`: the variable of an open one."""
    sizes = [batch * s.times if isinstance(s, Open) else s for s in shape]
    return relax.TensorType(sizes, dtype)


def at(shape: Sequence[Size], batch: int | None) -> tuple[int, ...]:
    """A shape in numbers.  Raises ValueError for an open one without a batch."""
    found: list[int] = []
    for size in shape:
        if isinstance(size, Open):
            if batch is None:
                raise ValueError(f"the batch of {list(shape)} is open: give a number of images")
            size = size.at(batch)
        found.append(size)
    return tuple(found)


def completed(target: Sequence[Any], shape: Sequence[Any]) -> list[Any] | None:
    """A reshape's target with a -1 in it worked out; None where it does not take the shape."""
    whole = [factor_and_power(size) for size in shape]
    given = [
        factor_and_power(size) for size in target if not (isinstance(size, int) and size == -1)
    ]
    factor, power = math.prod(c for c, _ in whole), sum(p for _, p in whole)
    taken, degree = math.prod(c for c, _ in given), sum(p for _, p in given)
    missing = len(target) - len(given)
    if any(c < 0 for c, _ in given) or missing > 1 or (missing and not taken):
        return None
    if not missing:
        return list(target) if (factor, power) == (taken, degree) else None
    if factor % taken or not 0 <= power - degree <= 1:
        return None
    rest: Any = factor // taken
    if power - degree:
        rest = next(_batch(size) for size in shape if not isinstance(size, int)) * rest
    return [rest if isinstance(size, int) and size == -1 else size for size in target]


def _batch(size: Any) -> Any:
    return tirx.analysis.undefined_vars(size)[0]


def broadcast_shape(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """As `numpy.broadcast_shapes`, of two."""
    rank, made = max(len(a), len(b)), []
    for x, y in zip([1] * (rank - len(a)) + [*a], [1] * (rank - len(b)) + [*b], strict=True):
        if not same(x, y) and not same(x, 1) and not same(y, 1):
            raise ValueError(f"shapes {list(a)} and {list(b)} do not fit each other")
        made.append(y if same(x, 1) else x)
    return tuple(made)


def broadcasts_to(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether a tensor of sizes `a` is broadcast to sizes `b`."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return len(a) <= len(b) and all(same(x, 1) or same(x, y) for x, y in pairs)


def number(shape: Sequence[Any], dtype: str, emit: Any) -> Any:
    """The product of sizes as a scalar tensor: a constant but for the batch, which is counted."""
    known = [size for size in shape if isinstance(size, int)]
    value: Any = relax.const(float(math.prod(known)), dtype)
    for size in shape:
        if not isinstance(size, int):
            value = emit(relax.op.multiply(value, _evaluated(size, dtype, emit)))
    return value


_ARITHMETIC: dict[Any, Any] = {
    tirx.Add: relax.op.add, tirx.Sub: relax.op.subtract, tirx.Mul: relax.op.multiply,
    tirx.FloorDiv: relax.op.floor_divide, tirx.FloorMod: relax.op.floor_mod,
    tirx.Max: relax.op.maximum, tirx.Min: relax.op.minimum,
}  # fmt: skip


def _evaluated(size: Any, dtype: str, emit: Any) -> Any:
    """An expression of the batch as a scalar tensor."""
    if isinstance(size, tirx.Var):
        return emit(relax.op.sum(emit(relax.op.ones((size,), dtype))))
    if isinstance(size, tirx.IntImm):
        return relax.const(float(size.value), dtype)
    function = _ARITHMETIC.get(type(size))
    if function is None:
        raise ValueError(f"a size of {size} is not supported: give a number")
    return emit(function(*(_evaluated(part, dtype, emit) for part in (size.a, size.b))))


def counted(size: Any) -> Any:
    """The int64 numbers from 0 on, as many as a size."""
    if isinstance(size, int):
        return relax.const(np.arange(size, dtype="int64"), "int64")
    return relax.op.arange(0, size, 1, "int64")


def simplified(size: Any) -> Any:
    """An int where a size is a number."""
    return size if isinstance(size, int) else as_size(Analyzer().simplify(size))
