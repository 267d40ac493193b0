"""Where headers, libraries and the compiler are looked for, on made-up machines and on this one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from byoc_cudnn.building import toolchain
from byoc_cudnn.building.components import Component
from byoc_cudnn.building.toolchain import Toolchain, ToolchainError

ROOT = Path(__file__).parents[3]


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def put_cudnn(include: Path, lib: Path, version: str = "9.19.1") -> None:
    numbers = zip(("MAJOR", "MINOR", "PATCHLEVEL"), version.split("."), strict=True)
    put(include / "cudnn.h")
    put(include / "cudnn_version.h", "".join(f"#define CUDNN_{n} {v}\n" for n, v in numbers))
    put(lib / f"libcudnn.so.{version.split('.')[0]}")


def put_cuda(include: Path, lib: Path, number: int = 13000) -> None:
    put(include / "cuda_runtime_api.h", f"#define CUDART_VERSION  {number}\n")
    put(include / "crt/host_defines.h")
    put(lib / f"libcudart.so.{number // 1000}")


def find(packages: Path, system: Path, environ: Mapping[str, str] | None = None) -> Toolchain:
    """A machine of these folders only; the compiler is this machine's."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(environ or {})}
    return toolchain.find(environ=env, package_roots=[packages], system_roots=[system])


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path, Path]:
    """(Python packages, a home folder, the system), all empty."""
    return tmp_path / "nvidia", tmp_path / "home", tmp_path / "usr"


Roots = tuple[Path, Path, Path]


def test_order(roots: Roots) -> None:
    """Packages before CUDNN_HOME and CUDA_HOME before the system; headers and library together."""
    packages, home, system = roots
    put_cudnn(system / "include", system / "lib64", "9.1.0")
    put_cuda(system / "include", system / "lib64", 12040)
    env = {"CUDNN_HOME": str(home), "CUDA_HOME": str(home)}
    found = find(packages, system, env)
    assert (found.cudnn.version, found.cuda.version) == ((9, 1, 0), (12, 4))
    assert found.cuda.shared_library == system / "lib64/libcudart.so.12"

    put_cudnn(home / "include", home / "lib", "9.5.2")
    put_cuda(home / "targets/x86_64-linux/include", home / "lib64", 13010)
    found = find(packages, system, env)
    assert (found.cudnn.version, found.cuda.version) == ((9, 5, 2), (13, 1))
    assert found.cudnn.source == f"CUDNN_HOME ({home})"
    assert find(packages, system).cudnn.version == (9, 1, 0)
    assert find(packages, system, {"CUDA_PATH": str(home)}).cuda.version == (13, 1)

    put_cudnn(packages / "cudnn/include", packages / "cudnn/lib")
    put_cuda(packages / "cu13/include", packages / "cu13/lib")
    found = find(packages, system, env)
    assert (found.cudnn.version_text, found.cuda.version_text) == ("9.19.1", "13.0")
    assert found.require() is found
    assert found.missing() == ""


def test_packages_of_cuda_12(roots: Roots) -> None:
    """There the crt headers are in another package's folder."""
    packages, _, system = roots
    put_cuda(packages / "cuda_runtime/include", packages / "cuda_runtime/lib", 12080)
    (packages / "cuda_runtime/include/crt/host_defines.h").unlink()
    found = find(packages, system)
    assert not found.cuda.complete
    assert found.cuda.shared_library is not None  # enough for preload
    put(packages / "cuda_nvcc/include/crt/host_defines.h")
    found = find(packages, system)
    assert found.cuda.complete
    assert found.cuda.includes == (
        packages / "cuda_runtime/include", packages / "cuda_nvcc/include",
    )  # fmt: skip


def test_half_a_place_is_passed_over(roots: Roots) -> None:
    """Headers here and a library there may not fit each other, so neither is taken."""
    packages, home, system = roots
    put_cudnn(packages / "cudnn/include", packages / "cudnn/lib")
    (packages / "cudnn/lib/libcudnn.so.9").unlink()
    put_cuda(packages / "cu13/include", packages / "cu13/lib")
    (packages / "cu13/include/crt/host_defines.h").unlink()
    put(home / "lib/libcudnn.so.9")
    found = find(packages, system, {"CUDNN_HOME": str(home)})
    message = found.missing()
    for part in (
        "cuDNN 9 (cudnn.h and libcudnn.so.9): not found",
        f"{packages / 'cudnn'}: headers without libcudnn.so.9",
        f"CUDNN_HOME ({home}): libcudnn without its headers",
        f"{packages / 'cu13'}: headers without crt/host_defines.h (package nvidia-cuda-crt)",
        "pip install 'relay-wgrad[cuda]', or set CUDNN_HOME",
    ):
        assert part in message
    put_cuda(system / "include", system / "lib")
    found = find(packages, system)
    assert found.cuda.source == f"system ({system})"
    assert found.cuda.rejected


