"""What compiled code goes by of tensors that it is given again and again, looked at in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from . import host_library
from .host_library import functions

Look = Callable[[Sequence[torch.Tensor]], bool]

_address = torch.Tensor.data_ptr
_FACTS: tuple[Callable[[torch.Tensor], Any], ...] = (
    attrgetter("shape"), torch.Tensor.stride, torch.Tensor.is_neg, attrgetter("dtype"),
    attrgetter("device"), attrgetter("requires_grad"),
)  # fmt: skip


class TensorFacts:
    """Where some tensors lie, their sizes and strides, types and devices, whether they are negated
    views, and whether they require gradients, as it was when this was made.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._at = [*map(_address, tensors)]
        self._facts, self._look = self._facts_now(), look_at(self._tensors)

    def hold(self) -> bool:
        """Whether all that is so now."""
        if self._look(self._tensors):
            return True
        if [*map(_address, self._tensors)] != self._at or self._facts_now() != self._facts:
            return False
        self._look = look_at(self._tensors)  # of the modes that are now
        return True

    def _facts_now(self) -> list[list[Any]]:
        return [[*map(fact, self._tensors)] for fact in _FACTS]


def look_at(tensors: Sequence[torch.Tensor]) -> Look:
    """What says of as many tensors that all that counts of them is as it is of these now, and where
    they lie.  Where it says no, there need not be a difference: loops tell.

    By the library, and before that is there addresses by a loop and the rest by PyTorch's
    `TensorGuards`, which are nobody's promise, and go by the caller's modes (autocast).
    """
    return _Look(tuple(tensors))


class _Look:
    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._held: Look | None = None
        self._is_taken = self._took(tensors)
        self._other = None if self._held is not None else _by_guards(tensors)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        if self._held is not None:
            return self._held(tensors)
        assert self._other is not None
        if not self._other(tensors):
            return False
        if not self._is_taken:  # of these, which are as those were
            host_library.wanted()
            self._is_taken = self._took(tuple(tensors))
        return True

    def _took(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether the library is there, and may have refused them."""
        library = functions()
        if library is None:
            return not tensors
        held = library.take_tensors(tensors) if tensors else None
        if held is not None:
            self._kinds = {*map(type, tensors)}  # no other class may come to their addresses
            hold = library.hold_tensors
            self._held = lambda some: hold(held, tuple(some))
        return True


def _by_guards(tensors: tuple[torch.Tensor, ...]) -> Look:
    addresses, guards = [*map(_address, tensors)], guards_of(tensors)

    def look(some: Sequence[torch.Tensor]) -> bool:
        is_there = guards is not None and [*map(_address, some)] == addresses
        return is_there and bool(guards.check(*some))

    return look


def guards_of(tensors: Sequence[torch.Tensor]) -> Any:
    """PyTorch's guards of tensors, which hold now; None where there are none."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        sizes: list[Any] = [list(x.shape) for x in tensors]
        strides: list[Any] = [list(x.stride()) for x in tensors]
        made = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        return made if made.check(*tensors) else None
    except Exception:  # of whatever kind: there is another way
        return None
