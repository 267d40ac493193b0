"""Kernels by NVRTC: what is compiled where, that launches reach the driver, and who is chosen."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from byoc_cudnn.backends.cuda_direct import objects
from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.building import compilers, nvrtc
from byoc_cudnn.building.toolchain import Toolchain, ToolchainError, find
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.children import run_code

F16 = "layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
LAYERS = {
    "depthwise": "n=2 c=16 h=9 w=8 k=16 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=16",
    "bands": "n=64 c=96 h=28 w=28 k=96 r=7 s=7 pad=3,3,3,3 groups=96",
    "any": "n=2 c=16 h=9 w=8 k=16 r=9 s=3 pad=1,1,1,1 groups=16",
    "grouped": "n=2 c=64 h=19 w=18 k=64 r=3 s=3 pad=1,1,1,1 groups=8",
    "few": "n=2 c=64 h=19 w=18 k=4 r=3 s=3 pad=1,1,1,1",
    "first": "n=2 c=3 h=19 w=18 k=16 r=3 s=3 stride=2,2 pad=1,1,1,1",
}

SOURCE = """\
#include <cuda_fp16.h>
namespace {
// __global__ void commented(int) { }
const char* const text = "__device__ void quoted() { }";
__device__ inline int plain(int a) { return a > 0 ? a : plain(a + 1); }
struct Item {
  int a, b;
  __device__ __forceinline__ explicit Item(int a) : a(a), b(plain(a)) { a = 1; }
  __device__ int of() const;
};
extern __shared__ uint4 everything[];
__device__ const int table[] = {1, 2};
__host__ __device__ constexpr int both(int a) { return a; }
template <typename T, int N = 3>
__global__ void __launch_bounds__(N, both(1)) first(const T* a, int b) {
  if (b) { a[0]; }
}
inline int host(int a) { return both(a); }
}  // namespace
"""


def test_what_the_host_gets() -> None:
    got = nvrtc.host_part(SOURCE)
    assert nvrtc.kernels_in(SOURCE) == ["first"]
    assert "first(const T* a, int b) {}\n" in got
    assert "inline int plain(int a) ;\n" in got
    assert "explicit Item(int a) ;\n" in got
    for kept in (
        "int of() const;", "table[] = {1, 2};", "both(int a) { return a; }", "{ return both(a); }",
        '"__device__ void quoted() { }"', "// __global__ void commented(int) { }",
    ):  # fmt: skip
        assert kept in got
    assert "cuda_fp16" not in got
    with pytest.raises(ValueError, match="a bracket that nothing closes"):
        nvrtc.host_part("__device__ int f(int a) { return a;")


def test_names() -> None:
    space = "_GLOBAL__N__00000000_9_kernel_cu_a5a6183"
    first, second = (f"_ZN{len(space)}{space}3foo{what}E" for what in ("ILi1E", "ILi2E"))
    ptx = f".visible .entry {first}(\n.entry {second}(".encode()
    elf = f"\0.text.{first}\0.text.{second}\0.nv.info.{first}".encode()
    stubs = [f"_ZN12_GLOBAL__N_13fooILi{n}EE" for n in (1, 2)]
    text = nvrtc.table("".join(f"{s}:\n" for s in stubs), ["foo"], [(ptx, True), (elf, False)])
    assert [line.split()[1] for line in text.splitlines() if ".quad" in line] == [
        stubs[0], ".Lrelay_wgrad_0_0", ".Lrelay_wgrad_0_1",
        stubs[1], ".Lrelay_wgrad_1_0", ".Lrelay_wgrad_1_1",
    ]  # fmt: skip
    assert text.count(f'"{first}"') == text.count(f'"{second}"') == 2
    with pytest.raises(ToolchainError, match="no kernel _ZN12_GLOBAL__N_13fooILi1EE among"):
        nvrtc.table(f"{stubs[0]}:\n", ["foo"], [(b"", True)])


def rtc() -> tuple[nvrtc.Nvrtc, Toolchain]:
    found, made = find(), nvrtc.find()
    if made is None or found.lacking(found.cuda):
        pytest.skip("no NVRTC, or no headers of CUDA's runtime")
    return made, found


def problem(layer: str, kind: ConvKind) -> ConvProblem:
    return ConvProblem.parse(f"{kind.value} {LAYERS[layer]} {F16}")


# A driver that notes what it is asked for; its device is an sm_86.
DRIVER = r"""
#include <stdio.h>
#include <string.h>
static char kernels[16][600];
static int count = 0, loaded = 0;
int cuLibraryLoadData(void **made, const void *code, void *a, void *b, unsigned c, void *d, void *e,
                      unsigned f) {
  *made = (void *)(size_t)++loaded;
  printf("load %s\n", memcmp(code, "\177ELF", 4) == 0 ? "machine code" : "PTX");
  return 0;
}
int cuLibraryGetKernel(void **made, void *library, const char *name) {
  strcpy(kernels[count], name);
  *made = kernels[count++];
  return 0;
}
int cuKernelSetAttribute(int what, int value, void *kernel, int device) {
  printf("shared memory\n");
  return value > 99 << 10;
}
typedef struct { unsigned grid[3], block[3], bytes; void *stream, *attrs; unsigned many; } Config;
int cuLaunchKernelEx(const Config *c, void *kernel, void **values, void **more) {
  printf("launch %u %d %s\n", c->block[0], (int)c->many, (const char *)kernel);
  return 0;
}
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
"""
RUNTIME = r"""
#include <stdlib.h>
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaGetLastError(void) { return 0; }
int cudaDeviceGetAttribute(int *value, int what, int device) {
  const int arch = atoi(getenv("ARCH"));
  *value = what == 75 ? arch / 10 : what == 76 ? arch % 10 : what == 97 ? 99 << 10 : 84;
  return 0;
}
"""
RUN = """
import ctypes, sys
ctypes.CDLL({driver!r})
class Call(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int) for n in "ndhwcktrszpqg"] + [
        (n, ctypes.c_int) for n in ("front", "top", "left")
    ] + [
        ("stride", ctypes.c_int * 2),
        ("dilation", ctypes.c_int * 2), ("nchw", ctypes.c_bool)
    ] + [(n, ctypes.c_void_p) for n in ("first", "second", "source", "result", "space", "wanted")]
