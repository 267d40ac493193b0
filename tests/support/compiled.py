"""Modules compiled for a CPU, of kernels that are kept: by digest, so a test gets what it wrote.

`tvm.compile` compiles each kernel anew, through passes whose work LLVM does again.  Where the
subject is what a program computes, this is it: `relay_wgrad.building`, which tests of its own
compare with `tvm.compile`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from relay_wgrad.building import program
from relay_wgrad.building.disk_cache import DiskCache


def virtual_machine(
    module: tvm.IRModule, target: Any = "llvm", pipeline: Any = "default"
) -> relax.VirtualMachine:
    """The virtual machine of a Relax module; the pipeline is TVM's own by "default"."""
    chosen = Target(target)
    passes = relax.get_pipeline("default") if pipeline == "default" else pipeline
    return relax.VirtualMachine(program.build(module, chosen, passes, DiskCache())[0], tvm.cpu())


def step_results(module: tvm.IRModule, values: Iterable[np.ndarray]) -> list[np.ndarray]:
    """All that a step gives of values for its parameters: its results, then its gradients."""
    from relay_wgrad.training.step import ADJOINT  # most tests load no training

    plain = module.without_attr("external_mods")
    first, partials = virtual_machine(plain)[ADJOINT](*map(tvm.runtime.tensor, values))
    return [t.numpy() for t in (*first, *partials)]
