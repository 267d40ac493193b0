"""A module's library: its C++ sources, what TVM compiled of it, and objects of kernels, linked.

Sources are compiled beside each other and beside the kernels' objects.  Each object, and the
library, is kept under a digest of all that it depends on (`disk_cache`), so a second build of the
same module starts no compiler but to ask for its version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm_ffi import libinfo

from relay_wgrad.building.disk_cache import DiskCache, key_of
from relay_wgrad.output import working_folder

from .toolchain import Toolchain, ToolchainError, run_tool

_SECONDS = 1800  # for one source; they take ten
_SOURCES = (".c", ".cc", ".cpp")
_HEADERS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH")


def host_facts(found: Toolchain) -> list[str]:
    """What host code that was compiled and linked depends on beside its text.

    Raises ToolchainError where there is no compiler.
    """
    if not found.compiler:
        raise ToolchainError("\n".join(found.lacking()))
    version = run_tool([*found.compiler, "--version"], "the compiler", _SECONDS)
    return [
        *found.compiler, version, *found.options, libinfo.find_libtvm_ffi(), tvm_ffi.__version__,
        found.cudnn.version_text, found.cuda.version_text, os.uname().machine,
        *(f"{name}={os.environ.get(name, '')}" for name in _HEADERS),
    ]  # fmt: skip


def shared_command(
    source: Path, output: Path, found: Toolchain, inputs: Sequence[Path] = ()
) -> list[str]:
    """The command that builds a source, and objects, into a library that `tvm_ffi` loads."""
    ffi = Path(libinfo.find_libtvm_ffi())
    return [
        *found.compiler, *found.compile_options, "-shared", str(source), *map(str, inputs),
        "-o", str(output), *found.link_options,
        "-Xlinker", "-rpath", "-Xlinker", str(ffi.parent), str(ffi),
    ]  # fmt: skip


@dataclass(frozen=True)
class Linker:
    """What TVM's `export_library` calls with a library's name and the files that it is made of.

    kernels : each makes objects that the library is linked with, where they are not there.
    """

    toolchain: Toolchain
    kernels: Sequence[Callable[[], Sequence[Path]]]

    def get_target_triple(self) -> str:
        """TVM asks where it has compiled nothing for the host itself."""
        words = [*self.toolchain.compiler, "-dumpmachine"]
        return run_tool(words, "the compiler", _SECONDS).strip()

    def pack(self, module: Any, is_system: bool, prefix: str, folder: str) -> str:
        """What TVM calls for an object with a module's imports: where it is.

        TVM takes a host module with a start-up function, as all for CUDA have, for one of the
        process's single system library, where imports of the next one would override it.
        """
        hosts = module._collect_from_import_tree(lambda part: part.kind == "llvm")
        if hosts:
            target = hosts[0].get_function("_get_target_string")()
        else:
            target = json.dumps({"kind": "llvm", "mtriple": self.get_target_triple()})
        made = tvm.get_global_func("runtime.ModulePackImportsToLLVM")(module, False, target, prefix)
        path = Path(folder, f"{prefix}devc.o")
        made.write_to_file(str(path))
        return str(path)

    def __call__(self, output: str, files: Sequence[str], options: Sequence[str] = ()) -> None:
        """Writes the library to `output`.  Raises ToolchainError with the compiler's words."""
        for make in () if self.toolchain.compiler else self.kernels:
            make()  # which says all that is missing
        kept, facts = DiskCache(), host_facts(self.toolchain)
        paths = [Path(name) for name in files]
        with ThreadPoolExecutor(max(1, len(paths) + len(self.kernels))) as pool:
            kernels = [pool.submit(make) for make in self.kernels]
            texts = [path for path in paths if path.suffix in _SOURCES]
            made = pool.map(lambda path: self._object(path, options, facts, kept), texts)
            objects = dict(zip(texts, made, strict=True))
            linked = [path for each in kernels for path in each.result()]
        contents = [objects.get(path) or path.read_bytes() for path in paths]
        key = key_of(["library", *facts, *contents, *(path.read_bytes() for path in linked)])
        library = kept.get(key)
        if library is None:
            library = self._linked(contents, linked)
            kept.put(key, library)
        Path(output).write_bytes(library)

    def _object(
        self, path: Path, options: Sequence[str], facts: Sequence[str], kept: DiskCache
    ) -> Any:
        text = path.read_bytes()
        key = key_of(["object", path.suffix, text, *options, *facts])
        content = kept.get(key)
        if content is None:
            with working_folder() as folder:
                unit = f"module{path.suffix}"  # errors and objects name no folder
                (folder / unit).write_bytes(text)
                flags = [*self.toolchain.compile_options, *options]
                self._run([*flags, "-c", unit, "-o", "module.o"], folder)
                content = (folder / "module.o").read_bytes()
            kept.put(key, content)
        return content

    def _linked(self, contents: Sequence[bytes], kernels: Sequence[Path]) -> bytes:
        with working_folder() as folder:
            objects = [f"{i}.o" for i in range(len(contents))]
            for name, content in zip(objects, contents, strict=True):
                (folder / name).write_bytes(content)
            words = [*objects, *map(str, kernels), *self.toolchain.link_options]
            self._run(["-shared", "-fPIC", *words, "-o", "module.so"], folder)
            return (folder / "module.so").read_bytes()

    def _run(self, words: Sequence[str], folder: Path) -> None:
        run_tool([*self.toolchain.compiler, *words], "the C++ compiler", _SECONDS, folder)