call = Call(*{sizes}, 0, 1, 1, {stride}, (ctypes.c_int * 2)(1, 1), False, 256, 256, 0, 256, 256, 0)
for _ in range(2):
    print(ctypes.CDLL({library!r})[{name!r}](ctypes.byref(call), None), flush=True)
    ctypes.CDLL(None).fflush(None)
"""


@dataclass(frozen=True)
class Linked:
    """A kernel's object in a library with a driver and a runtime of this test's."""

    problem: ConvProblem
    folder: Path

    @staticmethod
    def of(layer: str, kind: ConvKind, archs: tuple[int, ...], folder: Path) -> Linked:
        made, found = rtc()
        p = problem(layer, kind)
        kernel = ranked(p, (), min(archs))[0].kernel
        (built,) = nvrtc.build(
            made, found, folder, [nvrtc.Unit(kernel.name, kernel.source(), archs)]
        )
        (folder / "driver.c").write_text(DRIVER)
        (folder / "runtime.c").write_text(RUNTIME)
        (folder / "stub.cc").write_text(
            f'extern "C" int {kernel.name}(const void*, void*);\n'
            'extern "C" __attribute__((visibility("default"))) int called(const void* a, void* b) {'
            f" return {kernel.name}(a, b); }}"
        )
        library = [*found.compiler, "-shared", "-fPIC", "-w", "-o"]
        for words in (
            ["libcuda.so.1", "-Wl,-soname,libcuda.so.1", "-xc", "driver.c"],
            ["libcudart.so", "-xc", "runtime.c"],
            ["kernel.so", "stub.cc", str(built), str(folder / "libcudart.so"), "-ldl"],
        ):
            subprocess.run([*library, *words], check=True, cwd=folder)
        return Linked(p, folder)

    def said(self, arch: int) -> list[str]:
        """What two calls say on a device of an arch."""
        p = self.problem
        code = RUN.format(
            sizes=(p.n, 1, p.h, p.w, p.c, p.k, 1, p.r, p.s, 1, p.p, p.q, p.groups),
            stride=f"(ctypes.c_int * 2){p.strides}", library=str(self.folder / "kernel.so"),
            name="called", driver=str(self.folder / "libcuda.so.1"),
        )  # fmt: skip
        done = run_code(code, env={**os.environ, "ARCH": str(arch)})
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.mark.longer("a child for each of five devices")
def test_a_call_reaches_the_driver(tmp_path: Path) -> None:
    """Machine code of the same generation, else PTX, loaded once; each kernel by its name there."""
    linked = Linked.of("depthwise", ConvKind.DGRAD, (80, 90), tmp_path)
    for arch, what in ((86, "machine code"), (90, "machine code"), (100, "PTX"), (120, "PTX")):
        said = linked.said(arch)
        assert [line for line in said if line.startswith("load")] == [f"load {what}"]
        assert [line for line in said if line.lstrip("-").isdigit()] == ["0", "0"]
        launches = [line for line in said if line.startswith("launch")]
        assert launches[:1] == launches[1:]
        assert "12rows_scatterI6__half" in launches[0]
        # Early launches are of Hopper and what is newer.
        assert {line.split()[2] for line in launches} == {str(int(arch >= 90))}
    assert linked.said(75) == ["-209", "-209"]  # no kernel image for the device


@pytest.mark.longer("NVRTC, five kernels twice")
def test_a_kernel_of_several(tmp_path: Path) -> None:
    """Instances of one template, between which a call chooses, and much shared memory."""
    said = Linked.of("few", ConvKind.WGRAD, (80,), tmp_path).said(80)
    launches = [line for line in said if line.startswith("launch")]
    assert "11few_filters" in launches[0]
    assert "12sum_of_partsI6__half" in launches[1]
    assert launches[:2] == launches[2:]


@pytest.mark.longer("all families for four GPUs")
@pytest.mark.parametrize("layer", list(LAYERS))
def test_all_templates(layer: str, tmp_path: Path) -> None:
    """Each family and kind, with an epilogue: both parts compile, for several GPUs."""
    made, found = rtc()
    units = []
    for kind in ConvKind:
        epilogue = () if kind is ConvKind.WGRAD else ("bias", "relu")
        for choice in ranked(problem(layer, kind), epilogue, 80)[:1]:  # none of an image's gradient
            kernel = choice.kernel
            units.append(nvrtc.Unit(kernel.name, kernel.source(), (80, 86, 89, 90)))
    assert len(units) == len(ConvKind) - (layer == "first")
    paths = nvrtc.build(made, found, tmp_path, units)
    before = [path.stat().st_mtime_ns for path in paths]
    assert nvrtc.build(made, found, tmp_path, units) == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
    content = paths[0].read_bytes()
    assert content.count(b"\x7fELF") == 5  # the object, and machine code of four GPUs
    other = replace(made, version=(99, 0))
    assert nvrtc.build(other, found, tmp_path, units[:1]) != paths[:1]


def test_the_words_of_nvrtc(tmp_path: Path) -> None:
    made, found = rtc()
    with pytest.raises(ToolchainError, match=r"NVRTC: NVRTC_ERROR_COMPILATION\n[^\0]*nonsense"):
        nvrtc.build(made, found, tmp_path, [nvrtc.Unit("x", "nonsense", (90,))])
    with pytest.raises(ToolchainError, match="NVRTC: NVRTC_ERROR_INVALID_OPTION"):
        made.compile("", 91, ())
    assert list(tmp_path.iterdir()) == []


# ---- who compiles --------------------------------------------------------------------------------


def test_nvcc_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = rtc()
    without = replace(found, nvcc=None)
    monkeypatch.setattr(compilers.nvrtc, "find", lambda environ: made)
    version = f"nvrtc {made.version[0]}.{made.version[1]}"
    assert compilers.compiler(without, {}).version == version
    assert objects.version(without) == version
    assert compilers.missing(without) == ""
    assert str(made.path) in compilers.described(without)
    by_name = {"RELAY_WGRAD_KERNELS_BY": "nvrtc"}
    assert compilers.compiler(found, by_name).rtc == made
    if found.nvcc is not None:
        assert re.fullmatch(r"nvcc \d+\.\d+", compilers.compiler(found, {}).version)
        assert str(found.nvcc) in compilers.described(found)
    with pytest.raises(ToolchainError, match="nvcc: not found"):
        compilers.compiler(without, {"RELAY_WGRAD_KERNELS_BY": "nvcc"})
    with pytest.raises(ValueError, match="RELAY_WGRAD_KERNELS_BY must be nvcc or nvrtc, got 'gcc'"):
        compilers.compiler(found, {"RELAY_WGRAD_KERNELS_BY": "gcc"})


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = rtc()
    without = replace(found, nvcc=None)
    monkeypatch.setattr(compilers.nvrtc, "find", lambda environ: None)
    with pytest.raises(ToolchainError, match=r"nvcc: not found; .*\nor NVRTC .*: not found; pip"):
        compilers.compiler(without, {})
    assert objects.version(without) is None
    assert compilers.described(without) == "neither nvcc nor NVRTC was found"
    old = replace(made, version=(12, 9))
    monkeypatch.setattr(compilers.nvrtc, "find", lambda environ: old)
    with pytest.raises(ToolchainError, match="is of CUDA 12; pip install nvidia-cuda-nvrtc"):
        compilers.compiler(without, {})
    no_compiler: Any = replace(without, compiler=())
    with pytest.raises(ToolchainError, match=r"a C\+\+17 compiler: no g\+\+ or clang\+\+"):
        compilers.compiler(no_compiler, {})


def test_where_nvrtc_is_looked_for(tmp_path: Path) -> None:
    made, _ = rtc()
    folder = tmp_path / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnvrtc.so.13").write_text("no library")
    home = tmp_path / "home" / "lib64"
    home.mkdir(parents=True)
    for path in made.path.parent.glob("libnvrtc*"):
        (home / path.name).symlink_to(path)
    found = nvrtc.find({"CUDA_HOME": str(tmp_path / "home")}, [tmp_path])
    assert found is not None
    assert found.path == home / "libnvrtc.so.13"
    assert found.version == made.version
    assert ctypes.CDLL(str(found.path)).nvrtcVersion
