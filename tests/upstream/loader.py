"""Upstream's files as modules: their text is unchanged, and import statements ask `names.py`."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from .names import resolve


def import_(
    name: str,
    globals_: Mapping[str, Any] | None = None,
    locals_: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> Any:
    """`__import__` for upstream's files: what is TVM's comes from the table, all else as ever."""
    if level or name.split(".")[0] != "tvm":
        return builtins.__import__(name, globals_, locals_, fromlist, level)
    if not fromlist:
        resolve(name)  # imports what a package does not import itself
        return resolve("tvm")
    if "*" in fromlist:
        return resolve(name)
    # A name that is not there is an error of the tests that use it, not of the whole file.
    out = ModuleType(name)
    for wanted in fromlist:
        setattr(out, wanted, resolve(f"{name}.{wanted}"))
    return out


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}
        super().exec_module(module)


class Finder(MetaPathFinder):
    """Finds the modules that lie below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path)
        origin = spec and spec.origin
        if spec and origin and Path(origin).resolve().is_relative_to(self.root):
            spec.loader = _Loader(fullname, origin)
            return spec
        return None

    def install(self) -> None:
        sys.meta_path.insert(0, self)
