"""A compiled program by what its module is made of: a second process finds it before any pass runs.

A training graph and a few options decide what differentiation, conversions and updates make of
them, so a digest of those, of TVM and of this package's files stands for the program: what is kept
under it is the digest of the module that was compiled (`building.programs`), and what else whoever
asked has learned while it was made.  If that program has gone, all is made anew.

Options are told by their values.  What has none that another process could have (a function, an
object of a caller's) has no digest, and nothing is kept or found by it; nor is it where an operator
has other rules than when this package was loaded, since they decide on the module too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import tvm
from tvm.target import Target

from ..building import programs
from ..building.disk_cache import DiskCache
from ..frontend import TrainingGraph
from ..registry import rules_are_known
from .compiled import LOADING, Compiled, Progress, facts_of, loaded, silent
from .forward_backward import Parts, to_part

Recall = Callable[[tvm.IRModule, Mapping[str, Any]], "Origin"]
"""Of the module that others are made of, and what decides how."""

# Of a graph: what its module's text says, what is none of its programs', and what no digest knows.
_ELSEWHERE = {"module", "params", "notes", "weights", "loss", "returned"}


class Origin:
    """What a program is made of.

    module : from which passes begin.  options : what decides what they make of it, all of it.
    """

    def __init__(self, module: tvm.IRModule, options: Mapping[str, Any], target: Target) -> None:
        self._kept = DiskCache()
        self._key: str | None = None
        try:
            said = json.dumps(_plain(dict(options)))
        except TypeError:
            return
        if rules_are_known():
            facts = ["made of this", said, *facts_of(target)]
            self._key = programs.key_of_program(module, target, facts)

    def found(self, progress: Progress = silent) -> tuple[Compiled, dict[str, Any]] | None:
        """The program that was made of it, and what was told of that."""
        pair = None if self._key is None else programs.get_told(self._kept, self._key)
        if pair is None:
            return None
        key, told = pair
        compiled = loaded(self._kept, key)
        if compiled is None:
            return None
        progress(LOADING)
        return compiled, told

    def keep(self, compiled: Compiled, told: Mapping[str, Any]) -> None:
        """told : what another process cannot see of the program, in JSON."""
        if self._key is not None and compiled.key is not None:
            programs.put_told(self._kept, self._key, compiled.key, told)


class Nowhere(Origin):
    """Of a device whose whole programs are not kept."""

    def __init__(self, module: tvm.IRModule, options: Mapping[str, Any]) -> None:
        self._key = None


def options_of(graph: TrainingGraph) -> dict[str, Any]:
    """What of a graph decides what is made of it, beside its module."""
    own = {f.name: getattr(graph, f.name) for f in fields(graph) if f.name not in _ELSEWHERE}
    return {**own, "params": list(graph.params)}


def compiled_graph(
    where: Any, graph: TrainingGraph, progress: Progress, how: dict[str, Any]
) -> tuple[Compiled, Any]:
    """`compiled_parts` of a graph; `how`: the options of `to_part`."""
    options = {"what": "parts of a graph", **how, "graph": options_of(graph)}
    return compiled_parts(where, graph.module, options, lambda: to_part(graph, **how), progress)


def compiled_parts(
    where: Any, of: tvm.IRModule, options: Mapping[str, Any],
    make: Callable[[], tuple[tvm.IRModule, Any]], progress: Progress = silent,
) -> tuple[Compiled, Any]:  # fmt: skip
    """Parts compiled for a place, and how they are called: `TwoParts`; of a program that was kept
    `Parts`, without the module.

    make : makes, of that module by these options, the whole and what makes parts of it.
    """
    origin = where.recall(of, options)
    if (found := origin.found(progress)) is not None:
        return found[0], Parts.of(found[1])
    module, parting = make()
    compiled, parts = where.compile(module, progress, parting), parting.parts
    origin.keep(compiled, parts.told())
    return compiled, parts


def _plain(value: Any) -> Any:
    """A value in JSON.  Raises TypeError for one that another process could not have."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *map(_plain, value)]
    if isinstance(value, Mapping):
        return ["dict", *([_plain(name), _plain(each)] for name, each in value.items())]
    if is_dataclass(value) and not isinstance(value, type):
        own = [[f.name, _plain(getattr(value, f.name))] for f in fields(value)]
        return [type(value).__qualname__, *own]
    raise TypeError(f"{type(value).__name__} has no value that another process could have")