@pytest.mark.parametrize("version", ["8.9.7", "10.0.0"])
def test_wrong_cudnn(roots: Roots, version: str) -> None:
    packages, _, system = roots
    put_cudnn(packages / "cudnn/include", packages / "cudnn/lib", version)
    with pytest.raises(ToolchainError, match=f"cuDNN {version} is not supported; version 9 is"):
        find(packages, system).require()
    (packages / "cudnn/include/cudnn.h").unlink()
    (packages / "cudnn/include/cudnn_version.h").unlink()
    major = version.split(".")[0]
    message = find(packages, system).missing()
    assert f"has libcudnn.so.{major}; cuDNN 9 is needed" in message


def test_wrong_cuda(roots: Roots) -> None:
    packages, _, system = roots
    put_cuda(system / "include", system / "lib64", 11080)
    assert "CUDA 11.8 is not supported; version 12 or 13 is needed" in (
        find(packages, system).missing()
    )  # fmt: skip


def test_nothing_at_all(roots: Roots) -> None:
    found = toolchain.find(environ={"PATH": "/nowhere"}, package_roots=[], system_roots=[roots[2]])
    assert found.compiler == ()
    with pytest.raises(RuntimeError) as caught:
        found.command(Path("a.cc"), Path("a"))
    message = str(caught.value)
    assert "cuda_runtime_api.h, crt/host_defines.h and libcudart.so.13 or .12" in message
    assert "a C++17 compiler: no g++ or clang++ on PATH" in message
    assert toolchain.preload(found) == []


@pytest.mark.parametrize(
    ("cxx", "good"),
    [("g++", True), ("g++ -m64", True), ("no-such-compiler", False), ("g++ '", False), ("", False)],
)
def test_cxx(roots: Roots, cxx: str, good: bool) -> None:
    found = find(roots[0], roots[2], {"CXX": cxx})
    assert bool(found.compiler) == good
    assert (f"a C++17 compiler: CXX={cxx!r} is none" in found.missing()) == (not good)
    assert found.compiler[1:] == tuple(cxx.split()[1:]) if good else True


def test_odd_folder_names(tmp_path: Path) -> None:
    """Spaces, commas and quotes reach compiler and loader as they are; a colon is refused."""
    packages = tmp_path / "my 'own', $HOME; \"x\" folder"
    put_cudnn(packages / "cudnn/include", packages / "cudnn/lib")
    put_cuda(packages / "cu13/include", packages / "cu13/lib")
    for stem, major in (("cudnn", 9), ("cudart", 13)):
        folder = packages / ("cudnn" if stem == "cudnn" else "cu13")
        source = tmp_path / f"{stem}.cc"
        source.write_text(f'extern "C" int {stem}_answer() {{ return {major}; }}\n')
        library = folder / f"lib/lib{stem}.so.{major}"
        subprocess.run(["g++", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", str(source), "-o",
                        str(library)], check=True)  # fmt: skip
    found = find(packages, tmp_path / "usr")
    program = tmp_path / "program.cc"
    program.write_text(
        '#include <cudnn.h>\n#include <cudnn_version.h>\n#include "crt/host_defines.h"\n'
        'extern "C" int cudnn_answer();\nextern "C" int cudart_answer();\n'
        "int main() { return cudnn_answer() + cudart_answer() - CUDNN_MAJOR; }\n"
    )
    subprocess.run(found.command(program, tmp_path / "program"), check=True)
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 13

    colon = tmp_path / "a:b"
    put_cudnn(colon / "cudnn/include", colon / "cudnn/lib")
    assert "a path with ':' cannot be an rpath" in find(colon, tmp_path / "usr").missing()


def complete() -> Toolchain:
    found = toolchain.find()
    if not found.cudnn.complete or not found.cuda.complete:
        pytest.skip(f"needs NVIDIA's packages: {found.missing()}")
    return found


def test_real_headers_and_libraries(tmp_path: Path) -> None:
    """A host compiler alone builds against them, and the loader finds them without help."""
    found = complete()
    program = tmp_path / "program.cc"
    program.write_text(
        "#include <cuda_runtime_api.h>\n#include <cudnn.h>\n#include <cstdio>\n"
        "int main() {\n  int version = 0;\n  if (cudaRuntimeGetVersion(&version)) return 1;\n"
        '  std::printf("%zu %d", cudnnGetVersion(), version);\n}\n'
    )
    subprocess.run(found.command(program, tmp_path / "program"), check=True)
    done = subprocess.run([tmp_path / "program"], check=True, capture_output=True, text=True,
                          env={})  # fmt: skip
    major, minor, patch = found.cudnn.version
    cuda = found.cuda.version[0] * 1000 + found.cuda.version[1] * 10
    assert done.stdout == f"{major * 10000 + minor * 100 + patch} {cuda}"


