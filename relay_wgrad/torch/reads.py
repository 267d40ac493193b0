"""What a module's `forward` reads and writes while it is traced.

What was read is all that a trace can have gone by, so another program is needed where that has
changed, and only there: a number that `forward` does not read may change at each step.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import cached_property
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple

import torch

from .snapshots import Absent, Anything, Equal, Snapshot, Taken, of_library

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HELD = ("_parameters", "_buffers", "_modules")
_STANDARD = frozenset(torch.nn.Module().__dict__) - {"training"} | {"__dict__", "__class__"}
_REMEDY = "keep that out of forward, or call the module once before if it is made once"


class LostError(ValueError):
    """What a module does besides its result, which a compiled pass would not do."""


class Read(NamedTuple):
    """An attribute: where it is looked up, its name, what errors call it, what it was."""

    held: Any  # a `__dict__`, of a class a mapping
    name: str
    title: str
    was: Snapshot


class _Keys:
    """The names in a `__dict__`, as one value."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held

    def get(self, *_: Any) -> tuple[str, ...]:
        return tuple(self._held)


class _Written(NamedTuple):
    held: dict[str, Any]
    name: str
    title: str
    value: Any
    by_library: bool


class Reads:
    """Of one module; `heard` around its trace, then `check`.

    parts : of each `__dict__` by its id the module and what errors call it; those of other modules
        than its own layers (a list's, a function's) after them.
    buffers : (its id, name) of each buffer that was read, and parameters of such other modules.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.parts: dict[int, tuple[torch.nn.Module, str]] = {}
        self.taken = Taken(self._register)
        self.reads: dict[tuple[int, str], Read] = {}
        self.buffers: set[tuple[int, str]] = set()
        self._changed: list[str] = []
        self._written: dict[tuple[int, str], _Written] = {}
        self._own = frozenset(id(part.__dict__) for part in module.modules())
        for path, part in module.named_modules():
            self._add(part, repr(path) if path else "the module")

    def _register(self, module: torch.nn.Module) -> None:
        for path, part in module.named_modules(prefix="another module"):
            if id(part.__dict__) not in self._own:
                self._add(part, repr(path))

    def _add(self, part: torch.nn.Module, path: str) -> None:
        held = part.__dict__
        if id(held) in self.parts:
            return
        self.parts[id(held)] = part, path
        for kind in HOOKS:
            if held[kind]:
                title = f"a hook of {path}"
                self.reads[id(held), kind] = Read(
                    held, kind, title, self.taken.snapshot(title, held[kind])
                )

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Within it this thread's reads and writes are heard of; one at once (`tracing_alone`)."""
        base: Any = torch.nn.Module
        thread, write = get_ident(), base.__setattr__

        def look(module: Any, name: str) -> Any:
            if get_ident() == thread:
                held = object.__getattribute__(module, "__dict__")
                by_torch = _is_torch(sys._getframe(1))
                whole = name == "__dict__" and not by_torch  # `vars(module)` may read them all
                if whole:
                    self._listed(held)
                for one in [*held] if whole else [name]:
                    self._looked(held, type(module), one, by_torch)
            return super(torch.nn.Module, module).__getattribute__(name)

        def put(module: Any, name: str, value: Any) -> None:
            if get_ident() == thread:
                held = object.__getattribute__(module, "__dict__")
                self._wrote(held, name, value, _is_torch(sys._getframe(1)))
            write(module, name, value)

        base.__getattribute__, base.__setattr__ = look, put
        try:
            yield
        finally:
            del base.__getattribute__
            base.__setattr__ = write

    def _listed(self, held: dict[str, Any]) -> None:
        """Which attributes there are counts."""
        if id(held) in self.parts:
            title = f"the attributes of {self.parts[id(held)][1]}"
            keys, key = _Keys(held), (id(held), "__dict__")
            self.reads.setdefault(key, Read(keys, key[1], title, Equal(keys.get())))

    def _looked(self, held: dict[str, Any], kind: type, name: str, by_torch: bool) -> None:
        part, key = self.parts.get(id(held)), (id(held), name)
        if part is None or name in _STANDARD or key in self.reads or key in self._written:
            return
        title = f"{name!r} of {part[1]}"
        if name in held:
            value = held[name]
            # PyTorch's recurrent layers keep a list of their parameters, which it traces as such.
            if by_torch and isinstance(value, list) and any(map(torch.is_tensor, value)):
                self.reads[key] = Read(held, name, title, Anything(True))
            else:
                self.reads[key] = Read(held, name, title, self.taken.snapshot(title, value))
        elif name in held["_buffers"]:
            self.buffers.add(key)
        elif name in held["_parameters"]:
            if id(held) not in self._own:
                self.buffers.add(key)
        elif name not in held["_modules"] and self._looked_in_class(kind, name, title):
            self.reads[key] = Read(held, name, title, Absent(True))

    def _looked_in_class(self, kind: type, name: str, title: str) -> bool:
        """Whether an attribute of the instance would go before what a class has."""
        for one in kind.__mro__:
            there, key = vars(one), (id(one), name)
            is_users = not of_library(one) or _is_generated(one)
            if name not in there:
                if is_users:
                    self.reads.setdefault(key, Read(there, name, title, Absent(True)))
                continue
            if is_users and key not in self.reads and not isinstance(there[name], cached_property):
                self.reads[key] = Read(there, name, title, self.taken.snapshot(title, there[name]))
            return not isinstance(there[name], (property, cached_property))
        return True

    def _wrote(self, held: dict[str, Any], name: str, value: Any, by_library: bool) -> None:
        part = self.parts.get(id(held))
        if part is None or name in _STANDARD or any(name in held[kind] for kind in HELD):
            return
        title = f"{name!r} of {part[1]}"
        self._written[id(held), name] = _Written(held, name, title, value, by_library)

    def put_back(self) -> None:
        """Undoes what was changed in place in lists and the like; of those only counts from then on
        that they are there."""
        changed = self._changed
        for name, value, was, copy in self.taken.changing:
            if not was.holds(value):
                changed.append(name)
                was.is_loose = True
                if copy is not None:
                    value.clear()
                    (value.update if hasattr(value, "update") else value.extend)(copy)
        for name, tensor in self.taken.tensors:
            if not tensor.holds(tensor.tensor):
                changed.append(name)
                tensor.is_loose = True

    def effects(self) -> list[tuple[dict[str, Any], str, Any]]:
        """(a `__dict__`, a name, the value) of all that each call sets, when the trace is over.

        Raises LostError for what is changed that was read before, for tensors that are kept, and
        for those that would get no gradient.
        """
        self.put_back()
        changed, found = self._changed, []
        for key, put in self._written.items():
            if key in self.reads and not self.reads[key].was.holds(put.value):
                if not put.by_library:  # whose layers write of parameters how they lie
                    changed.append(put.title)
                self.reads[key] = self.reads[key]._replace(was=Anything(True))
        if changed:
            raise LostError(
                f"forward changes {changed[0]}, which a compiled pass would not: {_REMEDY}"
            )
        for put in (put for put in self._written.values() if not put.by_library):
            probe = Taken(lambda module: None)
            probe.snapshot(put.title, put.value)
            if probe.tensors or probe.traced:
                raise LostError(
                    f"forward keeps a tensor as {put.title}, which a compiled pass would not:"
                    " return it, or keep it out of forward"
                )
            found.append((put.held, put.name, put.value))
        for name, was in self.taken.tensors:
            if was.tensor.requires_grad:
                raise LostError(
                    f"{name} is used as a tensor that requires a gradient and is no registered"
                    " parameter, so a compiled pass would have none for it"
                )
            was.keep()
        return found


def _is_torch(frame: FrameType) -> bool:
    """Whether it is PyTorch's code that runs, or ours, and not the module's."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "relay_wgrad")


def _is_generated(kind: type) -> bool:
    """Of a `torch.fx.GraphModule` each instance has a class with its code."""
    return issubclass(kind, torch.fx.GraphModule) and kind is not torch.fx.GraphModule
