"""Modules compiled for a CPU, of kernels that are kept: by digest, so a test gets what it wrote.

`tvm.compile` compiles each kernel anew, through passes whose work LLVM does again.  Where the
subject is what a program computes, this is it: `relay_wgrad.building`, which tests of its own
compare with `tvm.compile`.
"""

from __future__ import annotations

from typing import Any

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
