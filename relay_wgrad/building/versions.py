"""What a compiled program depends on beside its text: versions of what compiles it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import tvm
import tvm_ffi
from tvm_ffi import libinfo

PACKAGES = ("relay_wgrad", "legalize", "byoc_cudnn")


@lru_cache(maxsize=1)
def compilers() -> tuple[str, ...]:
    """TVM's version, its loader's of objects, and the libraries that are loaded, by size and time:
    one built here has the version of one of the package index."""
    try:
        loader = version("apache-tvm-ffi-orcjit")
    except PackageNotFoundError:
        loader = ""
    libraries = [libinfo.find_libtvm_ffi(), *map(str, Path(tvm.__file__).parent.rglob("*.so"))]
    return (
        tvm.__version__, tvm_ffi.__version__, loader, os.uname().machine,
        *(_stamp(Path(name), name) for name in sorted(libraries)),
    )  # fmt: skip


@lru_cache(maxsize=1)
def sources() -> tuple[str, ...]:
    """This project's files, by size and time, as they are at the first call: a checkout has one
    version for a thousand states."""
    return tuple(_sources())


def _sources() -> Iterator[str]:
    for package in PACKAGES:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(place).rglob("*.py")):
                yield _stamp(path, f"{package}/{path.relative_to(place)}")


def _stamp(path: Path, name: str) -> str:
    info = path.stat()
    return f"{name} {info.st_size} {info.st_mtime_ns}"
