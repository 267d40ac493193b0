"""What is known on import of an open batch: computed for two batches, and said for all.

Files work out shapes by nodes (Shape, Gather, Concat, …).  With an open batch these are run for two
numbers of images; an element that is the same for both is that, one that is as many times either is
a multiple of the batch, and any other is refused where it is used.  A list as long as the batch
(indices that are made of `Range`) goes on as the two; only what knows it takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..context import Value
from ..sizes import factor_and_power
from ..weights import Array

PROBES = (1009, 2003)
FIXED = "a batch= of a number makes it one"
"""For an error: what helps."""
COUNTED = "it has as many elements as the batch has images"
_MOST = 1 << 24  # elements of such a list


class Stranger:
    """A number that depends on the batch otherwise than as a multiple of it."""

    def __int__(self) -> int:
        raise ValueError("it takes a number that is no multiple of the batch")

    __index__ = __float__ = __int__


def shape_value(name: str, shape: Sequence[Any], batch: Any) -> Value:
    """The result of Shape."""
    if all(isinstance(size, int) for size in shape):
        return Value(name, array=np.asarray(shape, np.int64), measured=True)
    found = [factor_and_power(size) for size in shape]
    probes = tuple(np.asarray([c * n**p for c, p in found], np.int64) for n in PROBES)
    return _value(name, probes, batch)


def evaluated(
    run: Callable[[dict[str, Array]], list[Any]],
    operands: Sequence[Value],
    arrays: Mapping[str, Array],
    names: Sequence[str],
    batch: Any,
) -> dict[str, Value]:
    """The results of a node whose operands are known for two batches."""
    given = {o.name: o.probes for o in operands if o.probes is not None}
    each = [run({n: given[n][i] if n in given else a for n, a in arrays.items()}) for i in (0, 1)]
    made = {}
    for name, first, second in zip(names, *each, strict=True):
        a, b = np.asarray(first), np.asarray(second)
        if a.shape != b.shape:
            if max(a.size, b.size) > _MOST:
                raise ValueError(COUNTED)
            made[name] = Value(name, measured=True, probes=(a, b))
            continue
        made[name] = (
            Value(name, array=a, measured=True)
            if np.array_equal(a, b)
            else _value(name, (a, b), batch)
        )
    return made


def _value(name: str, probes: tuple[Array, ...], batch: Any) -> Value:
    array = np.empty(probes[0].shape, object)
    for at in np.ndindex(array.shape):
        array[at] = _size(probes[0][at].item(), probes[1][at].item(), batch)
    return Value(name, array=array, measured=True, probes=(probes[0], probes[1]))


def _size(first: Any, second: Any, batch: Any) -> Any:
    if first == second:
        return first
    times, rest = divmod(first, PROBES[0])
    if not rest and times * PROBES[1] == second and times == int(times):
        return batch * int(times)
    return Stranger()
