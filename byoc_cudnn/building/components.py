"""Finds headers and library of cuDNN and of CUDA's runtime; `toolchain` describes the order.

A place is searched as a whole: a component's headers and its library come from the same one, so
that they fit each other.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

CUDNN_MAJOR = 9
CUDA_MAJORS = (13, 12)
HOMES = {"cuDNN": ("CUDNN_HOME", "CUDA_HOME", "CUDA_PATH"), "CUDA": ("CUDA_HOME", "CUDA_PATH")}
# Within the namespace package `nvidia`; a library is in the first folder of each tuple.
# CUDA 13's packages share a folder; CUDA 12's crt headers came with the compiler.
_PACKAGE_FOLDERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cuDNN": (("cudnn",),),
    "CUDA": (("cu13",), ("cuda_runtime", "cuda_nvcc")),
}
# The compiler and the loader search these by themselves; naming /usr/include would reorder them.
STANDARD = {Path(p) for p in ("/usr/include", "/usr/local/include")}
_TRIPLE = f"{os.uname().machine}-linux-gnu"


@dataclass(frozen=True)
class Component:
    """Headers and library of cuDNN or of CUDA's runtime, from one place.

    `includes` is empty when the headers are missing or incomplete, `shared_library` None when the
    library is missing.  `rejected` says for each place that had only a part, or a wrong version,
    what was wrong with it.
    """

    name: str
    includes: tuple[Path, ...] = ()
    shared_library: Path | None = None
    version: tuple[int, ...] = ()
    source: str = ""
    rejected: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether a program can be compiled and linked against it."""
        return bool(self.includes) and self.shared_library is not None

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version)) or "unknown"


@dataclass(frozen=True)
class _Place:
    source: str
    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]


def component(
    name: str,
    environ: Mapping[str, str],
    packages: Sequence[Path] | None = None,
    system_roots: Sequence[Path] | None = None,
) -> Component:
    """The first complete "cuDNN" or "CUDA", or the first that has a part, or an empty one.

    `packages` and `system_roots` replace the places searched.
    """
    packages = nvidia_packages() if packages is None else packages
    inspect = _inspect_cudnn if name == "cuDNN" else _inspect_cuda
    rejected: list[str] = []
    partial: Component | None = None
    for place in _places(name, environ, packages, system_roots):
        candidate = inspect(place)
        if isinstance(candidate, str):
            if candidate:
                rejected.append(f"{place.source}: {candidate}")
            continue
        if candidate.complete:
            return replace(candidate, rejected=tuple(rejected))
        # Enough for `preload`, not for a compiler.
        partial = partial or candidate
        rejected.extend(f"{place.source}: {reason}" for reason in candidate.rejected)
    return replace(partial or Component(name), rejected=tuple(dict.fromkeys(rejected)))


def _places(
    name: str,
    environ: Mapping[str, str],
    packages: Sequence[Path],
    system_roots: Sequence[Path] | None,
) -> Iterator[_Place]:
    for root in packages:
        for parts in _PACKAGE_FOLDERS[name]:
            includes = tuple(root / part / "include" for part in parts)
            source = f"Python package {root / parts[0]}"
            yield _Place(source, includes, (root / parts[0] / "lib",))
    for variable in HOMES[name]:
        if home := environ.get(variable):
            yield _tree(variable, Path(home).expanduser())
    known: list[Path] = []
    if system_roots is None:
        system_roots = [Path(p) for p in ("/usr/local/cuda", "/usr/local", "/usr")]
        known = _ldconfig("libcudnn.so" if name == "cuDNN" else "libcudart.so")
    for root in system_roots:
        yield _tree("system", root)
    for folder in known:
        include = folder.parent / "include"
        yield _Place(f"ldconfig ({folder})", (include, include / _TRIPLE), (folder,))


def _tree(label: str, root: Path) -> _Place:
    root = root.absolute()
    target = root / "targets" / f"{os.uname().machine}-linux"
    includes = (root / "include", root / "include" / _TRIPLE, target / "include")
    libraries = tuple(root / part for part in ("lib64", "lib", f"lib/{_TRIPLE}"))
    return _Place(f"{label} ({root})", includes, (*libraries, target / "lib"))


