"""What compiled code goes by of tensors that it is given again and again, looked at in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

_address = torch.Tensor.data_ptr
_FACTS: tuple[Callable[[torch.Tensor], Any], ...] = (
    attrgetter("shape"), torch.Tensor.stride, torch.Tensor.is_neg, attrgetter("dtype"),
    attrgetter("device"), attrgetter("requires_grad"),
)  # fmt: skip


class TensorFacts:
    """Where some tensors lie, their sizes and strides, types and devices, whether they are negated
    views, and whether they require gradients, as it was when this was made.

    PyTorch's `TensorGuards` looks at all but the first in C++, a third of the time of loops, one
    for each.  It is nobody's promise, and goes by the caller's modes (autocast) too: where it is
    not there, or sees a difference, loops say whether there is one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._at = [*map(_address, tensors)]
        self._facts, self._guards = self._facts_now(), guards_of(tensors)

    def hold(self) -> bool:
        """Whether all that is so now."""
        tensors = self._tensors
        if [*map(_address, tensors)] != self._at:
            return False
        if self._guards is not None and self._guards.check(*tensors):
            return True
        if self._facts_now() != self._facts:
            return False
        self._guards = guards_of(tensors)  # of the modes that are now
        return True

    def _facts_now(self) -> list[list[Any]]:
        return [[*map(fact, self._tensors)] for fact in _FACTS]


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
