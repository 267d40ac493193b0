"""Code generators as TVM calls them: `relax.ext.<codegen>`, from a backend's `generate`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import get_global_func, relax
from tvm.target import Target

from ..backends.base import Backend
from .regions import read_region

_OURS: dict[str, Backend] = {}  # by codegen; the last that was registered generates


def arch_of(target: Any) -> int | None:
    """The number of a CUDA target's GPU: 90 of sm_90a; None where it names none."""
    match = re.match(r"sm_(\d+)", str(target.attrs.get("arch", ""))) if target else None
    return int(match[1]) if match else None


def register(backend: Backend) -> None:
    """Makes a backend's code generator known to TVM; again is no error.

    Does nothing for a backend without `generate`.

    Raises ValueError where somebody else has registered a generator of that name.
    """
    if backend.generate is None:
        return
    name = f"relax.ext.{backend.codegen}"
    if backend.codegen not in _OURS:
        if get_global_func(name, allow_missing=True) is not None:
            raise ValueError(f"{backend.name}: {name} is registered already, by another")
        tvm_ffi.register_global_func(name, _compiler(backend.codegen))
    _OURS[backend.codegen] = backend


def _compiler(codegen: str) -> Any:
    def compile_(functions: Sequence[relax.Function], options: Any, constants: Any) -> list[Any]:
        backend = _OURS[codegen]
        assert backend.generate is not None
        regions = [read_region(func) for func in functions]
        source = backend.generate(regions, arch_of(Target.current()))
        # By the last of them the source is told from those that TVM makes.
        symbols = [*(region.symbol for region in regions), backend.plans]
        return [get_global_func("runtime.CSourceModuleCreate")(source, "cc", symbols, [])]

    return compile_
