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
                to, what = some(targets), some(sources)
                if len(to) == 1:
                    to[0].copy_(what[0])
                else:
                    torch._foreach_copy_(to, what)


def increment_versions(tensors: Sequence[torch.Tensor]) -> None:
    """Tells autograd that they were changed in place, which a graph does unseen."""
    if tensors:
        try:
            torch.autograd.graph.increment_version(tensors)
        except TypeError:  # before PyTorch 2.6: one at a time
            for x in tensors:
                torch.autograd.graph.increment_version(x)


class Copies:
    """Makes copies of some results of a function, time after time, each with its own version.

    Contiguous ones of up to `SMALL` bytes share an allocation with others of their dtype: PyTorch's
    allocator takes longer for each on a GPU than one kernel for all of them.

    tensors : by their places.  count : of all results.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor], count: int) -> None:
        lists: dict[tuple[torch.dtype, bool], list[int]] = {}
        for i, x in tensors.items():
            joins = x.is_contiguous() and x.nbytes <= SMALL
            lists.setdefault((x.dtype, joins), []).append(i)
        self._lists = list[tuple[Sequence[torch.Tensor], _Joined | None]]()
        found = [*range(count)]
        for (_, joins), places in lists.items():
            some = [tensors[i] for i in places]
            joined = _Joined(some) if joins and len(some) > 1 else None
            self._lists.append((some if joined is None else joined.tensors, joined))
            for at, place in enumerate(range(count, count + len(places))):
                found[places[at if joined is None else joined.order[at]]] = place
            count += len(places)
        self._pick = picked(found)

    @property
    def joins(self) -> bool:
        """Whether some share an allocation."""
        return any(joined for _, joined in self._lists)

    def gather(self) -> None:
        """Puts those together as they lie in a copy: work that a graph may have at its end."""
        with torch.no_grad():
            for _, joined in self._lists:
                if joined is not None:
                    joined.gather()

    def into(self, results: list[Any], gathered: bool = False) -> None:
        """Puts the copies to their tensors' places; `gathered`: that has been done."""
        if not self._lists:
            return
        made = [*results]
        with torch.no_grad():
            for some, joined in self._lists:
                if joined is None:
                    made += map(torch.clone, some) if len(some) == 1 else _copied(some)
                else:
                    made += joined.copied(gathered)
        results[:] = self._pick(made)


def _copied(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    new = [*map(torch.empty_like, tensors)]
    torch._foreach_copy_(new, tensors)
    return new


class _Joined:
    """Where contiguous tensors of a dtype lie in one allocation: first those of one dimension,
    which are cut out of it by a cheaper function.

    order : the places of the given ones, as they lie.  tensors : these.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        apart = ALIGNED // tensors[0].element_size()
        flat = [i for i, x in enumerate(tensors) if x.dim() == 1]
        self.order = [*flat, *(i for i, x in enumerate(tensors) if x.dim() != 1)]
        self.tensors = [tensors[i] for i in self.order]
        self._sizes, self._like = list[int](), list[torch.Tensor]()  # and of what is between them
        places = []
        for x in self.tensors:
            places.append(len(self._sizes) + len(self._like))
            rest = -x.numel() % apart
            if x.dim() == 1:
                self._sizes += [x.numel(), rest] if rest else [x.numel()]
            else:
                self._like += [x, x.new_empty(rest)] if rest else [x]
        others = sum(x.numel() for x in self._like)
        self._count, self._pick = sum(self._sizes) + others, picked(places)
        self._sizes.append(others)
        self._together: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def gather(self) -> None:
        """Copies them into memory of this object, all of which one copy takes."""
        if self._together is None:
            self._together = self.tensors[0].new_empty(self._count)
            self._parts = self._cut(self._together)
        torch._foreach_copy_(self._parts, self.tensors)

    def copied(self, gathered: bool) -> Sequence[torch.Tensor]:
        """Copies in an allocation of their own."""
        if gathered and self._together is not None:
            return self._cut(self._together.clone())
        new = self._cut(self.tensors[0].new_empty(self._count))
        torch._foreach_copy_(new, self.tensors)
        return new

    def _cut(self, memory: torch.Tensor) -> Sequence[torch.Tensor]:
        # Below the key by which autograd makes views, which would share a version.
        with torch._C._AutoDispatchBelowADInplaceOrView():
            *flat, rest = memory.split_with_sizes(self._sizes)
            return self._pick([*flat, *torch._C._nn.unflatten_dense_tensors(rest, self._like)])
