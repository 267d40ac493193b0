"""A module compiled for a CPU: the virtual machine's code and objects, loaded without a linker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.support import cc, tar
from tvm.target import Target

from ..garbage import older_objects_stay
from ..keys import SYMBOL
from ..output import working_folder
from .arguments import with_looks
from .disk_cache import DiskCache
from .objects import Ahead, Object, Told, compiled_library, content_of, objects, symbols_of


class Program(relax.VMExecutable):
    """What `tvm.compile` gives, of object files that are loaded already.

    contents : the object files, of which the first holds the virtual machine's code.
    """

    def __init__(self, contents: Sequence[bytes]) -> None:
        self.contents = tuple(contents)
        self._loaded: Any = None

    @property
    def mod(self) -> Any:
        """The module, loaded when it is first asked for: objects may be for another machine."""
        if self._loaded is None:
            # As files: LLVM tells objects with constructors apart by the names of these.
            with self._files() as files:
                self._loaded = _session().load_module(files)
        return self._loaded

    @contextlib.contextmanager
    def _files(self, within: str | None = None) -> Iterator[list[str]]:
        with working_folder(within) as folder:
            files = [folder / f"{i}.o" for i in range(len(self.contents))]
            for path, content in zip(files, self.contents, strict=True):
                path.write_bytes(content)
            yield [*map(str, files)]

    def jit(self, **_: Any) -> Any:
        """The module, which is loaded; TVM's would ask it for its source."""
        return self.mod

    def export_library(
        self,
        file_name: str | Path,
        *,
        fcompile: Callable[..., Any] | Literal[False] | None = None,
        addons: list[str] | None = None,
        workspace_dir: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Links the objects to a shared library, as `tvm.runtime.load_module` takes it.

        fcompile : links instead; False was Relay 0.19's default.
        """
        stock = tar.tar if str(file_name).endswith(".tar") else cc.create_shared
        link = fcompile or stock
        with self._files(workspace_dir) as files:
            return link(str(file_name), [*files, *(addons or [])], **kwargs)


def build(
    module: tvm.IRModule, target: Target, pipeline: Callable[..., tvm.IRModule], kept: DiskCache,
    told: Told = lambda done, of, kept: None, ahead: Ahead | None = None,
) -> tuple[relax.VMExecutable, bytes, list[Object]]:  # fmt: skip
    """The module compiled as `tvm.compile(module, target, relax_pipeline=pipeline)` does.

    ahead : of kernels that were begun before.
    Returns the executable, the object with the virtual machine's code, and those of the kernels.
    Without a loader of objects, and for a module with parts that other code generators made, the
    executable is TVM's, and there are no objects.
    """
    with target, older_objects_stay():
        module = pipeline(module)
    attrs = dict(module.attrs) if module.attrs else {}
    if not loads() or attrs.get("external_mods"):
        return vm_build.build(module, target, relax_pipeline=None), b"", []
    builder = relax.ExecBuilder()
    module, known = with_looks(module)
    kernels = {v: func for v, func in module.functions_items() if isinstance(func, tirx.PrimFunc)}
    made = objects(kernels, target, kept, told, known, ahead)
    vm_build._vmcodegen(builder, _with_symbols(module, symbols_of(made)))
    constants = dict(attrs.get("const_name_to_constant", {}))
    linked = vm_build._ffi_api.VMLink(builder, target, _placeholder(str(target)), [], constants)
    pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
    code = content_of(pack(linked, False, str(target), ""))
    return Program([code, *(each.content for each in made)]), code, made


def _with_symbols(module: tvm.IRModule, symbols: Mapping[str, str]) -> tvm.IRModule:
    """The module with functions from elsewhere in the place of its kernels."""
    functions = {
        var: relax.ExternFunc(symbols[name]) if (name := str(var.name_hint)) in symbols else func
        for var, func in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def compiled_functions(module: tvm.IRModule, target: Target, kept: DiskCache) -> Any:
    """A module of tensor programs, compiled as `tvm.compile(module, target)` does: its functions
    by their names.  What another process has compiled is loaded.
    """
    if not loads():
        return tvm.compile(module, target)
    made = objects(dict(module.functions_items()), target, kept, lambda done, of, kept: None)
    functions = Program([each.content for each in made]).mod
    return {name: functions[symbol] for name, symbol in symbols_of(made).items()}


@lru_cache(maxsize=1)
def loads() -> bool:
    """Whether there is a loader of objects for this machine."""
    try:
        _session()
    except (ImportError, RuntimeError, OSError):
        return False
    return True


def _session() -> Any:
    return import_module("tvm_ffi_orcjit").default_session()


@lru_cache(maxsize=8)
def _placeholder(text: str) -> Any:
    """A library in the place of the objects': the virtual machine's code only says that it has
    one, which is what it is loaded with."""
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.IntImm("int32", 0)))
    named = nothing.with_attr(SYMBOL, "no_kernel")
    return compiled_library(tvm.IRModule({"no_kernel": named}), Target(json.loads(text)))
