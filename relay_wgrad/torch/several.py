"""Many tensors by few kernels: PyTorch's functions of lists start one for each tensor where a list
has several dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

SMALL = 1 << 20
"""Bytes of a tensor that shares an allocation: who keeps one keeps the memory of all."""
ALIGNED = 256
"""Bytes from which each of them begins, as vectorized kernels want it."""


def copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies each source to its target."""
    lists: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        theirs = lists.setdefault((target.dtype, source.dtype), ([], []))
        theirs[0].append(target)
        theirs[1].append(source)
    with torch.no_grad():
        for some, values in lists.values():
            torch._foreach_copy_(some, values)


class Copies:
    """Makes copies of some tensors, time after time, each with a version of its own.

    Contiguous ones of up to `SMALL` bytes share an allocation with others of their dtype: PyTorch's
    allocator takes longer for each on a GPU than one kernel for all of them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._count = len(tensors)
        lists: dict[tuple[torch.dtype, bool], list[int]] = {}
        for i, x in enumerate(tensors):
            joins = x.is_contiguous() and x.nbytes <= SMALL
            lists.setdefault((x.dtype, joins), []).append(i)
        self._lists = []
        for (_, joins), places in lists.items():
            some = [tensors[i] for i in places]
            joined = _Joined(some) if joins and len(some) > 1 else None
            self._lists.append((places, some, joined))

    def __call__(self) -> list[torch.Tensor]:
        made: list[Any] = [None] * self._count
        with torch.no_grad():
            for places, some, joined in self._lists:
                new = [torch.empty_like(x) for x in some] if joined is None else joined.empty()
                torch._foreach_copy_(new, some)
                for i, x in zip(places, new, strict=True):
                    made[i] = x
        return made


class _Joined:
    """Where tensors of a dtype lie in one allocation."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._like, self._count, self._where = tensors[0], 0, list[Any]()
        apart = ALIGNED // tensors[0].element_size()
        for x in tensors:
            self._where.append((x.shape, x.stride(), self._count))
            self._count += -(-x.numel() // apart) * apart

    def empty(self) -> list[torch.Tensor]:
        memory = self._like.new_empty(self._count)
        return [memory.as_strided(*where).data for where in self._where]
