"""What compiled code goes by of tensors that it is given again and again, looked at in one go."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from .host_library import functions

Look = Callable[[Sequence[torch.Tensor]], bool]

_REQUIRES_GRAD = "requires_grad"
_is_neg = torch.Tensor.is_neg
_address = torch.Tensor.data_ptr
_FACTS: tuple[Callable[[torch.Tensor], Any], ...] = (
    attrgetter("shape"), torch.Tensor.stride, _is_neg, attrgetter("dtype"),
    attrgetter("device"), attrgetter(_REQUIRES_GRAD),
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

    By the library, or else addresses by a loop and the rest by PyTorch's `TensorGuards`, in C++
    too, a third of the time of loops, one for each fact.  These are nobody's promise, and go by the
    caller's modes (autocast).
    """
    some = tuple(tensors)
    return _by_library(some) or _by_guards(some)


def _by_library(tensors: tuple[torch.Tensor, ...]) -> Look | None:
    library = functions()
    if library is None or not tensors:
        return None
    try:
        # A promise of DLPack's, for who has PyTorch's tensors and not its headers.
        capsule: Any = torch.Tensor.__dlpack_c_exchange_api__
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.argtypes, pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
        interface = pointer(capsule, b"dlpack_exchange_api")
        where = [
            place for x in tensors for place in (id(x), x._cdata, x.untyped_storage()._cdata)
        ]  # fmt: skip
        places = (ctypes.c_uint64 * len(where))(*where)
        handle = library.take_tensors(
            interface, id(_REQUIRES_GRAD), id(_is_neg), id(True), id(tensors),
            ctypes.addressof(places),
        )  # fmt: skip
    except Exception:  # of whatever kind: there is another way
        return None
    return _Held(library.hold_tensors, library.drop_tensors, handle, tensors) if handle else None


class _Held:
    """The library's look."""

    def __init__(self, hold: Any, drop: Any, handle: int, tensors: Sequence[torch.Tensor]) -> None:
        self._hold, self._handle = hold, handle
        self._kinds = {*map(type, tensors)}  # no other class may come to their addresses
        weakref.finalize(self, drop, handle).atexit = False

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        some = tuple(tensors)
        return bool(self._hold(self._handle, id(some)) == 1)


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
