"""Objects of device code: built once, whoever wants them, with a compiler that notes its runs."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from byoc_cudnn.building import nvcc
from byoc_cudnn.building.nvcc import Unit, build
from relay_wgrad.output import turn_at

_NVCC = """#!/bin/sh
case "$1" in --version) echo "release 13.0"; exit;; esac
echo run >> "{runs}"
sleep 0.5
for word; do last=$word; done
echo made > "$last"
"""
_UNITS = [Unit("one", "int a;", ()), Unit("two", "int b;", ("-O3",))]


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    path = tmp_path / "nvcc"
    path.write_text(_NVCC.format(runs=tmp_path / "runs"))
    path.chmod(0o700)
    return path


def _runs(compiler: Path) -> int:
    return len(compiler.with_name("runs").read_text().split())


def _start(compiler: Path, folder: Path) -> subprocess.Popen[bytes]:
    text = (
        "from pathlib import Path; import sys\n"
        "from tests.byoc_cudnn.building.test_nvcc import _UNITS, build\n"
        "build(Path(sys.argv[1]), Path(sys.argv[2]), _UNITS)\n"
    )
    words = [sys.executable, "-c", text, str(compiler), str(folder)]
    return subprocess.Popen(words, cwd=Path(__file__).parents[3])


def test_several_processes_build_each_object_once(compiler: Path, tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    children = [_start(compiler, folder) for _ in range(3)]
    assert [child.wait() for child in children] == [0] * 3
    assert _runs(compiler) == len(_UNITS)
    assert sorted(path.suffix for path in folder.iterdir()) == [".o", ".o"]


def test_what_a_killed_process_locked_is_free(compiler: Path, tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    child = _start(compiler, folder)
    until = time.monotonic() + 60
    while not list(folder.glob("*.lock")) and time.monotonic() < until:
        time.sleep(0.01)
    child.kill()
    child.wait()
    paths = build(compiler, folder, _UNITS)
    assert all(path.read_text() == "made\n" for path in paths)
    assert not list(folder.glob("*.lock"))


def test_what_stays_locked_is_not_waited_for_forever(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    monkeypatch.setattr(nvcc, "turn_at", partial(turn_at, patience=0.2))
    (path,) = build(compiler, folder, _UNITS[:1])
    path.unlink()
    with path.with_name(f"{path.name}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert build(compiler, folder, _UNITS[:1]) == [path]
    assert _runs(compiler) == 2
