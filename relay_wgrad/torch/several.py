"""Many tensors by few kernels: PyTorch's functions of lists start one for each tensor where a list
has several dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..picking import Pick, picked

SMALL = 1 << 20
"""Bytes of a tensor that shares an allocation: who keeps one keeps the memory of all."""
ALIGNED = 32
"""Bytes at whose multiples each of them begins: vectorized kernels want 16, memory reads 32."""


class CopyEach:
    """Copies each source to its target; tensors of every call have the dtypes of the first."""

    def __init__(self) -> None:
        self._lists: list[Pick] | None = None

    def __call__(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        if self._lists is None:
            lists: dict[object, list[int]] = {}
            for i, (target, source) in enumerate(zip(targets, sources, strict=True)):
                lists.setdefault((target.dtype, source.dtype), []).append(i)
            self._lists = [*map(picked, lists.values())]
        with torch.no_grad():
            for some in self._lists:
                torch._foreach_copy_(some(targets), some(sources))


class Copies:
    """Makes copies of some tensors, time after time, each with a version of its own.

    Contiguous ones of up to `SMALL` bytes share an allocation with others of their dtype: PyTorch's
    allocator takes longer for each on a GPU than one kernel for all of them.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        lists: dict[tuple[torch.dtype, bool], list[int]] = {}
        for i, x in tensors.items():
            joins = x.is_contiguous() and x.nbytes <= SMALL
            lists.setdefault((x.dtype, joins), []).append(i)
        self._lists = []
        for (_, joins), places in lists.items():
            some = [tensors[i] for i in places]
            joined = _Joined(some) if joins and len(some) > 1 else None
            self._lists.append((places, some, joined))

    def into(self, results: list[Any]) -> None:
        """Puts the copies to their tensors' places."""
        with torch.no_grad():
            for places, some, joined in self._lists:
                new = [torch.empty_like(x) for x in some] if joined is None else joined.empty()
                torch._foreach_copy_(new, some)
                for i, x in zip(places, new, strict=True):
                    results[i] = x


class _Joined:
    """Where contiguous tensors of a dtype lie in one allocation."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        apart = ALIGNED // tensors[0].element_size()
        self._like = list[torch.Tensor]()  # these, and what is between them
        places = []
        for x in tensors:
            places.append(len(self._like))
            rest = -x.numel() % apart
            self._like += [x, x.new_empty(rest)] if rest else [x]
        self._count, self._pick = sum(x.numel() for x in self._like), picked(places)

    def empty(self) -> Sequence[torch.Tensor]:
        memory = self._like[0].new_empty(self._count)
        # Below the key by which autograd makes views, which would share a version.
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return self._pick(torch._C._nn.unflatten_dense_tensors(memory, self._like))
