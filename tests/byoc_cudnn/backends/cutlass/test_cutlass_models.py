"""The gradients of the nine architectures: what share of their convolutions goes to CUTLASS."""

from __future__ import annotations

import math

import pytest
from tvm import relax

import byoc_cudnn
from benchmarks import gpu_cases
from byoc_cudnn.backends.cutlass.check import MAX_BYTES
from byoc_cudnn.backends.cutlass.codegen import generate
from byoc_cudnn.backends.cutlass.kernels import Kernel
from byoc_cudnn.codegen.linked import kernels_of
from byoc_cudnn.codegen.regions import read_region
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.problem import ConvProblem
from relay_wgrad.training.step import step_module
from relay_wgrad.transform import ConvertLayout
from tests.support.partition_cases import regions

# name -> convolutions with too many groups, or too few channels in each, which stay
GROUPED = {"shufflenet": 51}
# name -> how many of the data gradients take ReLU's mask along
MASKED = {
    "alexnet": 2, "densenet121": 119, "inception_v1": 19, "inception_v2": 32, "resnet50": 32,
    "squeezenet": 9, "vgg19": 15, "zfnet512": 2,
}  # fmt: skip


@pytest.mark.longer_cases(
    "densenet121",
    "inception_v2",
    "vgg19",
    "inception_v1",
    "zfnet512",
    "alexnet",
    "shuf",
    "resnet50",
)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", BUNDLED)
def test_every_convolution_but_of_small_groups_goes(name: str) -> None:
    step = step_module(from_onnx(name), dtype="float16")
    out, report = byoc_cudnn.partition_for_cutlass(ConvertLayout("NHWC")(step))
    assert len(report.left) == GROUPED.get(name, 0)
    for entry in report.left:
        problem = ConvProblem.parse(entry.problem)
        each = min(problem.c, problem.k) // problem.groups
        assert problem.groups > 1
        assert each < 8
        assert entry.reason.startswith(f"groups={problem.groups} of {each} channels: a kernel for")
    assert report.rows().get("cutlass.dgrad_strictmask", 0) == MASKED.get(name, 0)
    # Asymmetric padding and float32 sums are CUTLASS's own; odd channels get zeros.
    for entry in report.entries:
        problem = ConvProblem.parse(entry.problem)
        odd = problem.c % 8 != 0 or problem.k % 8 != 0
        assert entry.adapted in (("", "channels") if odd and problem.groups == 1 else ("",))
    assert any(entry.adapted for entry in report.entries)  # the first layer, of three channels
    relax.analysis.well_formed(out)

    found = [read_region(func) for func in regions(out).values()]
    source = generate(found, 90)
    kernels = [name for _, name in kernels_of(source)]
    assert source.count("TVM_FFI_DLL_EXPORT int __tvm_ffi_") == len(found)
    # One kernel serves many problems: that is what keeps nvcc's work bounded.
    assert len(kernels) <= min(len(found) + 1, 16)
    for kernel in kernels[1:]:
        assert f"RelayWgradKernel {Kernel.parse(kernel).name};" in source


# ---- the benchmark's cases -----------------------------------------------------------------------


def test_cases_of_each_backend() -> None:
    """The same problems for both, but for groups; CUTLASS counts a tensor in bytes."""
    kinds, modes = ["fprop", "dgrad", "wgrad"], ["f16", "tf32"]
    found = gpu_cases.cases(["mobilenetv2"], kinds, modes, 8, ["cudnn", "cutlass", "wgmma"])
    problems = {
        name: {(c.problem, c.mode) for c in found if c.backend == name}
        for name in ("cudnn", "cutlass", "wgmma")
    }
    ungrouped = {(p, mode) for p, mode in problems["cudnn"] if p.groups == 1}
    assert problems["cutlass"] == problems["wgmma"] == ungrouped < problems["cudnn"]
    assert len({c.symbol for c in found}) == len(found)
    large = gpu_cases.cases(["vgg16"], kinds, ["f32"], 256, ["cutlass"])
    for case in large:
        sizes = (case.problem.shape(role) for role in ("data", "weight", "grad"))
        assert all(4 * math.prod(size) < MAX_BYTES for size in sizes)
