"""Whether any of some dictionaries has been changed, told by Python itself.

From 3.12 on Python calls a function before it changes a dictionary that is watched.  So nobody has
to read hundreds to know that they are as they were.  A process has eight such functions for all who
want one, and 3.13.0 changes objects' dictionaries without calling them: what is promised is tried
once.  Where it does not hold, or none is left, there is no `Watch`.

Before 3.12 each dictionary has a number, another one after each change (PEP 509), which the library
in C++ reads (`Tags`): the same promise, tried in the same way.

A value that is set again to the same object is no change, and another `__dict__` in an object's
place is none of the dictionary that was there.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from .host_library import Functions, functions

_KINDS = (dict, OrderedDict)  # of which it is known that no change passes Python's function
SINCE = (3, 12)
"""The version of Python that tells of changes."""


class Watch:
    """Of some dictionaries: `changed` is set when one of them is about to be changed.

    Who asks sets it to False, and looks at the dictionaries then: a change in between is not lost.
    Once it is not open nobody tells it of any.
    """

    __slots__ = ("__weakref__", "_ears", "changed", "ids", "is_open")

    def __init__(self, ears: Ears, ids: Iterable[int]) -> None:
        self.changed = self.is_open = True
        self._ears, self.ids = ears, [*ids]

    def close(self) -> None:
        """Watches no more."""
        self._ears.leave(self)


class Ears:
    """What Python tells of dictionaries: one function of its eight, taken when first wanted."""

    def __init__(self) -> None:
        self._number: int | None = None  # the function's; -1: there is none
        self._function: Any = None  # what C calls: it must stay
        self._lock = threading.RLock()
        self.watches: dict[int, list[Watch]] = {}  # by a dictionary's id
        self._dictionaries: dict[int, Any] = {}  # they live as long as they are watched

    def watch(self, dictionaries: Iterable[Any]) -> Watch | None:
        """A `Watch` of dictionaries, which live until it is closed; None where that cannot be."""
        found = {id(one): one for one in dictionaries}
        if any(type(one) not in _KINDS for one in found.values()) or not self._hears():
            return None
        made = Watch(self, found)
        with self._lock:
            try:
                for i, one in found.items():
                    self._dictionaries[i] = one
                    self.watches[i] = [*self.watches.get(i, ()), made]
                    ctypes.pythonapi.PyDict_Watch(self._number, one)
            except Exception:  # somebody has taken our function away
                self.end()
        return made if made.is_open else None

    def leave(self, watch: Watch) -> None:
        """Tells a watch of no more changes."""
        with self._lock:
            for i in watch.ids if watch.is_open else ():
                others = [one for one in self.watches[i] if one is not watch]
                if others:
                    self.watches[i] = others
                else:
                    del self.watches[i]
                    ctypes.pythonapi.PyDict_Unwatch(self._number, self._dictionaries.pop(i))
            watch.is_open = False

    def _hears(self) -> bool:
        """Whether Python tells us of changes."""
        with self._lock:
            if self._number is None:
                self._number = -1
                try:
                    self.begin()
                except Exception:  # of whatever kind: there is another way
                    self.end()
            return self._number >= 0

    def begin(self) -> None:
        """Takes a function and tries it.  Raises where there is none."""
        if sys.version_info < SINCE or sys.implementation.name != "cpython":
            return
        api = ctypes.pythonapi
        kind = ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        )
        api.PyDict_AddWatcher.argtypes, api.PyDict_AddWatcher.restype = [kind], ctypes.c_int
        for function in (api.PyDict_Watch, api.PyDict_Unwatch):
            function.argtypes, function.restype = [ctypes.c_int, ctypes.py_object], ctypes.c_int
        self._function = kind(self._told)
        self._number = int(api.PyDict_AddWatcher(self._function))
        atexit.register(self.end)  # before what the function needs goes
        if not hears_all(self.watch):
            self.end()

    def end(self) -> None:
        """Watches nothing any more."""
        with self._lock:
            number, self._number = self._number, -1
            if number is not None and number >= 0:
                for one in self._dictionaries.values():
                    ctypes.pythonapi.PyDict_Unwatch(number, one)
                ctypes.pythonapi.PyDict_ClearWatcher(number)
            for watches in self.watches.values():
                for watch in watches:
                    watch.is_open = False
            self.watches.clear()
            self._dictionaries.clear()

    def _told(self, event: int, address: int, key: int, value: int) -> int:
        for watch in self.watches.get(address, ()):
            watch.changed = True
        return 0


class Tags:
    """The same, asked of the dictionaries themselves."""

    __slots__ = ("_dictionaries", "_is_set", "_library", "_tags", "is_open")

    def __init__(self, library: Functions, dictionaries: Iterable[Any]) -> None:
        self._library, self._dictionaries = library, tuple(dictionaries)  # who must live
        self._tags = library.take_tags(self._dictionaries)
        self._is_set = self.is_open = True

    @property
    def changed(self) -> bool:
        return self._is_set or not self._library.hold_tags(self._tags)

    @changed.setter
    def changed(self, value: bool) -> None:
        self._is_set = value
        if not value:
            self._library.set_tags(self._tags)

    def close(self) -> None:
        """Asks no more."""
        self._dictionaries, self._tags = (), self._library.take_tags(())
        self._is_set, self.is_open = True, False


def tagged(dictionaries: Iterable[Any]) -> Tags | None:
    """`Tags` of dictionaries; None where there are none, or they do not say what they should."""
    library, found = functions(), [*dictionaries]
    if library is None or any(type(one) not in _KINDS for one in found) or not _tags_tell(library):
        return None
    return Tags(library, found)


@cache
def _tags_tell(library: Functions) -> bool:
    is_one = sys.version_info < SINCE and sys.implementation.name == "cpython"
    return is_one and hears_all(lambda some: Tags(library, some))


class _Thing:
    """What attributes are tried on."""


def hears_all(watch: Callable[[Iterable[Any]], Watch | Tags | None]) -> bool:
    """Whether each way to change a dictionary, an object's too, is told of, and nothing else."""
    thing: Any = _Thing()
    thing.first = thing.second = 1
    held, ordered = thing.__dict__, OrderedDict[int, int]()

    def store() -> None:
        for i in range(100):  # Python writes such code anew while it runs
            thing.first = float(i)

    ways: list[Callable[[], Any]] = [
        store, store, lambda: setattr(thing, "first", 2),
        lambda: object.__setattr__(thing, "third", 3), lambda: delattr(thing, "third"),
        lambda: held.__setitem__("first", 4), lambda: held.update(first=5),
        lambda: held.pop("second"), lambda: held.setdefault("x", 1), lambda: held.popitem(),
        lambda: held.__ior__({"y": 1}), held.clear,
        lambda: ordered.__setitem__(1, 2), lambda: ordered.__setitem__(1, 3),
        lambda: ordered.pop(1), lambda: ordered.update({4: 5}), lambda: ordered.popitem(),
        lambda: ordered.setdefault(6, 7), ordered.clear,
    ]  # fmt: skip
    told = watch([held, ordered])
    if told is None:
        return False
    seen = []
    for way in ways:
        told.changed = False
        seen.append(not told.changed)
        way()
        seen.append(told.changed)
    told.close()
    return all(seen)


_ears = Ears()


def watch(dictionaries: Iterable[Any]) -> Watch | Tags | None:
    """A `Watch` of dictionaries, or `Tags`, which live until it is closed; None where neither can
    be."""
    found = [*dictionaries]
    return _ears.watch(found) or tagged(found)
