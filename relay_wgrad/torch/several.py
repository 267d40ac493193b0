"""Many tensors by few kernels: PyTorch's functions of lists start one for each tensor where a list
has several dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..picking import Pick, picked
from .host_library import functions

SMALL, BLOCK = 1 << 20, 64 << 20
"""Bytes of a tensor that shares an allocation with all such ones, and of an allocation that larger
ones share: who keeps one keeps the memory of those that it shares with."""
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
    library = functions()
    if library is not None:
        library.increment_versions(tuple(tensors))
    elif tensors:
        try:
            torch.autograd.graph.increment_version(tensors)
        except TypeError:  # before PyTorch 2.6: one at a time
            for x in tensors:
                torch.autograd.graph.increment_version(x)


class Copies:
    """Makes copies of some results of a function, time after time, each with its own version.

    PyTorch's allocator takes longer for each on a GPU than one kernel for all of them.  So
    contiguous ones of up to `SMALL` bytes share an allocation with others of their dtype, and
    larger ones one of up to `BLOCK`.

    tensors : by their places.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        lists: dict[tuple[torch.dtype, bool], list[int]] = {}
        for i, x in tensors.items():
            joins = x.is_contiguous() and x.nbytes <= SMALL
            lists.setdefault((x.dtype, joins), []).append(i)
        self._lists = list[_Joined | _Large]()
        self._places = list[int]()  # of the copies, list after list
        for (_, joins), places in lists.items():
            some = [tensors[i] for i in places]
            copied = _Joined(some) if joins and len(some) > 1 else _Large(some)
            self._lists.append(copied)
            self._places += [places[at] for at in copied.order]
        self._small = [some for some in self._lists if isinstance(some, _Joined)]
        at = {place: i for i, place in enumerate(self._places)}
        # Where they are all that a function gives, as gradients are.
        every = range(len(at))
        self._in_order = picked([at[i] for i in every]) if at.keys() == {*every} else None

    @property
    def joins(self) -> bool:
        """Whether there are some that `gather` puts together."""
        return bool(self._small)

    def cuts(self) -> dict[int, tuple[Any, ...]]:
        """By places of the copies where each lies among `blocks`: which of them, from which element
        on, sizes, strides."""
        found, made = list[tuple[Any, ...]](), 0
        for some in self._lists:
            if isinstance(some, _Joined):
                found += [(made, *cut) for cut in some.cuts]
                made += 1
            else:
                found += [(made + i, 0, *_lies(x)) for i, x in enumerate(some.tensors)]
                made += len(some.tensors)
        return dict(zip(self._places, found, strict=True))

    def blocks(self) -> list[torch.Tensor]:
        """Copies, of small ones that were gathered all in one."""
        made = list[torch.Tensor]()
        with torch.no_grad():
            for some in self._lists:
                made += [some.together()] if isinstance(some, _Joined) else some.copied(True)
        return made

    def gather(self) -> None:
        """Puts small ones together as they lie in a copy: work that a graph may have at its end."""
        with torch.no_grad():
            for joined in self._small:
                joined.gather()

    def into(self, results: list[Any], gathered: bool = False) -> None:
        """Puts the copies to their tensors' places; `gathered`: that has been done."""
        if not self._lists:
            return
        made = list[torch.Tensor]()
        with torch.no_grad():
            for some in self._lists:
                made += some.copied(gathered)
        if self._in_order is not None and len(results) == len(made):
            results[:] = self._in_order(made)
            return
        for place, x in zip(self._places, made, strict=True):
            results[place] = x


