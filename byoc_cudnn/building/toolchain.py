"""Where the headers and libraries of cuDNN and CUDA are, and the compiler that builds with them.

Generated sources hold no device code, so for cuDNN a C++ compiler is enough; nvcc builds CUTLASS's
kernels (`cutlass.objects`).  Three kinds of places are searched in this order, and the first that
is complete wins:

1. NVIDIA's Python packages (`nvidia-cudnn-cu13`, `nvidia-cuda-runtime`, `nvidia-cuda-crt`; the
   older ones of CUDA 12 too),
2. the folders that CUDNN_HOME, CUDA_HOME and CUDA_PATH name,
3. the system: /usr/local/cuda, the standard folders, and what `ldconfig` knows.

Headers and library of a component always come from the same place, so that they fit each other.
Nothing here needs a GPU, and nothing is loaded before `preload` is called.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .components import (
    CUDA_MAJORS,
    CUDNN_MAJOR,
    HOMES,
    STANDARD,
    Component,
    component,
    nvidia_packages,
)

OPTIMIZATION = "-O2"  # of host code
INSTALL = "pip install 'relay-wgrad[cuda]'"


class ToolchainError(RuntimeError):
    """Something that a build for CUDA needs is not on this machine; the message says what."""


@dataclass(frozen=True)
class Toolchain:
    """What was found.  `missing` says what was not, `require` raises for it."""

    cudnn: Component
    cuda: Component
    cxx: str | None  # the environment's CXX
    compiler: tuple[str, ...]
    nvcc: Path | None
    ffi_includes: tuple[Path, ...]

    @property
    def cublas(self) -> Path | None:
        """cuBLAS's library of the same release as CUDA's runtime: beside it, or in the package of
        its own that it has beside the runtime's (CUDA 12)."""
        runtime = self.cuda.shared_library
        if runtime is None:
            return None
        name = runtime.name.replace("cudart", "cublas")
        places = (runtime.parent, (runtime.parent / "../../cublas/lib").resolve())
        return next((place / name for place in places if (place / name).is_file()), None)

    def missing(self) -> str:
        """What is missing and how to get it, as one message; empty if nothing is."""
        lines = self.lacking(self.cudnn, self.cuda)
        return "\n".join(["a build against cuDNN needs:", *lines]) if lines else ""

    def lacking(self, *parts: Component) -> list[str]:
        """What a build of host code against these components lacks, as lines of a message."""
        lines = []
        wanted = {
            "cuDNN": f"cuDNN {CUDNN_MAJOR} (cudnn.h and libcudnn.so.{CUDNN_MAJOR})",
            "CUDA": "CUDA's runtime (cuda_runtime_api.h, crt/host_defines.h and libcudart.so."
            + " or .".join(map(str, CUDA_MAJORS))
            + ")",
        }
        for part in parts:
            if not part.complete:
                homes = " or ".join(HOMES[part.name])
                lines.append(f"{wanted[part.name]}: not found; {INSTALL}, or set {homes}")
                lines += [f"    {reason}" for reason in part.rejected]
        if not self.compiler:
            what = "no g++ or clang++ on PATH" if self.cxx is None else f"CXX={self.cxx!r} is none"
            lines.append(f"a C++17 compiler: {what}; install g++, or set CXX to another")
        if not self.ffi_includes:
            lines.append("the headers of tvm_ffi: not found; pip install apache-tvm-ffi")
        return lines

    def require(self) -> Toolchain:
        """The toolchain itself, if it is complete; else raises ToolchainError."""
        if text := self.missing():
            raise ToolchainError(text)
        return self

    def without_cuda(self) -> Toolchain:
        """The same for host code that needs neither CUDA nor cuDNN."""
        return replace(self, cudnn=Component("cuDNN"), cuda=Component("CUDA"))

    @property
    def compile_options(self) -> list[str]:
        """Options that any translation unit needs, one string each: never for a shell.

        NVIDIA's headers are system headers, so that their warnings are not ours.
        """
        return self._compile_options(self.ffi_includes)

    def _compile_options(self, more: tuple[Path, ...]) -> list[str]:
        options = ["-std=c++17", OPTIMIZATION, "-fPIC"]
        for folder in dict.fromkeys((*self.cudnn.includes, *self.cuda.includes, *more)):
            if folder not in STANDARD:
                options += ["-isystem", str(folder)]
        return options

    @property
    def link_options(self) -> list[str]:
        """The libraries by full path, and an rpath for each one's folder.

        A full path links exactly the file that was found, also where two folders hold one of that
        name.  `-Xlinker` and not `-Wl,`: a comma in a path would split the latter.  TVM puts
        options before objects, where a linker that keeps what is needed so far drops a library.
        """
        options, folders = ["-Xlinker", "--no-as-needed"], list[Path]()
        for library in (self.cudnn.shared_library, self.cuda.shared_library):
            if library is not None:
                options += ["-Xlinker", "-rpath", "-Xlinker", str(library.parent), str(library)]
                folders.append(library.parent)
        # Opened by name where a module has products for it: it is large to load.
        if self.cublas is not None and self.cublas.parent not in folders:
            options += ["-Xlinker", "-rpath", "-Xlinker", str(self.cublas.parent)]
        return options

    @property
    def options(self) -> list[str]:
        """All of the above, for `ex.jit(options=…)` and `ex.export_library(path, options=…)`."""
        return self.compile_options + self.link_options

    def command(self, source: Path, output: Path) -> list[str]:
        """The command that builds a program of its own, without TVM, from one source file.

        Raises ToolchainError if something is missing.
        """
        self.require()
        options = self._compile_options(())
        return [*self.compiler, *options, str(source), "-o", str(output), *self.link_options]


