"""NVRTC: objects of kernels without nvcc.

A source of kernels and of the host code that launches them is compiled twice: by NVRTC to machine
code for each GPU, which needs no host compiler, and by the host's compiler without what runs on the
device (`host_part`).  The object holds both (`templates/nvrtc_host.h`), and exports what nvcc's
would.  NVRTC is that of NVIDIA's package, which PyTorch brings, or the system's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from relay_wgrad.building.disk_cache import key_of
from relay_wgrad.output import working_folder

from ..codegen.templates import shared
from .components import HOMES, nvidia_packages
from .toolchain import Toolchain, ToolchainError, run_tool

INSTALL = "pip install nvidia-cuda-nvrtc"
_FOLDERS = ("cu13/lib", "cuda_nvrtc/lib")
_SYSTEM = ("lib64", "lib", f"targets/{os.uname().machine}-linux/lib")
# Headers of the standard library and of the runtime: `nvrtc_device.h` stands for all of them.
_EMPTY = (
    "algorithm", "cstdint", "cstring", "cuda_runtime_api.h", "initializer_list", "type_traits",
)  # fmt: skip
_OPTIONS = ("-std=c++17", "-default-device", "-DNDEBUG", "-w")
_MARK = re.compile(r"\b(__global__|__device__)\b")
_PARAMETERS, _BODY = re.compile(r"[(;={]"), re.compile(r"[;{:]")
_ATTRIBUTES = ("__launch_bounds__", "__align__", "alignas", "__attribute__")
_SECONDS = 600  # for the host's compiler


@dataclass(frozen=True)
class Unit:
    """A translation unit: its name, its text, the GPUs that it is for."""

    name: str
    source: str
    archs: tuple[int, ...]


@dataclass(frozen=True)
class Nvrtc:
    """NVRTC as found.  version : (major, minor) of CUDA."""

    path: Path
    version: tuple[int, int]

    def compile(self, source: str, arch: int, includes: Sequence[Path], ptx: bool = False) -> bytes:
        """Machine code of a source for a GPU, or PTX.  Raises ToolchainError with its words."""
        options = [*_OPTIONS, f"--gpu-architecture={'compute' if ptx else 'sm'}_{arch}"]
        options += [f"-I{folder}" for folder in includes]
        text = f"{shared('nvrtc_device.h')}\n{source}"
        return _compiled(_library(self.path), text, options, "PTX" if ptx else "CUBIN")


def find(
    environ: Mapping[str, str] | None = None, packages: Sequence[Path] | None = None
) -> Nvrtc | None:
    """NVIDIA's packages', that of CUDA_HOME or CUDA_PATH, or the system's; None: there is none."""
    environ = os.environ if environ is None else environ
    roots = nvidia_packages() if packages is None else packages
    homes = [Path(environ[name]) for name in HOMES["CUDA"] if environ.get(name)]
    folders = [root / part for root in roots for part in _FOLDERS]
    folders += [
        home / part for home in (*homes, Path("/usr/local/cuda"), Path("/usr")) for part in _SYSTEM
    ]
    for folder in folders:
        for path in sorted(folder.glob("libnvrtc.so.1[23]*"), key=lambda p: len(p.name)):
            if (version := _version(path)) is not None:
                return Nvrtc(path, version)
    return None


@lru_cache(maxsize=8)
def _version(path: Path) -> tuple[int, int] | None:
    try:
        library = _library(path)
    except (OSError, ToolchainError):
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
        return None
    return major.value, minor.value


@lru_cache(maxsize=8)
def _library(path: Path) -> Any:
    # It loads this by its name, and finds what is in the process already.
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(path))


