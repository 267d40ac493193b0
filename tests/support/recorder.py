"""Stands for the code generation of a family of direct calls, whose functions are Python's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi

from byoc_cudnn.codegen.direct import Family


class Recorder:
    """Keeps the calls that it is asked for; `packed` gives a call's function, on the CPU."""

    def __init__(self, family: Family, packed: Callable[[Any], Callable[..., None]]) -> None:
        self.moves, self.overwrites_of = family.moves, family.overwrites_of
        self.codegen, self.plans = family.codegen, family.plans
        self.packed = packed
        self.calls: list[Any] = []

    def generate(self, calls: Sequence[Any], arch: int) -> str:
        self.calls = list(calls)
        return ""

    def register(self) -> None:
        """Makes each call's function one of this process."""
        for call in self.calls:
            tvm_ffi.register_global_func(call.symbol, self.packed(call), override=True)
