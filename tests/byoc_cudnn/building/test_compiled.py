"""How what is left of a module is compiled for a GPU."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import tvm

import byoc_cudnn

NVCC = "TVM_CUDA_NVCC_NO_FAST_MATH"
FAST = b"--use_fast_math"


def test_the_hosts_part_is_not_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks arguments and launches kernels; a host that somebody gives stays."""
    hosts: list[Any] = []
    monkeypatch.setattr(tvm, "compile", lambda mod, target, **_: hosts.append(target.host))
    for host in (None, {"kind": "llvm", "opt-level": 2}):
        target = {"kind": "cuda", "arch": "sm_90", **({"host": host} if host else {})}
        byoc_cudnn.build(tvm.IRModule(), target)
    assert [int(host.attrs["opt-level"]) for host in hosts] == [0, 2]


@pytest.mark.parametrize("given", [None, "", "--use_fast_math"])
def test_arithmetic_is_not_fast(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM asks both compilers for approximate division and functions; we do not.

    What the user asks NVRTC for stays, which TVM puts after its own flags.
    """
    compiled: list[list[bytes]] = []
    nvrtc = SimpleNamespace(nvrtcCompileProgram=lambda _, n, given: compiled.append([*given, n]))
    before = nvrtc.nvrtcCompileProgram
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", nvrtc)
    seen: list[str | None] = []

    def compile_nothing(*args: Any, **options: Any) -> None:
        seen.append(os.environ.get(NVCC))
        flags = [b"-default-device", FAST, *([given.encode()] if given else [])]
        nvrtc.nvrtcCompileProgram(None, len(flags), flags)

    monkeypatch.setattr(tvm, "compile", compile_nothing)
    monkeypatch.delenv(NVCC, raising=False)
    byoc_cudnn.build(tvm.IRModule(), {"kind": "cuda", "arch": "sm_90"})
    assert seen == ["1"]
    rest = [b"-default-device", *([FAST] if given else [])]
    assert compiled == [[*rest, len(rest)]]
    assert os.environ.get(NVCC) is None
    assert nvrtc.nvrtcCompileProgram is before
    monkeypatch.setenv(NVCC, "")  # as TVM has it
    byoc_cudnn.build(tvm.IRModule(), {"kind": "cuda", "arch": "sm_90"})
    assert FAST in compiled[-1]
