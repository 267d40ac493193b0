"""From a partitioned module to something that runs: in this process, or exported to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target
from tvm_ffi import libinfo

from relay_wgrad.pipeline.cuda import cuda_pipeline

from ..backends.cutlass.codegen import kernels_of
from ..backends.cutlass.objects import objects
from ..backends.generators import ALL_PLANS, register
from .toolchain import Toolchain, find, preload


class Library:
    """A compiled module whose offloaded part is still C++ source.

    Making one needs neither a GPU nor a vendor's library nor a compiler; those are needed by what
    is done with it: `virtual_machine` and `export_library`.  For CUTLASS that is when nvcc runs.
    """

    def __init__(self, executable: Any) -> None:
        self.executable = executable
        self._runnable: Any = None

    @property
    def sources(self) -> list[str]:
        """The generated C++ sources; none if nothing was offloaded."""
        return [str(module.inspect_source()) for module in _sources(self.executable.mod)]

    def virtual_machine(
        self, device: Any = None, *, toolchain: Toolchain | None = None
    ) -> relax.VirtualMachine:
        """A virtual machine on `device` (the first CUDA device), after building the C++ source.

        Raises
        ------
        ToolchainError : saying what a build needs that is not there, and how to get it.
        """
        if self._runnable is None:
            self._runnable = self.executable.jit(**self._arguments(toolchain))
        return relax.VirtualMachine(self._runnable, tvm.cuda(0) if device is None else device)

    def export_library(self, path: str | Path, *, toolchain: Toolchain | None = None) -> None:
        """Writes a shared library that runs where TVM's runtime, CUDA and cuDNN are.

        This package is not needed there: `tvm.runtime.load_module(path)` is enough.

        Raises ToolchainError as `virtual_machine` does.
        """
        self.executable.export_library(str(path), **self._arguments(toolchain))

    def plans(self) -> list[str]:
        """What was chosen for each problem that has run in this process, one line each.

        Problem and machine, engine and settings, bytes of workspace, milliseconds if it was timed;
        separated by tabs.  Nothing before `virtual_machine` has been used.
        """
        if self._runnable is None:
            return []
        modules = _all(self._runnable)
        texts = [str(m[p]()) for m in modules for p in ALL_PLANS if m.implements_function(p)]
        # One library can be there as two modules.
        return list(dict.fromkeys(line for text in texts for line in text.splitlines()))

    def _arguments(self, toolchain: Toolchain | None) -> dict[str, Any]:
        if not self.sources:
            return {}
        found = find() if toolchain is None else toolchain
        inputs = [path for source in self.sources for path in _inputs(source, found)]
        preload(found)
        program, *flags = found.compiler
        return {"options": [*flags, *found.options, *inputs], "cc": program}


def build(
    mod: tvm.IRModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    pipeline: Any = None,
) -> Library:
    """Compiles a partitioned module.

    Parameters
    ----------
    mod : what `partition` returned.  What it left is compiled by TVM's own pipeline.
    target : a CUDA target; by default that of the first device, or the oldest one that runs
        half-precision tensor cores on every supported GPU (sm_75) where there is none.
    pipeline : the Relax pipeline for what was left, as `tvm.compile` takes it; by default
        `relay_wgrad.transform.cuda_pipeline`.

    Raises
    ------
    ValueError : for a target of another kind, and for regions that no code can be generated for.
    """
    chosen = _target(target)
    register()
    with chosen:  # for the code generators
        mod = relax.transform.RunCodegen()(mod)
    chosen_pipeline = cuda_pipeline() if pipeline is None else pipeline
    return Library(tvm.compile(mod, target=chosen, relax_pipeline=chosen_pipeline))


def _target(target: Target | str | Mapping[str, Any] | None) -> Target:
    if target is None:
        preload()
        device = tvm.cuda(0)
        if device.exist:
            return Target.from_device(device)
        target = {"kind": "cuda", "arch": "sm_75"}
    chosen = target if isinstance(target, Target) else Target(target)
    if str(chosen.kind.name) != "cuda":
        raise ValueError(f"build: the target must be a CUDA one, got {chosen.kind.name}")
    return chosen if chosen.host is not None else chosen.with_host("llvm")


def _all(module: Any) -> list[Any]:
    """A module and all that it imports, once each."""
    found = [module]
    for one in found:
        found += [imported for imported in one.imports if imported not in found]
    return found


def _sources(module: Any) -> list[Any]:
    """The generated C++ among a module and its imports; TVM has C sources of its own."""
    return [
        m
        for m in _all(module)
        if str(m.kind) == "c" and any(m.implements_function(plans) for plans in ALL_PLANS)
    ]


def _inputs(source: str, toolchain: Toolchain) -> list[str]:
    """The objects that a generated source is linked with: CUTLASS's kernels, built for it.

    Raises ToolchainError if something is missing for it.
    """
    if kernels_of(source):
        return [str(path) for path in objects(source, toolchain)]
    toolchain.require()
    return []


def library_command(source: Path, output: Path, toolchain: Toolchain | None = None) -> list[str]:
    """The command that builds generated source into a library that `tvm_ffi.load_module` loads.

    Raises ToolchainError if something is missing.
    """
    found = find() if toolchain is None else toolchain
    inputs = _inputs(source.read_text(encoding="utf-8"), found)
    ffi = Path(libinfo.find_libtvm_ffi())
    return [
        *found.compiler, *found.compile_options, "-shared", str(source), *inputs,
        "-o", str(output), *found.link_options,
        "-Xlinker", "-rpath", "-Xlinker", str(ffi.parent), str(ffi),
    ]  # fmt: skip
