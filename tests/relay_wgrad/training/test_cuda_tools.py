"""Which compiler TVM's CUDA kernels get, and that nothing of it is left."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from relay_wgrad.training import cuda_tools

MODE = "TVM_CUDA_COMPILE_MODE"


@pytest.fixture
def only_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(nvcc=Path("/opt/cuda/bin/nvcc"))
    monkeypatch.setattr(cuda_tools, "has_nvrtc", lambda: False)
    monkeypatch.setattr(cuda_tools.toolchain, "find", lambda: found)
    monkeypatch.delenv(MODE, raising=False)


@pytest.mark.usefixtures("only_nvcc")
def test_nvcc_as_long_as_somebody_compiles() -> None:
    before = dict(os.environ)
    with cuda_tools.cuda_compiler():
        assert os.environ["PATH"].endswith(":/opt/cuda/bin")
        with cuda_tools.cuda_compiler():
            pass
        assert os.environ[MODE] == "nvcc"
    assert dict(os.environ) == before


@pytest.mark.usefixtures("only_nvcc")
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE, "nvrtc")
    monkeypatch.delenv("PATH")
    with cuda_tools.cuda_compiler():
        assert (os.environ[MODE], os.environ["PATH"]) == ("nvrtc", f"{os.defpath}:/opt/cuda/bin")
    assert os.environ[MODE] == "nvrtc"
    assert "PATH" not in os.environ


def test_nothing_is_changed_where_bindings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_tools, "has_nvrtc", lambda: True)
    before = dict(os.environ)
    with cuda_tools.cuda_compiler():
        assert dict(os.environ) == before
