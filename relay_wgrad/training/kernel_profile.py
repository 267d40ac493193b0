"""How long each kernel of a step takes, call by call."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..timing import scatter
from .compiled import Compiled
from .step import ADJOINT


def profiled(
    compiled: Compiled,
    arguments: Sequence[Any],
    wait: Callable[[], None],
    rounds: int,
    seconds: float,
) -> dict[str, float]:
    """What `Trainer.profile` gives, of a compiled step and the arguments of its adjoint.

    Kernels are told by their names in the module; of equal ones it is one's.

    wait : until the device has done what it was given.
    """
    names: list[str] = []
    current: list[float] = []
    started = 0.0

    def instrument(func: Any, name: str, before: bool, ret: Any, *args: Any) -> int:
        nonlocal started
        wait()
        if before:
            started = time.perf_counter()
        else:
            current.append(time.perf_counter() - started)
            names.append(name)
        return 0  # VMInstrumentReturnKind.NO_OP: go on with the call

    vm = compiled.vm  # another one would keep memory of its own
    vm[ADJOINT](*arguments)  # warm
    least: list[float] = []
    totals: list[float] = []
    begin = time.perf_counter()
    vm.set_instrument(instrument)
    try:
        while len(totals) < rounds or time.perf_counter() - begin < seconds:
            names.clear()
            current.clear()
            vm[ADJOINT](*arguments)
            totals.append(sum(current))
            least = [min(pair) for pair in zip(least or current, current, strict=True)]
    finally:
        vm.set_instrument(None)
    compiled.scatter = scatter(totals)
    total: dict[str, float] = {}
    for name, one in zip(names, least, strict=True):
        total[name] = total.get(name, 0.0) + one
    count = Counter(names)
    for conv in compiled.convolutions:
        symbol = compiled.symbol(conv.kernel)
        if symbol in total:
            conv.seconds = total[symbol] / count[symbol]
    called = {symbol: name for name, symbol in compiled.symbols.items()}
    return {called.get(symbol, symbol): seconds for symbol, seconds in total.items()}