def _compiled(library: Any, source: str, options: Sequence[str], what: str) -> bytes:
    program, empty = ctypes.c_void_p(), [b""] * len(_EMPTY)
    names = (ctypes.c_char_p * len(_EMPTY))(*(name.encode() for name in _EMPTY))
    texts = (ctypes.c_char_p * len(_EMPTY))(*empty)
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    rc = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", len(_EMPTY), texts, names
    )
    if rc:
        raise ToolchainError(f"NVRTC: {_error(library, rc)}")
    try:
        rc = library.nvrtcCompileProgram(program, len(options), words)
        if rc:
            log = _bytes(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise ToolchainError(f"NVRTC: {_error(library, rc)}\n{log[:4000]}")
        return _bytes(library, program, what)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(library: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    rc = library[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    content = ctypes.create_string_buffer(max(1, size.value))
    rc = rc or library[f"nvrtcGet{what}"](program, content)
    if rc:
        raise ToolchainError(f"NVRTC: no {what}: {_error(library, rc)}")
    return content.raw[: size.value]


def _error(library: Any, rc: int) -> str:
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(library.nvrtcGetErrorString(rc).decode())


# ---- the host's part -----------------------------------------------------------------------------


def host_part(source: str) -> str:
    """A source without what runs on the device.

    Kernels do nothing, so that they have an address, and functions of the device are declared.
    """
    source = re.sub(r"#include <cuda_(fp|bf)16\.h>", "", source)  # `nvrtc_host.h` has the types
    out, at = [], 0
    for mark, _, begin, end in _bodies(source):
        stub = "{}" if mark == "__global__" else ";"
        out += [source[at:begin], stub]
        at = end
    return "".join([*out, source[at:]])


def kernels_in(source: str) -> list[str]:
    """The names of kernels in a source."""
    return [name for mark, name, _, _ in _bodies(source) if mark == "__global__"]


def _bodies(source: str) -> Iterator[tuple[str, str, int, int]]:
    """(mark, name, where the body begins, where it ends) of each function of the device alone; a
    constructor's initializers belong to the body."""
    text, at = _blank(source), 0
    while found := _MARK.search(text, at):
        at = found.end()
        name, parameters = _head(text, at)
        begins = max(text.rfind(mark, 0, found.start()) for mark in ";{}") + 1
        if not name or "__host__" in text[begins:parameters]:
            continue  # a variable, or the host's too
        at = parameters
        body = _BODY.search(text, at)
        if body is not None and body[0] != ";":  # not declared alone
            at = _close(text, text.index("{", body.start()))
            yield found[1], name, body.start(), at


def _head(text: str, at: int) -> tuple[str, int]:
    """A function's name and where its parameters end, past attributes; "" of a variable."""
    begin = at
    while (paren := _PARAMETERS.search(text, begin)) is not None and paren[0] == "(":
        words = re.findall(r"[\w~]+", text[begin : paren.start()])
        begin = _close(text, paren.start())
        if words and words[-1] not in _ATTRIBUTES:
            return words[-1], begin
    return "", at


def _close(text: str, at: int) -> int:
    """Behind the bracket that closes the one at a place."""
    pairs, depth = {"(": ")", "{": "}"}, 0
    opening, closing = text[at], pairs[text[at]]
    for i in range(at, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i + 1
    raise ValueError(f"a bracket that nothing closes: {text[at : at + 60]!r}")


def _blank(source: str) -> str:
    """A source with its comments, strings and directives blank, every character in its place."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#[^\n]*'
    return re.sub(
        pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.DOTALL | re.MULTILINE
    )


# ---- an object -----------------------------------------------------------------------------------


def build(
    nvrtc: Nvrtc, found: Toolchain, folder: Path, units: Sequence[Unit],
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:  # fmt: skip
    """The objects of units in `folder`, built where they are not there, as many at once as cores.

    Raises ToolchainError with NVRTC's words, or the host compiler's.
    """
    host = run_tool([*found.compiler, "--version"], "the compiler", _SECONDS)
    made = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for path in pool.map(lambda unit: _object(nvrtc, found, host, folder, unit), units):
            made.append(path)
            if progress is not None:
                progress(len(made), len(units))
    return made


def _object(nvrtc: Nvrtc, found: Toolchain, host: str, folder: Path, unit: Unit) -> Path:
    facts = [
        unit.source, *map(str, unit.archs), *_OPTIONS, str(nvrtc.version), found.cuda.version_text,
        *map(str, found.cuda.includes), *found.compiler, host, os.uname().machine,
        shared("nvrtc_device.h"), shared("nvrtc_host.h"),
    ]  # fmt: skip
    path = folder / f"{unit.name}-rtc-{key_of(facts)[:20]}.o"
    if path.is_file() and not path.is_symlink():
        return path
    last = max(unit.archs)
    includes = found.cuda.includes
    codes = [(last, True, nvrtc.compile(unit.source, last, includes, ptx=True) + b"\0")]
    codes += [(a, False, nvrtc.compile(unit.source, a, includes)) for a in sorted(unit.archs)]
    with working_folder(folder) as work:
        for number, (_, _, code) in enumerate(codes):
            (work / f"code_{number}").write_bytes(code)
        heads = [(arch, is_ptx) for arch, is_ptx, _ in codes]
        (work / "host.cc").write_text(host_source(unit.source, heads), encoding="utf-8")
        run = partial(run_tool, who=f"{unit.name}: the compiler", seconds=_SECONDS, folder=work)
        # -O1: functions that do the same stay apart, since kernels are told by their address.
        words = [*found.compiler, *found.compile_options, "-O1", "-fvisibility=hidden", "-w"]
        run([*words, "-S", "host.cc", "-o", "host.s"])
        text = (work / "host.s").read_text(encoding="utf-8")
        kernels = kernels_in(unit.source)
        rows = table(text, kernels, [(code, is_ptx) for _, is_ptx, code in codes])
        (work / "host.s").write_text(text + rows, encoding="utf-8")
        run([*found.compiler, "-c", "host.s", "-o", "kernel.o"])
        (work / "kernel.o").replace(path)
    return path


def host_source(source: str, codes: Sequence[tuple[int, bool]]) -> str:
    """The host's source of an object: codes are (GPU, whether PTX), and lie in files `code_i`."""
    hidden = 'extern "C" __attribute__((visibility("hidden")))'
    lines = [
        f'asm(".pushsection .rodata\\n.balign 16\\nrelay_wgrad_code_{i}:\\n'
        f'.incbin \\"code_{i}\\"\\n.popsection\\n");\n'
        f"{hidden} const char relay_wgrad_code_{i}[];"
        for i in range(len(codes))
    ]
    rows = ", ".join(
        f"{{{arch}, {str(is_ptx).lower()}, relay_wgrad_code_{i}}}"
        for i, (arch, is_ptx) in enumerate(codes)
    )
    return "\n".join([
        f"constexpr int kCodeCount = {len(codes)};",
        shared("nvrtc_host.h"),
        *lines,
        f"namespace {{\n\nconst Code kCodes[] = {{{rows}}};\n\n}}  // namespace\n",
        host_part(source),
    ])  # fmt: skip


def table(text: str, kernels: Sequence[str], codes: Sequence[tuple[bytes, bool]]) -> str:
    """Assembly: for each kernel's stub in the host's, its address and its names in the codes.

    Names differ in that of the unnamed namespace alone.  Raises ToolchainError for a kernel that is
    not in each code.
    """
    by_code = [names_in(code, is_ptx) for code, is_ptx in codes]
    labels = re.findall(r"^(_ZN?\w+):", text, re.MULTILINE)
    stubs = [
        x for x in labels if _own(x) and any(_own(x).startswith(f"{len(k)}{k}") for k in kernels)
    ]
    rows, strings = [], []
    for number, stub in enumerate(stubs):
        rows.append(f"\t.quad {stub}")
        for code, names in enumerate(by_code):
            if _own(stub) not in names:
                raise ToolchainError(f"NVRTC: no kernel {stub} among {sorted(names.values())}")
            rows.append(f"\t.quad .Lrelay_wgrad_{number}_{code}")
            strings.append(f'.Lrelay_wgrad_{number}_{code}:\n\t.asciz "{names[_own(stub)]}"')
    return "\n".join([
        '\t.section .data.rel.ro,"aw"', "\t.balign 8", "relay_wgrad_kernels:", *rows,
        f"\t.zero {8 * (1 + len(codes))}", "\t.section .rodata", *strings, "",
    ])  # fmt: skip


def names_in(code: bytes, is_ptx: bool = False) -> dict[str, str]:
    """Kernels of machine code (an ELF file) or PTX: name but for the unnamed namespace -> name."""
    pattern = rb"\.entry (_Z\w+)" if is_ptx else rb"\x00\.text\.(_Z\w+)"
    names = {name.decode() for name in re.findall(pattern, code)}
    return {_own(name): name for name in names}


def _own(mangled: str) -> str:
    """A mangled name but for the unnamed namespace that it is in; "" where it is in none."""
    found = re.match(r"_ZN(\d+)(_GLOBAL__N_)", mangled)
    return mangled[found.start(2) + int(found[1]) :] if found else ""
