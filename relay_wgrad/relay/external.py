"""Other compilers for parts of a program: who builds the functions with the attribute `Compiler`.

`relay.build` asks here.  What nobody takes is inlined, and TVM's own kernels compute it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm.target import Target

from ..keys import COMPILER
from .ast import Function, IRModule
from .types import TensorType


class Library(Protocol):
    """What a build gives."""

    def virtual_machine(self, device: Any) -> Any:
        """A Relax virtual machine on a device."""

    @property
    def export_library(self) -> Callable[..., None]:
        """`export_library(path, ...)` writes a shared library."""


Build = Callable[[tvm.IRModule, Mapping[str, Function], Target], Library]


@dataclass(frozen=True)
class External:
    """A compiler.

    `kinds`: the kinds of targets that it builds for.  `build(module, functions, target)` gets a
    Relax module whose function `main` calls the functions, of which it is to compile those named
    in `functions` (with their Relay form).
    """

    kinds: Collection[str]
    build: Build


_COMPILERS: dict[str, External] = {}


def register_external(compiler: str, kinds: Collection[str], build: Build) -> None:
    """Makes `relay.build` give functions with `Compiler=compiler` to `build`."""
    _COMPILERS[compiler] = External(tuple(kinds), build)


def unregister_external(compiler: str) -> None:
    """Takes one back; nothing happens if there is none."""
    _COMPILERS.pop(compiler, None)


def claimed(mod: IRModule, target: Target) -> tuple[Build | None, dict[str, Function]]:
    """Who builds for a target, and which functions; warns of those that TVM computes.

    Raises ValueError where two would have to build one library.
    """
    kind = str(target.kind.name)
    taken: dict[str, Function] = {}
    builds: dict[Build, str] = {}
    left: dict[str, int] = {}
    for name, function in mod.functions.items():
        compiler = str(function.attrs.get(COMPILER, ""))
        if not compiler:
            continue
        found = _COMPILERS.get(compiler)
        if found is None:
            reason = f"no compiler {compiler} is registered"
        elif kind not in found.kinds:
            reason = f"{compiler} builds for {', '.join(found.kinds)}, and the target is {kind}"
        elif not all(isinstance(p.type_annotation, TensorType) for p in function.params):
            reason = f"{compiler} takes tensors, and a parameter is none"
        else:
            taken[name] = function
            builds.setdefault(found.build, compiler)
            continue
        left[reason] = left.get(reason, 0) + 1
    if len(builds) > 1:
        names = " and ".join(builds.values())
        raise ValueError(f"build: one library can't be built by {names}")
    for reason, count in left.items():
        warnings.warn(
            f"build: TVM's own kernels compute {count} functions of another compiler: {reason}",
            UserWarning,
            stacklevel=4,
        )
    return next(iter(builds), None), taken
