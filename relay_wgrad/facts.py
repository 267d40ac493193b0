"""What became of each convolution: facts that kernels carry as attributes, and their reading.

A kernel says in its function's attributes which op and which problem it computes and where it came
from, so that no name has to be parsed.
"""

from __future__ import annotations

from dataclasses import dataclass

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
