"""The cache of objects, with a stand-in for nvcc that writes what it was called with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from byoc_cudnn.backends.cutlass import objects as cutlass_objects
from byoc_cudnn.backends.cutlass.codegen import generate
from byoc_cudnn.backends.cutlass.kernel_source import SLICES
from byoc_cudnn.backends.cutlass.objects import (
    cache_folder,
    find_cutlass,
    missing,
    objects,
)
from byoc_cudnn.building.nvcc import nvcc_version
from byoc_cudnn.building.toolchain import Toolchain, ToolchainError, find
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvProblem

PROBLEM = ConvProblem.parse("wgrad n=2 c=8 h=8 w=8 k=8 r=3 s=3 layout=NHWC/OHWI/NHWC")
SOURCE = generate([Region("f", PROBLEM, (), ("grad", "data"), {})])

NVCC = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "release {release}, V{release}.88"; exit 0; fi
echo "$@" >> "{log}"
for word; do last=$word; done
echo "object" > "$last"
{then}
"""


def fake(folder: Path, release: str = "13.0", then: str = "exit 0") -> Toolchain:
    folder.mkdir(exist_ok=True)
    program = folder / "nvcc"
    program.write_text(NVCC.format(release=release, log=folder / "log", then=then))
    program.chmod(0o755)
    found = find()
    if not found.cuda.complete:
        pytest.skip("needs the headers of CUDA's runtime")
    major = found.cuda.version[0]
    return replace(found, cuda=replace(found.cuda, version=(major, 0)), nvcc=program)


def calls(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def environ(folder: Path) -> dict[str, str]:
    return {"RELAY_WGRAD_CACHE": str(folder / "cache")}


def test_each_kernel_is_built_once(tmp_path: Path) -> None:
    toolchain = fake(tmp_path / "a")
    first = objects(SOURCE, toolchain, environ(tmp_path))
    assert first[0].name.startswith(f"{SLICES}-")
    assert len(first) == 2
    assert len(calls(tmp_path / "a")) == 2
    assert all("arch=compute_80,code=[sm_80,compute_80]" in x for x in calls(tmp_path / "a"))
    assert objects(SOURCE, toolchain, environ(tmp_path)) == first
    assert len(calls(tmp_path / "a")) == 2
    folder = first[0].parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(folder.iterdir()) == sorted(first)  # nothing half made is left


def test_the_key_has_gpu_compiler_and_source(tmp_path: Path) -> None:
    region = Region("f", PROBLEM, (), ("grad", "data"), {})
    env = environ(tmp_path)
    old = objects(SOURCE, fake(tmp_path / "a"), env)
    gpu = objects(generate([region], 90), fake(tmp_path / "a"), env)
    nvcc_version.cache_clear()  # the same program has become another version
    nvcc = objects(SOURCE, fake(tmp_path / "a", "13.1"), env)
    nvcc_version.cache_clear()
    assert not set(old) & set(gpu)
    assert not set(old) & set(nvcc)
    other = replace(PROBLEM, k=6)
    more = objects(generate([replace(region, problem=other)]), fake(tmp_path / "a"), env)
    assert more[0] == old[0]  # the slices' kernel is the same
    assert more[1] != old[1]


def test_another_version_of_cutlass_is_another_key(tmp_path: Path) -> None:
    toolchain, env = fake(tmp_path / "a"), environ(tmp_path)
    old = objects(SOURCE, toolchain, env)
    home = tmp_path / "home"
    (home / "include/cutlass").mkdir(parents=True)
    (home / "include/cutlass/cutlass.h").write_text("")
    version = home / "include/cutlass/version.h"
    version.write_text("#define CUTLASS_MAJOR 9\n#define CUTLASS_MINOR 1\n")
    env["CUTLASS_HOME"] = str(home)
    new = objects(SOURCE, toolchain, env)
    assert not set(new) & set(old)
    version.write_text("#define CUTLASS_MAJOR 9\n#define CUTLASS_MINOR 2\n")
    assert not set(objects(SOURCE, toolchain, env)) & set(new)
    found = find_cutlass(env)
    assert found is not None
    assert found.text == "9.2"
    version.write_text("#define CUTLASS_MAJOR 2\n#define CUTLASS_MINOR 11\n")  # too old
    assert find_cutlass(env) == find_cutlass({})


def test_tvm_has_the_headers() -> None:
    found = find_cutlass({})
    assert found is not None
    assert (found.include / "cutlass/conv/kernel/default_conv2d_wgrad.h").is_file()
    assert found.version >= cutlass_objects.OLDEST


def test_what_nvcc_says_is_in_the_error(tmp_path: Path) -> None:
    toolchain = fake(tmp_path / "a", then="echo 'no such luck' >&2; exit 2")
    with pytest.raises(ToolchainError, match=r"nvcc failed:\n[^\n]+\nno such luck"):
        objects(SOURCE, toolchain, environ(tmp_path))
    assert list((tmp_path / "cache/cutlass-objects").iterdir()) == []


def test_a_source_without_kernels_needs_nothing(tmp_path: Path) -> None:
    bare = replace(find(), nvcc=None)
    assert objects("int main() {}", bare, environ(tmp_path)) == []
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    env = environ(tmp_path)
    folder = cache_folder(env)
    folder.chmod(0o770)
    with pytest.raises(ToolchainError, match="the folder must be yours alone"):
        objects(SOURCE, fake(tmp_path / "a"), env)
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ToolchainError, match="the folder must be yours alone"):
        cache_folder(env)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(ToolchainError, match="set RELAY_WGRAD_CACHE to a folder that you may"):
        cache_folder(environ(tmp_path))


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"RELAY_WGRAD_CACHE": "{0}/own", "HOME": "{0}"}, "own"),
        ({"XDG_CACHE_HOME": "{0}/xdg", "HOME": "{0}"}, "xdg/relay-wgrad"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "{0}"}, ".cache/relay-wgrad"),
        ({"HOME": "{0}"}, ".cache/relay-wgrad"),
    ],
)
def test_where_the_folder_is(env: dict[str, str], folder: str, tmp_path: Path) -> None:
    found = cache_folder({name: value.format(tmp_path) for name, value in env.items()})
    assert found == tmp_path / folder / "cutlass-objects"


def test_nvcc_and_the_runtime_must_be_of_one_major_version(tmp_path: Path) -> None:
    toolchain = fake(tmp_path / "a", "11.8")
    text = missing(toolchain, find_cutlass({}))
    assert f"nvcc of CUDA {toolchain.cuda.version[0]}, as the runtime is" in text
    assert "is of CUDA 11.8" in text


def test_missing_headers_are_named(tmp_path: Path) -> None:
    text = missing(fake(tmp_path / "a"), None)
    assert "CUTLASS's headers, 3.5 or later: not found; set CUTLASS_HOME" in text