def _inspect_cudnn(place: _Place) -> Component | str:
    """What `place` has of cuDNN, or the reason (empty: nothing there) why it is none."""
    folder = _holding(place.includes, "cudnn.h")
    version = _macros(folder, ("cudnn_version.h", "cudnn.h"),
                      ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"))  # fmt: skip
    library = _holding(place.libraries, f"libcudnn.so.{CUDNN_MAJOR}", file=True)
    if folder is None and library is None:
        others = sorted(p.name for d in place.libraries for p in d.glob("libcudnn.so.[0-9]*"))
        return f"has {others[0]}; cuDNN {CUDNN_MAJOR} is needed" if others else ""
    if version and version[0] != CUDNN_MAJOR:
        text = ".".join(map(str, version))
        return f"cuDNN {text} is not supported; version {CUDNN_MAJOR} is needed"
    reasons = []
    if folder is None or not version:
        what = "libcudnn without its headers" if folder is None else "headers without a version"
        reasons.append(what)
        folder = None
    if library is None:
        reasons.append(f"headers without libcudnn.so.{CUDNN_MAJOR}")
    return _component_at("cuDNN", place, (folder,) if folder else (), library, version, reasons)


def _inspect_cuda(place: _Place) -> Component | str:
    """What `place` has of CUDA's runtime, or the reason (empty: nothing there) why it is none."""
    folder = _holding(place.includes, "cuda_runtime_api.h")
    number = _macros(folder, ("cuda_runtime_api.h",), ("CUDART_VERSION",))
    version = (number[0] // 1000, number[0] % 1000 // 10) if number else ()
    majors = CUDA_MAJORS if folder is None else version[:1]
    libraries = (_holding(place.libraries, f"libcudart.so.{m}", file=True) for m in majors)
    library = next((found for found in libraries if found), None)
    if folder is None and library is None:
        return ""
    if version and version[0] not in CUDA_MAJORS:
        needed = " or ".join(map(str, sorted(CUDA_MAJORS)))
        return f"CUDA {version[0]}.{version[1]} is not supported; version {needed} is needed"
    # CUDA 13's package of the runtime includes headers of another package.
    crt = _holding(place.includes, "crt/host_defines.h")
    reasons = []
    if folder is None:
        reasons.append("libcudart without its headers")
    elif not version:
        reasons.append("headers without a version")
    elif crt is None:
        reasons.append("headers without crt/host_defines.h (package nvidia-cuda-crt)")
    if library is None:
        reasons.append("headers without " + " or ".join(f"libcudart.so.{m}" for m in majors))
    includes = tuple(dict.fromkeys((folder, crt))) if folder and crt and version else ()
    return _component_at("CUDA", place, includes, library, version, reasons)


def _component_at(
    name: str,
    place: _Place,
    includes: tuple[Path, ...],
    library: Path | None,
    version: tuple[int, ...],
    reasons: list[str],
) -> Component | str:
    if library is not None and ":" in str(library.parent):
        return "a path with ':' cannot be an rpath"
    return Component(name, includes, library, version, place.source, tuple(reasons))


def _holding(folders: Sequence[Path], name: str, file: bool = False) -> Path | None:
    """The first folder that holds `name`; the file itself with `file=True`."""
    for folder in folders:
        if (folder / name).is_file():
            return folder / name if file else folder
    return None


def _macros(folder: Path | None, headers: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """The numbers that `#define NAME number` gives `names`, from the first header with all."""
    for header in headers if folder else ():
        assert folder is not None
        try:
            text = (folder / header).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = [re.search(rf"^\s*#\s*define\s+{n}\s+(\d+)\b", text, re.MULTILINE) for n in names]
        if all(found):
            return tuple(int(match[1]) for match in found if match)
    return ()


def nvidia_packages() -> list[Path]:
    """Folders of the namespace package `nvidia`; finding it imports nothing."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    places = spec.submodule_search_locations if spec else None
    return [Path(place).absolute() for place in places or ()]


def _ldconfig(stem: str) -> list[Path]:
    """Folders where the loader's cache has a library whose name starts with `stem`."""
    program = shutil.which("ldconfig") or shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if program is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603
            [program, "-p"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    paths = [line.rpartition("=> ")[2] for line in done.stdout.splitlines() if stem in line]
    return list(dict.fromkeys(Path(path).parent for path in paths if path.startswith("/")))
