"""What a value was: snapshots of what a module's attributes, hooks and functions hold.

A snapshot is compared with what is there now without making another one: `holds(value)`.  Values
count and not objects, so that one that is set again to what it was changes nothing; types count,
and the sign of zero.  What cannot be compared (a file, a large object) is taken to stay as it is,
and `Taken.opaque` names it.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import _symbolic_trace

MOST = 1000
"""Values that one attribute may hold, in lists in dictionaries and the like, to be compared."""
SMALL = 64
"""Elements of a tensor on the CPU that are compared at each call: what writes to `tensor.data`, or
to memory that NumPy shares, leaves no trace."""
BYTES = 1 << 16
"""Of a NumPy array, which has no count of its changes."""

LIBRARIES = frozenset(
    {*sys.stdlib_module_names, "torch", "numpy", "relay_wgrad", "legalize", "byoc_cudnn", "tvm"}
) - {"__main__"}
"""Packages whose functions and objects stay as they are."""


def of_library(value: Any) -> bool:
    """Whether a function, class or module of Python is of `LIBRARIES`."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "").partition(".")[0] in LIBRARIES


_EXACT = (bool, int, str, bytes, type(None), type(...), range, slice)
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, np.dtype)
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)


MISSING = object()
"""What is compared where there is no value."""


class Snapshot:
    """Of one value.

    fixed : whether the same object always has the same value.  is_loose : of a list, a function or
        a tensor, whether nothing is asked of what it holds: each call changes that.
    """

    __slots__ = ("fixed", "is_loose")

    def __init__(self, fixed: bool) -> None:
        self.fixed, self.is_loose = fixed, False

    def holds(self, value: Any) -> bool:
        raise NotImplementedError


class Absent(Snapshot):
    """Nothing: an attribute that is not there."""

    __slots__ = ()

    def holds(self, value: Any) -> bool:
        return value is MISSING


class Anything(Snapshot):
    """Of a value that a trace itself has put there."""

    __slots__ = ()

    def holds(self, value: Any) -> bool:
        return True


class Same(Snapshot):
    """That very object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__(True)
        self.value = value

    def holds(self, value: Any) -> bool:
        return value is self.value


class Equal(Same):
    """A number, a text or the like: the type and what it prints as, so that 0.0 is not -0.0."""

    __slots__ = ()

    def holds(self, value: Any) -> bool:
        if value is self.value:
            return True
        return type(value) is type(self.value) and repr(value) == repr(self.value)


class Several(Snapshot):
    """A list, tuple, dictionary or set of values, in their order."""

    __slots__ = ("items", "kind", "names")

    def __init__(self, value: Any, items: list[Snapshot], names: list[Any]) -> None:
        self.kind, self.items, self.names = type(value), items, names
        super().__init__(isinstance(value, (tuple, frozenset)) and all(i.fixed for i in items))

    def holds(self, value: Any) -> bool:
        if self.is_loose or type(value) is not self.kind or len(value) != len(self.items):
            return self.is_loose and type(value) is self.kind
        if isinstance(value, dict):
            now: Any = value.values()
            if any(a is not b and a != b for a, b in zip(self.names, value, strict=True)):
                return False
        else:
            now = value
        return all(item.holds(x) for item, x in zip(self.items, now, strict=True))


class Fields(Snapshot):
    """An object of a class of the user's: what its `__dict__`, and its slots, hold."""

    __slots__ = ("held", "inner", "kind")

    def __init__(self, kind: type, held: Snapshot, inner: Snapshot | None) -> None:
        super().__init__(False)
        self.kind, self.held, self.inner = kind, held, inner

    def holds(self, value: Any) -> bool:
        return (
            type(value) is self.kind
            and self.held.holds(vars(value))
            and (self.inner is None or self.inner.holds(value))
        )


