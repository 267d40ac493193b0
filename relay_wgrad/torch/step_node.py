"""A backward pass as a node of autograd by the library in C++ (`templates/step_node.cc`).

`torch.autograd.Function` looks at each operand and makes a tensor of Python's of each gradient,
hundreds of them; it is taken where there is no library, and where hooks want to see what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._autograd import _top_saved_tensors_default_hooks

from .host_library import functions
from .several import Copies

Gradients = tuple[Sequence[torch.Tensor], Any]
"""Gradients and None, or the tensors that they are cut out of and `Cuts.of`."""


class Backward(NamedTuple):
    """What autograd calls.

    function : of what was saved, a tuple, and the gradients of outputs.  It holds nothing that
        holds an output: no collector of garbage looks into a node.
    number : tells it from other functions of the name.
    """

    name: str
    function: Callable[..., Gradients]
    number: int


def is_recorded(
    backward: Backward, saved: Sequence[torch.Tensor], operands: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> bool:  # fmt: skip
    """Makes outputs results of operands; False where PyTorch's own way has to be taken.

    saved : who changes one of them in place is refused the backward pass.
    outputs : tensors that nobody has yet.
    """
    library = functions()
    if library is None or _top_saved_tensors_default_hooks(True) is not None:
        return False
    library.record(
        backward.name, backward.function, backward.number, tuple(saved), tuple(operands),
        tuple(outputs),
    )  # fmt: skip
    return True


class Cuts:
    """How gradients are cut out of what calls of a function give.

    places : the results that are gradients, in their order.
    first : how many tensors come before those that a call gives, each a gradient of its own.
    turned : the places of those whose last axis is the second one of the gradient.
    """

    def __init__(self, places: Sequence[int], first: int = 0, turned: Sequence[int] = ()) -> None:
        self._places, self._first, self._turned = places, first, frozenset(turned)
        self._copies: Copies | None = None
        self._taken: Any = None

    def of(self, copies: Copies) -> Any:
        """For the library, which is there."""
        if self._copies is not copies:
            library = functions()
            assert library is not None
            lie = copies.cuts()
            said: list[tuple[Any, ...]] = [(i,) for i in range(self._first)]
            for place in self._places:
                of, offset, *axes = lie[place]
                if place in self._turned:
                    axes = [(axis[0], axis[-1], *axis[1:-1]) for axis in axes]
                said.append((of + self._first, offset, *axes))
            self._copies, self._taken = copies, library.take_cuts(tuple(said))
        return self._taken