@pytest.mark.longer("starts processes of TVM")
@pytest.mark.parametrize("when", ["before", "after"])
def test_preload_lets_tvm_load_its_cuda_runtime(tmp_path: Path, when: str) -> None:
    """With a stand-in for the driver's library, which only a machine with a GPU has."""
    found = complete()
    assert found.cuda.shared_library is not None
    if found.cuda.version[0] != 13:
        pytest.skip("TVM's wheel is built for CUDA 13")
    try:
        ctypes.CDLL("libcuda.so.1")
        stand_in = ""
    except OSError:
        stand_in = str(make_libcuda(tmp_path))
    load = "from byoc_cudnn.building import toolchain; print(toolchain.preload())\n"
    script = (
        "import ctypes, sys, types\n"
        f"if {stand_in!r}: ctypes.CDLL({stand_in!r}, mode=ctypes.RTLD_GLOBAL)\n"
        # The package's own `__init__` may import TVM.
        "package = types.ModuleType('byoc_cudnn'); package.__path__ = ['byoc_cudnn']\n"
        "sys.modules['byoc_cudnn'] = package\n"
        + (load if when == "before" else "import tvm\n" + load)
        + "import tvm\n"
        "from tvm.base import _LOADED_LIBS\n"
        "assert 'tvm_runtime_cuda' in _LOADED_LIBS\n"
        "assert tvm.get_global_func('device_api.cuda') is not None\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'cudart' in line}\n"
        "print(*maps)\n"
        "assert toolchain.preload() == []\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    if when == "before":
        assert done.stdout.splitlines()[-1] == str(found.cuda.shared_library)


def make_libcuda(folder: Path) -> Path:
    """A libcuda.so.1 whose every function, of those that TVM calls, does nothing."""
    import tvm

    runtime = Path(tvm.base._LOADED_LIBS["tvm_runtime"]._name).with_name("libtvm_runtime_cuda.so")
    table = subprocess.run(["nm", "-D", "--undefined-only", str(runtime)], capture_output=True,
                           text=True, check=True).stdout  # fmt: skip
    names = [line.split()[-1] for line in table.splitlines()]
    wanted = [n for n in names if n.startswith("cu") and "@" not in n]
    source = folder / "libcuda.cc"
    source.write_text("".join(f'extern "C" int {n}() {{ return 100; }}\n' for n in wanted))
    library = folder / "libcuda.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o",
                    str(library)], check=True)  # fmt: skip
    return library


def test_env(tmp_path: Path) -> None:
    """The command says what is there, what was passed over, and what is missing."""
    env = {**os.environ, "CUDNN_HOME": str(tmp_path), "CXX": "no-such-compiler", "COLUMNS": "120"}
    put(tmp_path / "include/cudnn.h")
    words = [sys.executable, "-W", "error", "-m", "relay_wgrad", "env"]
    done = subprocess.run([*words, "--json"], cwd=ROOT, capture_output=True, text=True, check=False,
                          env=env)  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["hooks of TVM"] == "all found"
    assert "CXX='no-such-compiler' is none" in data["missing"]
    assert data["C++ compiler"] == "not found"
    assert "without cudnn: " in data["training on a GPU"]
    build = data["build"]
    assert build["missing"] == data["missing"]
    found = toolchain.find()
    assert build["cuDNN"]["version"] == list(found.cudnn.version)
    assert build["CUDA"]["library"] == (
        str(found.cuda.shared_library) if found.cuda.shared_library else None
    )


@pytest.mark.parametrize(
    ("runtime", "library"),
    [
        ("cu13/lib/libcudart.so.13", "cu13/lib/libcublas.so.13"),
        ("cuda_runtime/lib/libcudart.so.12", "cublas/lib/libcublas.so.12"),
        ("cuda_runtime/lib/libcudart.so.12", "cublas/lib/libcublas.so.13"),
    ],
)
def test_cublas_is_that_of_the_runtime(runtime: str, library: str, tmp_path: Path) -> None:
    found = toolchain.find({}, [], [])
    assert found.cublas is None
    for name in (runtime, library):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = replace(found, cuda=Component("CUDA", shared_library=tmp_path / runtime))
    fits = runtime[-2:] == library[-2:]
    assert found.cublas == (tmp_path / library if fits else None)
    # Its folder is searched where it is another than the runtime's, which is linked.
    assert (str((tmp_path / library).parent) in found.link_options) == fits
