"""What became of each convolution: facts that kernels carry as attributes, and their reading.

A kernel says in its function's attributes which op and which problem it computes and where it came
from, so that no name has to be parsed.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Op

from . import keys


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
    call_tir = Op.get("relax.call_tir")
    found = []
    for block in mod[function].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not (isinstance(value, relax.Call) and value.op == call_tir):
                continue
            attrs = mod[value.args[0]].attrs
            if attrs is not None and keys.PROBLEM in attrs:
                found.append(
                    Lowered(
                        str(attrs[keys.OP]),
                        str(attrs[keys.PROBLEM]),
                        str(attrs[keys.SOURCE]),
                        str(value.args[0].name_hint),
                        reason=str(attrs[keys.REASON]),
                    )
                )
    return found