def find(
    environ: Mapping[str, str] | None = None,
    package_roots: Sequence[Path] | None = None,
    system_roots: Sequence[Path] | None = None,
) -> Toolchain:
    """Searches this machine.  The arguments replace the places searched, for tests."""
    environ = os.environ if environ is None else environ
    return Toolchain(
        cudnn=component("cuDNN", environ, package_roots, system_roots),
        cuda=component("CUDA", environ, package_roots, system_roots),
        cxx=environ.get("CXX"),
        compiler=_compiler(environ),
        nvcc=_nvcc(environ, nvidia_packages() if package_roots is None else package_roots),
        ffi_includes=_ffi_includes(),
    )


def preload(toolchain: Toolchain | None = None) -> list[Path]:
    """Makes TVM's CUDA runtime load without LD_LIBRARY_PATH; returns what was loaded.

    TVM's wheel loads `libtvm_runtime_cuda.so` when it is imported, and silently goes without it
    where the loader finds no libcudart.so.13.  A library that is in the process already satisfies
    that need by its name, wherever it lies; so it is loaded here, by its path.  Best before
    `import tvm`.  After it, the CUDA runtime that TVM went without is loaded too.

    Libraries of which the process has one already, PyTorch's say, are left as they are, and so are
    those whose own needs are not met: TVM's CUDA runtime where there is no driver.
    """
    found = find() if toolchain is None else toolchain
    libraries = [
        x
        for x in (found.cuda.shared_library, found.cudnn.shared_library)
        if x and not _in_process(x)
    ]
    loaded = [library for library in libraries if _load(library)]
    base = sys.modules.get("tvm.base")
    known = getattr(base, "_LOADED_LIBS", {})
    if "tvm_runtime" in known and "tvm_runtime_cuda" not in known:
        runtime = Path(known["tvm_runtime"]._name).resolve().with_name("libtvm_runtime_cuda.so")
        if runtime.exists() and (handle := _load(runtime)):
            known["tvm_runtime_cuda"] = handle  # where TVM itself would have put it
            loaded.append(runtime)
    return loaded


def _in_process(library: Path) -> bool:
    """Whether a library of that name is loaded already: a second copy would have its own state."""
    try:
        ctypes.CDLL(library.name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def _load(library: Path) -> ctypes.CDLL | None:
    # RTLD_LOCAL, the default, is enough: what needs the library by its name finds its symbols.
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _executable(name: str, environ: Mapping[str, str]) -> Path | None:
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    return Path(found) if found else None


def _nvcc(environ: Mapping[str, str], packages: Sequence[Path]) -> Path | None:
    """nvcc of NVIDIA's packages, of the environment's homes, on PATH, or where CUDA installs it."""
    homes = [Path(environ[name]) for name in HOMES["CUDA"] if environ.get(name)]
    folders = [root / part for root in packages for part in ("cu13", "cuda_nvcc")]
    for home in (*folders, *homes):
        if os.access(program := home / "bin" / "nvcc", os.X_OK):
            return program
    return _executable("nvcc", environ) or _executable("nvcc", {"PATH": "/usr/local/cuda/bin"})


def _compiler(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command of the C++ compiler: CXX (which may have arguments), or else g++ or clang++."""
    try:
        commands = [shlex.split(environ["CXX"])] if "CXX" in environ else [["g++"], ["clang++"]]
    except ValueError:  # an open quote
        return ()
    for words in commands:
        if words and (program := _executable(words[0], environ)):
            return (str(program), *words[1:])
    return ()


def _ffi_includes() -> tuple[Path, ...]:
    """Header folders of tvm_ffi and DLPack, which generated code for TVM includes."""
    try:
        from tvm_ffi import libinfo

        found = (libinfo.find_include_path(), libinfo.find_dlpack_include_path())
    except (ImportError, RuntimeError):
        return ()
    return tuple(dict.fromkeys(Path(path) for path in found))


def run_tool(
    command: Sequence[str], who: str, seconds: float, folder: Path | None = None,
    begun: Callable[[subprocess.Popen[str]], None] | None = None,
) -> str:  # fmt: skip
    """What a command prints; `who` is its name.  Raises ToolchainError with its words.

    folder : where it runs, if not where this process does.
    begun : is given the process, the first of a group of its own, which then runs when nobody else
        has work for the processor.
    """
    try:
        done = (
            subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, check=False, timeout=seconds, cwd=folder
            )
            if begun is None
            else _run_last(command, seconds, folder, begun)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{who}: {' '.join(command)}: {error}") from error
    if done.returncode:
        words = (done.stderr or done.stdout)[:4000]
        raise ToolchainError(f"{who} failed:\n{' '.join(command)}\n{words}")
    return done.stdout


def _run_last(
    command: Sequence[str], seconds: float, folder: Path | None,
    begun: Callable[[subprocess.Popen[str]], None],
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    nice = shutil.which("nice")
    words = [nice, "-n", "19", *command] if nice else [*command]
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603
        words, stdout=pipe, stderr=pipe, text=True, cwd=folder, start_new_session=True
    ) as process:
        begun(process)
        try:
            out, errors = process.communicate(timeout=seconds)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, errors)
