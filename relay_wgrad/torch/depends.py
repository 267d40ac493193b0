"""What a compiled program depends on, and whether it is as it was.

All that a trace has read (`Reads`) is compared at each call: first by identity, all modules at
once, in C++ where that can be (`host_library`), and value by value where that has failed.
Where Python tells of changes (`dict_watch`), the dictionaries among it are read after one alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch

from ..picking import picked
from .dict_watch import Tags, Watch, watch
from .host_library import functions
from .reads import HELD, HOOKS, Read, Reads
from .snapshots import MISSING, Numbers, Taken, of_library
from .tensor_facts import TensorFacts

Facts = tuple[Any, ...]
_attributes = attrgetter("__dict__")


class Depends:
    """Of one program on a module.

    reads : what its trace has read.
    arguments : ids of the tensors, of the module's parameters and buffers, that the program is
        given at each call, of which only kind and size count.
    gradients : whether it counts which of them require one.

    settled : another object whenever tensors that are there may be others than those of before, or
        may lie elsewhere or in another way.
    """

    def __init__(self, reads: Reads, arguments: Collection[int], gradients: bool) -> None:
        self.opaque = list(dict.fromkeys(reads.taken.opaque))
        self._gradients = gradients
        self._parts = list(reads.parts.values())
        self._modules = [part for part, _ in self._parts]
        self._kinds = [*map(type, self._modules)]
        self._dicts = [part.__dict__ for part, _ in self._parts]
        self._layers = [dict(held["_modules"]) for held in self._dicts]
        self._reads = [*reads.reads.values(), *_constants(reads, arguments)]
        self._hooked = {(id(r.held), r.name) for r in self._reads if r.name in HOOKS}
        self._kinds_of_tensors = self._facts_now()
        self._watch: Watch | Tags | None = None
        self._are_objects_same = _look_at(self._modules, self._kinds, self._dicts)
        self._watched: list[Any] = []
        self._had_library = False
        self._settle()

    def is_current(self) -> bool:
        """Whether a program of before computes what the module does now."""
        if self._is_untouched():
            return True
        if self.difference():
            return False
        self._settle()
        return True

    def difference(self) -> str:
        """What has changed, in words, or ""; value by value."""
        before = zip(self._parts, self._kinds, self._dicts, self._layers, strict=True)
        for (part, path), kind, held, layers in before:
            if type(part) is not kind:
                return f"the class of {path}"
            if part.__dict__ is not held:
                return f"the attributes of {path}"
            now = part.__dict__["_modules"]
            if list(now) != list(layers) or not all(map(is_, now.values(), layers.values())):
                return f"the layers of {path}"
            for hooks in HOOKS:
                if part.__dict__[hooks] and (id(part.__dict__), hooks) not in self._hooked:
                    return f"the hooks of {path}"
        for read in self._reads:
            if not read.was.holds(read.held.get(read.name, MISSING)):
                return read.title
        if self._facts_now() != self._kinds_of_tensors:
            return "its parameters or buffers"
        return ""

    def _facts_now(self) -> list[Facts]:
        """Of parameters and buffers what a program is compiled for, and which are one tensor."""
        found: list[Facts] = []
        first: dict[int, int] = {}
        for held in self._dicts:
            for kind in HELD[:2]:
                for name, tensor in held[kind].items():
                    if tensor is None:
                        continue
                    grad = self._gradients and tensor.requires_grad
                    same = first.setdefault(id(tensor), len(found))
                    is_other = is_dispatched(tensor)
                    found.append(
                        (name, tensor.shape, tensor.dtype, tensor.device, grad, same, is_other)
                    )
        return found

    # ---- by identity ---------------------------------------------------------------------------

    def _settle(self) -> None:
        """Takes what there is now for what was."""
        self.settled = object()
        self._begin_watch()
        names: dict[int, list[str]] = {id(held): list(HOOKS) for held in self._dicts}
        self._loose, self._of_classes = [], []
        for held, name, _, was in self._reads:
            if not was.fixed:
                self._loose.append((held.get, name, was.holds))
            elif id(held) not in names:
                self._of_classes.append((held.get, name, held.get(name, MISSING)))
            elif name in held:
                names[id(held)].append(name)
            # Of what is not there, one that came would add to the count: none that was read goes.
        # Those of which the same names were read together, for loops in C.
        theirs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        own: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for part, held in zip(self._modules, self._dicts, strict=True):
            to = theirs if of_library(type(part)) else own
            to.setdefault(tuple(names[id(held)]), []).append(held)
        self._theirs = [(itemgetter(*some), helds) for some, helds in theirs.items()]
        self._own = [(itemgetter(*some), helds) for some, helds in own.items()]
        self._values = [*_values(self._theirs)]
        self._own_values = [*chain.from_iterable(_values(self._own))]
        self._counts = [*map(len, self._dicts)]
        self._empty = [d[kind] for d in self._dicts for kind in (*HELD, *HOOKS) if not d[kind]]
        self._filled = [d[kind] for d in self._dicts for kind in HELD if d[kind]]
        self._tensors = list(chain.from_iterable(map(dict.values, self._filled)))
        # A tensor of one number equals another of the same.
        numbers = [
            i for i, x in enumerate(self._tensors)
            if isinstance(x, torch.Tensor) and x.numel() == 1
        ]  # fmt: skip
        self._pick_numbers = picked(numbers)
        self._numbers = self._pick_numbers(self._tensors)
        # Others have no memory that compiled code could read: such a module is PyTorch's to run.
        self._facts = TensorFacts([
            x for d in self._dicts for kind in HELD[:2] for x in d[kind].values()
            if x is not None and x.layout is torch.strided and not x.is_nested
            and not is_dispatched(x)
        ])  # fmt: skip

    def _begin_watch(self) -> None:
        """From now on changes of dictionaries are told, where that can be."""
        held = [*self._dicts, *(d[kind] for d in self._dicts for kind in (*HELD, *HOOKS))]
        if self._watch is None or not all(map(is_, held, self._watched)):
            if self._watch is not None:
                self._watch.close()
            self._watched, self._watch = held, watch(held)
            if self._watch is not None:
                weakref.finalize(self, self._watch.close).atexit = False
        if self._watch is not None:
            self._watch.changed = False

    def _is_untouched(self) -> bool:
        """Whether everything is the same object; that of a library's layers may be an equal one."""
        told = self._watch
        try:
            if functions() is not None and not self._had_library:
                self._had_library = True
                if told is None:  # from here on it may be told
                    self._begin_watch()
                    told = self._watch
                    if told is not None:
                        told.changed = True
            if told is None or not told.is_open:
                return self.are_dictionaries_same() and self._is_rest_same()
            if told.changed:
                told.changed = False  # what changes from here on counts for the next call
                told.changed = not self.are_dictionaries_same()
            return not told.changed and self._is_rest_same()
        except Exception:  # of any kind: something that cannot be compared with what was there
            if told is not None:
                told.changed = True
            return False

    def are_dictionaries_same(self) -> bool:
        """Whether the dictionaries are as they were."""
        own = chain.from_iterable(_values(self._own))
        tensors = [*chain.from_iterable(map(dict.values, self._filled))]
        return (
            not any(self._empty)
            and [*_values(self._theirs)] == self._values
            and all(map(is_, own, self._own_values))
            and [*map(len, self._dicts)] == self._counts
            and tensors == self._tensors
            and all(map(is_, self._pick_numbers(tensors), self._numbers))
        )

    def _is_rest_same(self) -> bool:
        """Whether all else is: what no dictionary of a module has in it."""
        return (
            self._are_objects_same()
            and self._facts.hold()
            and all(get(name, MISSING) is value for get, name, value in self._of_classes)
            and all(holds(get(name, MISSING)) for get, name, holds in self._loose)
        )