class Numbers(Snapshot):
    """A tensor: its elements, which are looked at where its identity and version do not answer."""

    __slots__ = ("at", "tensor", "value", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(False)
        self.tensor, self.version, self.at = tensor, _version(tensor), tensor.data_ptr()
        self.value: torch.Tensor | None = None

    def keep(self) -> None:
        """Copies the elements; not before a trace is over, of which that would be a part."""
        self.value = self.tensor.detach().clone()

    def holds(self, value: Any) -> bool:
        known = self.value
        if self.is_loose or type(value) is not type(self.tensor):
            return self.is_loose
        same = (
            value is self.tensor
            and self.version is not None
            and _version(value) == self.version
            and value.data_ptr() == self.at
        )
        if known is None:
            return same
        if same and (value.device.type != "cpu" or value.numel() > SMALL):
            return True
        if not (
            value.device == known.device
            and value.dtype == known.dtype
            and value.shape == known.shape
            and value.requires_grad == self.tensor.requires_grad
            and bool(torch.equal(value.detach(), known))
        ):
            return False
        self.tensor, self.version, self.at = value, _version(value), value.data_ptr()
        return True


class Array(Snapshot):
    """A NumPy array: its elements."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__(False)
        self.value = value.copy()

    def holds(self, value: Any) -> bool:
        known = self.value
        return (
            type(value) is type(known)
            and value.dtype == known.dtype
            and value.shape == known.shape
            and value.tobytes() == known.tobytes()
        )


class Code(Snapshot):
    """A function: its code, its defaults, and the variables around it that it names."""

    __slots__ = ("around", "function", "held")

    def __init__(self, function: Any, around: list[Callable[[], Any]], held: list[Snapshot]):
        super().__init__(not around)
        self.function, self.around, self.held = function, around, held

    def holds(self, value: Any) -> bool:
        around = self.around
        if value is not self.function:
            if type(value) is not FunctionType or value.__code__ is not self.function.__code__:
                return False
            around = list(_around(value))  # another one of the same code has variables of its own
        if self.is_loose:
            return True
        if len(around) != len(self.held) or not all(
            held.holds(read()) for read, held in zip(around, self.held, strict=True)
        ):
            return False
        self.function, self.around = value, around
        return True


class Parts(Snapshot):
    """A bound method, `functools.partial`, a property, an object with slots: its attributes."""

    __slots__ = ("held", "kind", "names")

    def __init__(self, value: Any, names: Sequence[str], held: list[Snapshot]) -> None:
        super().__init__(type(value) in _PARTS and all(h.fixed for h in held))
        self.kind, self.names, self.held = type(value), names, held

    def holds(self, value: Any) -> bool:
        return type(value) is self.kind and all(
            held.holds(getattr(value, name, MISSING))
            for name, held in zip(self.names, self.held, strict=True)
        )


_PARTS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    partial: ("func", "args", "keywords"),
    property: ("fget",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}


class Taken:
    """Snapshots of values, and what was found on the way.

    register : is told of each `nn.Module` among them.
    opaque : what is not compared.  traced : names of tensors of a trace.
    tensors : of the others, whose elements are kept when the trace is over.
    changing : (its name, a value whose contents may change, its snapshot, a copy to put back).
    """

    def __init__(self, register: Callable[[torch.nn.Module], None]) -> None:
        self.opaque: list[str] = []
        self.traced: list[str] = []
        self.tensors: list[tuple[str, Numbers]] = []
        self.changing: list[tuple[str, Any, Snapshot, Any]] = []
        self._register = register
        self._known: dict[int, tuple[Any, Snapshot | None]] = {}
        self._count = 0

    def snapshot(self, name: str, value: Any) -> Snapshot:
        """The snapshot of a value; `name` is what an error calls it."""
        self._count = 0
        try:
            return self._snapshot(name, value)
        except RecursionError:
            return self._opaque(name, value)

    def _snapshot(self, name: str, value: Any) -> Snapshot:
        value = _as_before_the_trace(value)
        kind = type(value)
        if kind in _EXACT or isinstance(value, (*_NAMED, float, complex, np.generic)):
            return Equal(value)
        if isinstance(value, (type, Enum, ModuleType, BuiltinFunctionType)):
            return Same(value)
        if isinstance(value, torch.nn.Module):
            self._register(value)
            return Same(value)
        if isinstance(value, torch.Tensor):
            if isinstance(value, FakeTensor):
                self.traced.append(name)
                return Anything(True)
            if value.layout is not torch.strided or value.device.type == "meta":
                return self._opaque(name, value)
            held = Numbers(value)
            self.tensors.append((name, held))
            return held
        if value is MISSING:
            return Absent(True)
        if id(value) in self._known:  # met before, or within itself
            return self._known[id(value)][1] or Same(value)
        self._count += 1
        if self._count > MOST:
            return self._opaque(name, value)
        self._known[id(value)] = (value, None)
        made = self._new(name, value)
        self._known[id(value)] = (value, made)
        return made

    def _new(self, name: str, value: Any) -> Snapshot:
        kind = type(value)
        if isinstance(value, _CONTAINERS):
            return self._several(name, value)
        if isinstance(value, np.ndarray):
            return Array(value) if value.nbytes <= BYTES else self._opaque(name, value)
        if kind in _PARTS:
            return self._parts(name, value, _PARTS[kind])
        if isinstance(value, FunctionType):
            return Same(value) if of_library(value) else self._code(name, value)
        if of_library(kind) and kind.__name__ not in ("SimpleNamespace", "Namespace"):
            return Same(value)
        slots = [n for one in kind.__mro__ for n in _slots(one)]
        if hasattr(value, "__dict__"):
            inner = self._parts(name, value, slots) if slots else None
            return Fields(kind, self._several(name, vars(value)), inner)
        return self._parts(name, value, slots) if slots else self._opaque(name, value)

    def _parts(self, name: str, value: Any, names: Sequence[str]) -> Snapshot:
        held = [self._snapshot(name, getattr(value, n, MISSING)) for n in names]
        return Parts(value, names, held)

    def _several(self, name: str, value: Any) -> Snapshot:
        if len(value) > MOST:
            return self._opaque(name, value)
        named = isinstance(value, dict)
        items = value.values() if named else value
        held = Several(
            value, [self._snapshot(name, x) for x in items], list(value) if named else []
        )
        if not isinstance(value, (tuple, frozenset)):
            self.changing.append((name, value, held, value.copy()))
        return held

    def _code(self, name: str, function: Any) -> Snapshot:
        around = list(_around(function))
        held = Code(function, around, [self._snapshot(name, read()) for read in around])
        self.changing.append((name, function, held, None))
        return held

    def _opaque(self, name: str, value: Any) -> Snapshot:
        self.opaque.append(f"what {name} ({type(value).__name__}) holds")
        return Same(value)


_PATCHED = _symbolic_trace._create_wrapped_func(len).__code__


def _as_before_the_trace(value: Any) -> Any:
    """The function of `torch.fx.wrap`, in whose place each trace puts one of its own."""
    while type(value) is FunctionType and value.__code__ is _PATCHED:
        value = value.__wrapped__  # type: ignore[attr-defined]
    return value


def _around(function: Any) -> Iterator[Callable[[], Any]]:
    """What reads each variable that a function takes from outside: its defaults, the variables of
    functions around it, the global ones, and of the user's modules and classes those it names."""
    for defaults in ("__defaults__", "__kwdefaults__"):
        if getattr(function, defaults):
            yield partial(getattr, function, defaults)
    for cell in function.__closure__ or ():
        yield partial(_contents, cell)
    space, codes = function.__globals__, list(_codes(function.__code__))
    attributes = dict.fromkeys(name for code in codes for name in code.co_names)
    for name in dict.fromkeys(name for code in codes for name in _globals(code)):
        if name not in space:
            continue
        value = space[name]
        if not isinstance(value, (ModuleType, type)):
            yield partial(space.get, name, MISSING)
        elif not of_library(value):
            inner = vars(value)
            yield from (partial(inner.get, n, MISSING) for n in attributes if n in inner)


def _slots(kind: type) -> Sequence[str]:
    names: Any = vars(kind).get("__slots__", ())
    return [names] if isinstance(names, str) else [n for n in names if n[:2] != "__"]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a variable that is not set yet
        return MISSING


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _globals(code: CodeType) -> Iterator[str]:
    """The global variables that it reads; `co_names` has attributes and methods beside them."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            yield str(step.argval)


def _version(tensor: torch.Tensor) -> int | None:
    """How often it was changed in place; None where PyTorch does not count."""
    return None if tensor.is_inference() else tensor._version
