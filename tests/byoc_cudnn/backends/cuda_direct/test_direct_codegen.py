"""The code generated for our own convolution kernels: names, rows, and that nvcc takes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import byoc_cudnn
from byoc_cudnn import BACKENDS
from byoc_cudnn.backends.cuda_direct.check import EPILOGUES, Options, check
from byoc_cudnn.backends.cuda_direct.codegen import generate
from byoc_cudnn.backends.cuda_direct.families import FAMILIES
from byoc_cudnn.backends.cuda_direct.kernels import FLAGS, Kernel
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing
from byoc_cudnn.codegen.linked import kernels_of
from byoc_cudnn.codegen.regions import Region
from byoc_cudnn.fused import EPILOGUES as KNOWN
from relay_wgrad.problem import ConvProblem
from tests.support.partition_cases import problem_module

LINE = (
    "{} n=2 c=16 h=14 w=14 k=16 r=3 s=3 pad=1,1,1,1 groups=16 layout=NHWC/OHWI/NHWC"
    " dtype=f16/f16/f16"
)


def region(kind: str, *epilogue: str, line: str = LINE, **options: object) -> Region:
    return Region.of(f"f_{kind}", ConvProblem.parse(line.format(kind)), epilogue, **options)


def test_names_are_read_back() -> None:
    for kind, names in EPILOGUES.items():
        for name in names:
            parts = tuple(x for x in name.split("_") if x)
            problem = ConvProblem.parse(LINE.format(kind.value))
            for family in FAMILIES.values():
                if not family.accepts(problem, name):
                    continue
                for numbers in family.candidates(problem, parts, 90):
                    kernel = Kernel.of(family, problem, parts, numbers)
                    assert Kernel.parse(kernel.name) == kernel
    for wrong in ("x", "relay_wgrad_direct_none_fprop_f16_f16_n", "relay_wgrad_direct"):
        with pytest.raises(ValueError, match="no kernel of cuda_direct"):
            Kernel.parse(wrong)
    with pytest.raises(ValueError, match="no epilogue"):
        Kernel.parse("relay_wgrad_direct_depthwise_any_fprop_f16_f16_gelu_n")


def test_every_step_of_an_epilogue_is_a_flag() -> None:
    rows = BACKENDS["cuda_direct"].rows
    assert {step.name for row in rows for step in KNOWN[row.epilogue]} == set(FLAGS)


def test_kernels_for_the_gpus_that_are_named() -> None:
    one = region("fprop")
    assert {archs for archs, _ in kernels_of(generate([one]))} == {(80,)}
    assert {archs for archs, _ in kernels_of(generate([one], 90))} == {(90,)}
    several = region("fprop", arch=[90, 80])
    assert {archs for archs, _ in kernels_of(generate([several], 120))} == {(80, 90)}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (("groups=16", "groups=1"), ""),
        (("groups=16", "groups=8"), ""),
        (("NHWC/OHWI/NHWC", "NHWC/HWIO/NHWC"), "layouts NHWC/HWIO/NHWC"),
        (("f16/f16/f16", "f64/f64/f64"), "dtype float64"),
        (("f16/f16/f16", "f16/f32/f16"), "dtypes float16 and float32 to float16"),
        (("h=14", "h=40"), ""),
        (("r=3", "r=32 pad=16,1,16,1"), "a kernel of 32x3"),
    ],
)
def test_refusals(changed: tuple[str, str], reason: str) -> None:
    line = LINE.replace(*changed)
    if "r=32" in line:
        line = line.replace(" pad=1,1,1,1", "")
    decision = check(ConvProblem.parse(line.format("fprop")), "")
    assert bool(decision) is not bool(reason)
    assert reason in decision.reason


def test_options() -> None:
    assert Options(arch=[90, 80, 90]).archs == (80, 90)  # type: ignore[arg-type]
    for wrong in ({"arch": "90"}, {"deterministic": 1}, {"kernel": 3}):
        with pytest.raises(TypeError, match="cuda_direct: "):
            Options(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="arch must be one of"):
        Options(arch=91)
    other = region("fprop", kernel="relay_wgrad_direct_depthwise_any_dgrad_f16_f16_n")
    with pytest.raises(ValueError, match="is no kernel for fprop"):
        generate([other])


@pytest.mark.usefixtures("registered")
def test_partition_and_report() -> None:
    for kind in EPILOGUES:
        module = problem_module(ConvProblem.parse(LINE.format(kind.value)))
        out, report = byoc_cudnn.partition(module, ["cuda_direct"], strict=True)
        assert report.rows() == {f"cuda_direct.{kind.value}": 1}
        assert byoc_cudnn.partition(out, ["cuda_direct"])[0] is not None


@pytest.mark.longer("compiles C++")
def test_nvcc_and_the_compiler_take_it(tmp_path: Path) -> None:
    if text := missing(find()):
        pytest.skip(text)
    regions = [region("fprop", "bias", "relu"), region("dgrad", "mask"), region("wgrad")]
    source, library = tmp_path / "regions.cc", tmp_path / "regions.so"
    source.write_text(generate(regions, 90))
    subprocess.run(library_command(source, library), check=True)
    names = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    assert sorted(word for word in names.stdout.split() if word.startswith("__tvm_ffi")) == [
        "__tvm_ffi_f_dgrad", "__tvm_ffi_f_fprop", "__tvm_ffi_f_wgrad",
        "__tvm_ffi_relay_wgrad_cuda_direct_plans", "__tvm_ffi_relay_wgrad_cuda_direct_release",
    ]  # fmt: skip
