"""Facts that functions carry as attributes, and their reading: no name has to be parsed.

A kernel says which op and which problem it computes and where it came from; a function of an
optimizer's update says its rule; one of a chain says what it takes of the others.  An attribute is
text where a module's text must have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm

from . import keys
from .graph.walk import bindings_of
from .ir import op_name


@dataclass
class Lowered:
    """One convolution of a legalized function."""

    op: str  # the operator's short name
    problem: str  # ConvProblem.repro()
    source: str  # which generator made its kernel, and which of its kernels
    kernel: str  # the kernel's name in the module
    seconds: float | None = None  # one run, where it was measured
    reason: str = ""  # for that kernel


def lowered_convolutions(mod: tvm.IRModule, function: str) -> list[Lowered]:
    """The convolutions of a function after LegalizeOps, in program order."""
    found = []
    for value in (binding.value for binding in bindings_of(mod[function])):
        attrs = mod[value.args[0]].attrs if op_name(value) == "relax.call_tir" else None
        if attrs is not None and keys.PROBLEM in attrs:
            said = [str(attrs[key]) for key in (keys.OP, keys.PROBLEM, keys.SOURCE)]
            kernel, reason = str(value.args[0].name_hint), str(attrs[keys.REASON])
            found.append(Lowered(said[0], said[1], said[2], kernel, reason=reason))
    return found


def update_attrs(rule: Mapping[str, Any]) -> dict[str, str]:
    """Attributes of a function that computes an update, or counts: its `rule` and numbers."""
    return {keys.UPDATE: json.dumps(rule)}


def update_rule(func: Any) -> dict[str, Any] | None:
    """What `update_attrs` says of a function; None for another."""
    if func.attrs is None or keys.UPDATE not in func.attrs:
        return None
    rule: dict[str, Any] = json.loads(str(func.attrs[keys.UPDATE]))
    return rule


class Link(NamedTuple):
    """A function of a chain, of functions that are called one after another.

    place : its own among them, from 0.  takes : of each parameter (the place of the function, the
        place among its results) that it is given, or None for what is from elsewhere.
    """

    place: int
    takes: Sequence[tuple[int, int] | None]


def chain_attrs(link: Link) -> dict[str, str]:
    """Attributes of a function of a chain."""
    return {keys.CHAIN: json.dumps([link.place, list(link.takes)])}


def chain_link(func: Any) -> Link | None:
    """What `chain_attrs` says of a function; None for another."""
    if func.attrs is None or keys.CHAIN not in func.attrs:
        return None
    place, takes = json.loads(str(func.attrs[keys.CHAIN]))
    return Link(place, [None if take is None else (take[0], take[1]) for take in takes])
