"""Where grouped convolutions and few filters go: backends, kernels, GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import byoc_cudnn
from byoc_cudnn import BACKENDS
from byoc_cudnn.backends.cuda_direct import grouped, tensor_cores
from byoc_cudnn.backends.cuda_direct.check import Options
from byoc_cudnn.backends.cuda_direct.faster import microseconds
from byoc_cudnn.backends.cuda_direct.grouped import Shape
from byoc_cudnn.backends.cuda_direct.kernels import Kernel
from byoc_cudnn.backends.cuda_direct.model import choose, ranked, tried
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.transform import space_to_depth
from tests.support.partition_cases import problem_module

LINES = {
    "grouped": "{} n=64 c=448 h=28 w=28 k=448 r=3 s=3 pad=1,1,1,1 groups=8",
    "few": "{} n=64 c=320 h=64 w=64 k=4 r=3 s=3 pad=1,1,1,1",
    "narrow": "{} n=64 c=24 h=56 w=56 k=24 r=3 s=3 pad=1,1,1,1",
    "first": "{} n=64 c=3 h=224 w=224 k=64 r=3 s=3 pad=1,1,1,1",
}
CASES = [
    (family, kind)
    for family in LINES
    for kind in ConvKind
    if (family, kind) != ("first", ConvKind.DGRAD)
]


def problem_of(family: str, kind: ConvKind) -> ConvProblem:
    line = LINES[family].format(kind.value)
    return ConvProblem.parse(f"{line} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_they_are_taken_when_asked_for(family: str, kind: ConvKind) -> None:
    """cuDNN stays first where it is named first; `faster` takes what was measured."""
    module = problem_module(problem_of(family, kind))
    _, report = byoc_cudnn.partition(module, ["cuda_direct"], strict=True)
    assert report.rows() == {f"cuda_direct.{kind.value}": 1}
    _, report = byoc_cudnn.partition(module, ["cudnn", "cuda_direct"], strict=True)
    assert report.rows() == {f"cudnn.{kind.value}": 1}
    faster = BACKENDS["cuda_direct"].with_options(Options(faster=True))
    assert faster.takes(problem_of(family, kind))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("is_vgg", "kind", "backend"),
    [
        (True, ConvKind.FPROP, "cuda_direct"),
        (True, ConvKind.WGRAD, "cuda_direct"),
        (False, ConvKind.FPROP, "cuda_direct"),  # on blocks it has few channels
        (False, ConvKind.WGRAD, "cudnn"),
    ],
)
def test_first_layers_as_they_are_or_on_blocks(is_vgg: bool, kind: ConvKind, backend: str) -> None:
    """In a trainer's step: where they are expected to be faster than on blocks they stay."""
    stem = problem_of("first", kind)
    if not is_vgg:
        stem = replace(stem, r=7, s=7, strides=(2, 2), padding=(3, 3, 3, 3))
    module, found = space_to_depth(problem_module(stem), known=microseconds)
    assert bool(found[0].became) is not is_vgg
    both, options = ("cuda_direct", "cudnn"), {"faster": True}
    report = byoc_cudnn.partition(module, both, strict=True, cuda_direct=options)[1]
    assert report.rows() == {f"{backend}.{kind.value}": 1}


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_kernels_are_tried_by_name(family: str, kind: ConvKind) -> None:
    problem = problem_of(family, kind)
    pins = tried(Region.of("f", problem), 90, 4)
    assert len(pins) > (family != "few")
    for pin in pins:
        kernel = Kernel.parse(pin["kernel"])
        assert kernel.family == family
        assert choose(problem, (), Options(arch=90, kernel=kernel.name), 90) == kernel


def test_shared_memory_of_several_gpus() -> None:
    """A library for several GPUs has a kernel that each can run."""
    problem = problem_of("grouped", ConvKind.FPROP)

    def most(arch: int) -> int:
        shapes = [Shape(*choice.kernel.numbers) for choice in ranked(problem, (), arch)]
        return max(grouped.shared_bytes(problem.kind, shape) for shape in shapes)

    assert most(86) <= tensor_cores.SHARED[86] < most(90) <= tensor_cores.SHARED[90]
    for archs in ((80, 90), (86, 90), (80, 86, 89, 90)):
        kernel = choose(problem, (), Options(arch=archs), archs[-1])
        size = grouped.shared_bytes(problem.kind, Shape(*kernel.numbers))
        assert size <= min(tensor_cores.SHARED[arch] for arch in archs)