def _lies(x: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes and strides of a tensor's copy."""
    return tuple(x.shape), torch.empty_like(x, device="meta").stride()


class _Large:
    """Tensors of a dtype in allocations of up to `BLOCK` bytes, those that are not contiguous each
    in its own.

    order : the places of the given ones, as they are copied.  tensors : these.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        blocks, size = list[list[int]](), BLOCK + 1  # of the last one; more: nothing joins it
        for i, x in enumerate(tensors):
            joins = x.is_contiguous() and size + x.nbytes <= BLOCK
            if joins:
                blocks[-1].append(i)
            else:
                blocks.append([i])
            size = (size if joins else 0) + x.nbytes if x.is_contiguous() else BLOCK + 1
        self._blocks = [
            _Joined([tensors[i] for i in some]) if len(some) > 1 else tensors[some[0]]
            for some in blocks
        ]
        orders = (b.order if isinstance(b, _Joined) else [0] for b in self._blocks)
        self.order = [
            some[at] for some, order in zip(blocks, orders, strict=True) for at in order
        ]  # fmt: skip
        self.tensors = [tensors[i] for i in self.order]

    def copied(self, _: bool) -> Sequence[torch.Tensor]:
        """Copies."""
        if len(self.tensors) == 1:
            return [self.tensors[0].clone()]
        new = list[torch.Tensor]()
        for block in self._blocks:
            new += block.empty() if isinstance(block, _Joined) else [torch.empty_like(block)]
        torch._foreach_copy_(new, self.tensors)
        return new


class _Joined:
    """Where contiguous tensors of a dtype lie in one allocation: first those of one dimension,
    which are cut out of it by a cheaper function.

    order : the places of the given ones, as they lie.  tensors : these.
    cuts : of each from which element on it lies, its sizes and its strides.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        apart = ALIGNED // tensors[0].element_size()
        flat = [i for i, x in enumerate(tensors) if x.dim() == 1]
        self.order = [*flat, *(i for i, x in enumerate(tensors) if x.dim() != 1)]
        self.tensors = [tensors[i] for i in self.order]
        self._sizes, self._like = list[int](), list[torch.Tensor]()  # and of what is between them
        self.cuts, at = list[tuple[int, tuple[int, ...], tuple[int, ...]]](), 0
        places = []
        for x in self.tensors:
            places.append(len(self._sizes) + len(self._like))
            rest = -x.numel() % apart
            if x.dim() == 1:
                self._sizes += [x.numel(), rest] if rest else [x.numel()]
            else:
                self._like += [x, x.new_empty(rest)] if rest else [x]
            self.cuts.append((at, *_lies(x.new_empty(x.shape, device="meta"))))
            at += x.numel() + rest
        self._count, self._pick = at, picked(places)
        self._sizes.append(sum(x.numel() for x in self._like))
        self._together: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()
        self._taken: Any = None  # by the library

    def gather(self) -> None:
        """Copies them into memory of this object, all of which one copy takes."""
        if self._together is None:
            self._together = self.tensors[0].new_empty(self._count)
            self._parts = self._cut(self._together)
        torch._foreach_copy_(self._parts, self.tensors)

    def together(self) -> torch.Tensor:
        """A copy of what was gathered."""
        assert self._together is not None
        return self._together.clone()

    def copied(self, gathered: bool) -> Sequence[torch.Tensor]:
        """Copies in an allocation of their own."""
        if gathered and self._together is not None:
            return self._cut(self.together())
        new = self.empty()
        torch._foreach_copy_(new, self.tensors)
        return new

    def empty(self) -> Sequence[torch.Tensor]:
        """Tensors like them in an allocation of their own."""
        return self._cut(self.tensors[0].new_empty(self._count))

    def _cut(self, memory: torch.Tensor) -> Sequence[torch.Tensor]:
        library = functions()
        if library is not None:
            if self._taken is None:
                self._taken = library.take_cuts(tuple((0, *cut) for cut in self.cuts))
            made: Sequence[torch.Tensor] = library.cut_tensors(self._taken, (memory,))
            return made
        # Below the key by which autograd makes views, which would share a version.
        with torch._C._AutoDispatchBelowADInplaceOrView():
            *flat, rest = memory.split_with_sizes(self._sizes)
            return self._pick([*flat, *torch._C._nn.unflatten_dense_tensors(rest, self._like)])
