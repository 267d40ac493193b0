"""A kernel for the CPU compiled and run, into an output full of NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from legalize import cpu
from relay_wgrad.problem import ConvProblem
from tests.support.problems import poisoned, random_operands, relative_error, torch_reference

TARGET = cpu.host_target()


def run(problem: ConvProblem, target: Target = TARGET) -> float:
    """Relative error of the kernel."""
    return error_of(problem, tvm.compile(cpu.prim_func(problem, target), target=target)["main"])


def error_of(problem: ConvProblem, kernel: Callable[..., Any]) -> float:
    """Relative error of a compiled kernel."""
    a, b = random_operands(problem, np.random.default_rng(0))
    out = tvm.runtime.tensor(poisoned(problem))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    return relative_error(out.numpy(), torch_reference(problem, a, b))
