"""Upstream's last passes, with our plans of memory among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .arena import Arena
from .chains import Chains
from .storages import KeepStorages, LetGo

_PLANS = ("StaticPlanBlockMemory", "RewriteCUDAGraph")


def with_arena(passes: Sequence[Any], *, keep: bool = False) -> list[Any]:
    """Upstream's last passes with `Arena` and `LetGo` behind its plan.

    keep : a virtual machine keeps the memory from call to call (`KeepStorages`), and functions of a
        chain are there a second time, with one plan for all of them (`Chains`).
    """
    names = [str(step.info.name) for step in passes]
    # Upstream's CUDA graphs, if somebody wants them, take their storages from its plan.
    place = max(names.index(name) for name in _PLANS if name in names) + 1
    first, kept = ([Chains()], [KeepStorages()]) if keep else ([], [])
    return [*passes[:place], *first, Arena(), *kept, LetGo(), *passes[place:]]
