"""Building a module a second time starts no compiler but to ask for its version."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm
from tvm.support import nvcc as stock

import byoc_cudnn
from byoc_cudnn.building.kernels import kept_kernels
from byoc_cudnn.building.link import Linker
from byoc_cudnn.building.nvcc import nvcc_version
from byoc_cudnn.building.toolchain import Toolchain, ToolchainError, find
from tests.support.norm_cases import Case, module

TOOL = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "release {release}, V{release}.88"; exit 0; fi
if [ "$1" = -dumpmachine ]; then echo x86_64-linux-gnu; exit 0; fi
echo "$0 $@" >> "{log}"
for word; do if [ "$last" = -o ]; then echo "$@" > "$word"; fi; last=$word; done
"""
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path / "cache"))
    nvcc_version.cache_clear()


@pytest.fixture
def tools(tmp_path: Path) -> Toolchain:
    """A C++ compiler and an nvcc that write down what they were to do, and make files of it."""
    found = find()
    if not (found.cuda.complete and found.cudnn.complete):
        pytest.skip("needs the headers of CUDA's runtime and of cuDNN")
    programs = {"compiler": (program(tmp_path, "g++"),), "nvcc": Path(program(tmp_path, "nvcc"))}
    return replace(found, cuda=replace(found.cuda, version=(13, 0)), **programs)


def program(folder: Path, name: str, release: str = "13.0") -> str:
    path = folder / name
    path.write_text(TOOL.format(release=release, log=folder / "log"))
    path.chmod(0o755)
    return str(path)


def started(folder: Path) -> list[str]:
    """The compilers' names, as often as they were started since the last time."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(Path(line.split()[0]).name for line in lines)


@pytest.mark.usefixtures("registered")
def test_a_second_build_of_a_module(tools: Toolchain, tmp_path: Path) -> None:
    def built(size: int) -> bytes:
        mod = module(Case((2, size, size, 16), "float16", axis=3, activation="relu"))
        library = byoc_cudnn.build(mod, tvm.target.Target(TARGET, host="llvm"), direct=True)
        assert len(library.sources) == 1
        library.export_library(tmp_path / "module.so", toolchain=tools)
        return (tmp_path / "module.so").read_bytes()

    first = built(4)
    assert started(tmp_path) == ["g++", "g++", "nvcc"]
    assert built(4) == first
    assert started(tmp_path) == []
    built(5)  # the same source and kernel, other code of TVM's
    assert started(tmp_path) == ["g++"]
    newer = program(tmp_path, "g++", "13.1")
    tools = replace(tools, compiler=(newer,))
    built(4)
    assert started(tmp_path) == ["g++", "g++"]


def test_a_library_that_works(tmp_path: Path) -> None:
    source, other = tmp_path / "lib0.cc", tmp_path / "lib1.c"
    source.write_text('extern "C" int two(); extern "C" int three() { return two() + 1; }\n')
    other.write_text('extern "C" int two() { return 2; }\n')
    linker = Linker(find(), [])
    for name in ("a.so", "b.so"):
        linker(str(tmp_path / name), [str(source), str(other)], ["-DNOTHING"])
        assert ctypes.CDLL(str(tmp_path / name)).three() == 3
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


def test_errors_are_the_compilers_words(tmp_path: Path) -> None:
    source = tmp_path / "lib0.cc"
    source.write_text("int f( {}\n")
    with pytest.raises(ToolchainError, match=r"the C\+\+ compiler failed:[\s\S]*module.cc:1"):
        Linker(find(), [])(str(tmp_path / "a.so"), [str(source)])
    assert not (tmp_path / "a.so").exists()

    def lacking() -> list[Path]:
        raise ToolchainError("an nvcc: not found")

    for found in (find(), replace(find(), compiler=())):
        with pytest.raises(ToolchainError, match="an nvcc: not found"):
            Linker(found, [lacking])(str(tmp_path / "a.so"), [])
    with pytest.raises(ToolchainError, match=r"a C\+\+17 compiler"):
        Linker(replace(find(), compiler=()), [])(str(tmp_path / "a.so"), [])


Compile = Callable[..., bytes]


@pytest.fixture
def compile_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """TVM's compiler of CUDA, as the code generator calls it, with an nvcc that writes down."""
    program(tmp_path, "nvcc")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def compile_(text: str = "kernel", arch: str = "sm_90") -> bytes:
        with tvm.target.Target({**TARGET, "arch": arch}), kept_kernels():
            return bytes(stock.compile_cuda(text, target_format="fatbin", compiler="nvcc"))

    return compile_


def test_kernels_of_tvms_are_kept(
    compile_text: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stock.compile_cuda
    first = compile_text()
    assert started(tmp_path) == ["nvcc"]
    assert compile_text() == first
    assert started(tmp_path) == []
    assert stock.compile_cuda is before
    compile_text("another")
    compile_text(arch="sm_80")
    monkeypatch.setenv("TVM_CUDA_NVCC_NO_FAST_MATH", "1")
    compile_text()
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    compile_text()
    program(tmp_path, "nvcc", "13.1")
    nvcc_version.cache_clear()
    compile_text()
    assert started(tmp_path) == ["nvcc"] * 5
    compile_text()
    assert started(tmp_path) == []


def test_kernels_by_nvrtc_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the library that its bindings have loaded, and the headers that it is given."""
    found = list(find().cuda.includes[0].parent.glob("lib/libnvrtc.so.*"))
    if not found:
        pytest.skip("needs NVRTC's library")
    library = tmp_path / "libnvrtc.so.13"
    shutil.copy(found[0], library)
    loaded = ctypes.CDLL(str(library))
    header = tmp_path / "cuda" / "include" / "cuda_runtime.h"
    header.parent.mkdir(parents=True)
    header.write_text("")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
    bindings = SimpleNamespace(nvrtcVersion=lambda: (0, 13, 0))
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", bindings)
    calls: list[str] = []
    monkeypatch.setattr(
        stock, "_compile_cuda_nvrtc", lambda text, *rest: calls.append(text) or b"cubin"
    )

    def compile_() -> int:
        with tvm.target.Target(TARGET), kept_kernels():
            assert stock.compile_cuda("kernel", target_format="cubin") == b"cubin"
        return len(calls)

    assert [compile_(), compile_()] == [1, 1]
    header.write_text("// another version")
    assert [compile_(), compile_()] == [2, 2]
    bindings.nvrtcVersion = lambda: (0, 13, 1)
    assert [compile_(), compile_()] == [3, 3]
    library.unlink()  # which one it was is not known any more
    assert [compile_(), compile_()] == [4, 5]
    assert loaded


def test_what_writes_files_is_compiled_each_time(
    compile_text: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_KERNEL_DUMP", str(tmp_path / "dumps"))
    for _ in range(2):
        compile_text()
        assert started(tmp_path) == ["nvcc"]
        assert (tmp_path / "dumps" / "tvm_kernels.cu").read_text() == "kernel"
        (tmp_path / "dumps" / "tvm_kernels.cu").unlink()


def test_somebody_elses_compiler_stays(
    compile_text: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "compile_cuda", lambda *args, **named: b"theirs")
    assert compile_text() == compile_text() == b"theirs"
    assert not (tmp_path / "cache").exists()


def test_a_build_within_a_build(compile_text: Compile) -> None:
    before = stock.compile_cuda
    with kept_kernels():
        inside = stock.compile_cuda
        compile_text()
        assert stock.compile_cuda is inside
    assert stock.compile_cuda is before
