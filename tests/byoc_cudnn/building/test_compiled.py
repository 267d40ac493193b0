"""How what is left of a module is compiled for a GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tvm

import byoc_cudnn

NVCC, NVRTC = "TVM_CUDA_NVCC_NO_FAST_MATH", "TVM_CUDA_NVRTC_EXTRA_OPTS"


def test_the_hosts_part_is_not_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks arguments and launches kernels; a host that somebody gives stays."""
    hosts: list[Any] = []
    monkeypatch.setattr(tvm, "compile", lambda mod, target, **_: hosts.append(target.host))
    for host in (None, {"kind": "llvm", "opt-level": 2}):
        target = {"kind": "cuda", "arch": "sm_90", **({"host": host} if host else {})}
        byoc_cudnn.build(tvm.IRModule(), target)
    assert [int(host.attrs["opt-level"]) for host in hosts] == [0, 2]


@pytest.mark.parametrize("given", [None, "", "--fmad=false"])
def test_arithmetic_is_not_fast(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM asks for approximate division and roots, and small numbers are zero; we do not."""
    seen: dict[str, str | None] = {}

    def compile_nothing(*args: Any, **options: Any) -> None:
        seen.update({name: os.environ.get(name) for name in (NVCC, NVRTC)})

    monkeypatch.setattr(tvm, "compile", compile_nothing)
    monkeypatch.delenv(NVCC, raising=False)
    monkeypatch.delenv(NVRTC, raising=False)
    if given is not None:
        monkeypatch.setenv(NVRTC, given)
    byoc_cudnn.build(tvm.IRModule(), {"kind": "cuda", "arch": "sm_90"})
    assert seen[NVCC] == "1"
    assert seen[NVRTC] == (
        "--ftz=false --prec-div=true --prec-sqrt=true" if given is None else given
    )
    assert os.environ.get(NVCC) is None
    assert os.environ.get(NVRTC) == given