def _look_at(
    modules: Sequence[torch.nn.Module], kinds: Sequence[type], dicts: Sequence[dict[str, Any]]
) -> Callable[[], bool]:
    """What says whether each module is of its class and has its dictionary."""
    three = tuple(modules), tuple(kinds), tuple(dicts)
    is_plain: bool | None = None  # a class may say itself which dictionary it has

    def look() -> bool:
        nonlocal is_plain
        library = functions()
        if library is not None and is_plain is not False:
            if library.hold_objects(*three):
                is_plain = True
                return True
            if is_plain:
                return False
        same = [*map(type, modules)] == kinds and all(map(is_, map(_attributes, modules), dicts))
        if same and library is not None:
            is_plain = False
        return same

    return look


def is_dispatched(x: torch.Tensor) -> bool:
    """Whether its class computes what is done to it: `DTensor`, fake and masked tensors, of which
    nobody else may read the memory."""
    return type(x).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def _values(groups: Iterable[tuple[Any, list[dict[str, Any]]]]) -> Iterator[tuple[Any, ...]]:
    """Of each dictionary the values of its group's names."""
    return chain.from_iterable(map(get, helds) for get, helds in groups)


def _constants(reads: Reads, arguments: Collection[int]) -> list[Read]:
    """Buffers that were read, and are constants of the program."""
    found, taken = [], Taken(lambda module: None)
    for held, path in ((part.__dict__, path) for part, path in reads.parts.values()):
        for kind in ("_buffers", "_parameters"):
            for name, tensor in held[kind].items():
                if (id(held), name) in reads.buffers and id(tensor) not in arguments:
                    title = f"{name!r} of {path}"
                    was = taken.snapshot(title, tensor)
                    if isinstance(was, Numbers):
                        was.keep()
                    found.append(Read(held[kind], name, title, was))
    return found
