"""Kernels that NVRTC compiled, on a device: right numbers, for several GPUs, in a graph."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from byoc_cudnn.backends.cuda_direct import loaded, objects
from byoc_cudnn.backends.cuda_direct.check import Options
from byoc_cudnn.building import nvrtc
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.depthwise_cases import drawn_regions
from tests.support.gpu.direct_runner import wrong_ones

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]
SEED, COUNT = 53, 24
F16 = "layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
LAYERS = (
    "n=8 c=64 h=29 w=28 k=64 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=8",
    "n=16 c=96 h=28 w=28 k=96 r=7 s=7 pad=3,3,3,3 groups=96",
    "n=4 c=64 h=29 w=28 k=4 r=3 s=3 pad=1,1,1,1",
)


@pytest.fixture(autouse=True)
def by_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    if nvrtc.find() is None:
        pytest.skip("no NVRTC")
    monkeypatch.setenv("RELAY_WGRAD_KERNELS_BY", "nvrtc")
    version = objects.version(find())
    assert version is not None
    assert version.startswith("nvrtc")


@pytest.mark.parametrize("kind", list(ConvKind))
def test_random_problems(kind: ConvKind, tmp_path: Path) -> None:
    """Depthwise by any kernel, for one GPU or several; those on tensor cores by the first."""
    regions = drawn_regions(SEED, kind, COUNT, 80, [(80, 90), 80, 80])
    for number, line in enumerate(LAYERS):
        problem = ConvProblem.parse(f"{kind.value} {line} {F16}")
        regions.append(Region.of(f"g{number}", problem, (), arch=90))
    assert wrong_ones(regions, tmp_path, SEED) == []


def test_captured_and_in_another_thread() -> None:
    """A launch in a graph, replayed; and the first call of a thread that has no context yet."""
    problem = ConvProblem.parse(f"dgrad {LAYERS[0]} {F16}")
    run = loaded.convolution(problem, Options(arch=90), 90)
    tensors = [
        torch.randn(problem.shape(role), device="cuda", dtype=torch.float16)
        for role in problem.roles
    ]
    run(*tensors)
    want = tensors[2].clone()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run(*tensors)
    tensors[2].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(tensors[2], want)
    tensors[2].fill_(float("nan"))
    failed: list[BaseException] = []

    def call() -> None:
        try:
            run(*tensors)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert failed == []
    assert torch.equal(tensors[2], want)
