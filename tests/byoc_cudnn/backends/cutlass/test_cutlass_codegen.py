"""The code generated for CUTLASS: its text, that nvcc takes it, and that the whole links."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import byoc_cudnn
from byoc_cudnn.backends.cutlass import BACKEND
from byoc_cudnn.backends.cutlass import objects as cutlass_objects
from byoc_cudnn.backends.cutlass.codegen import generate, head_and_runtime
from byoc_cudnn.backends.cutlass.kernel_source import SLICES, kernel_source, specialization
from byoc_cudnn.backends.cutlass.kernels import Kernel
from byoc_cudnn.building import nvcc
from byoc_cudnn.building.compiled import Library, build, library_command
from byoc_cudnn.building.toolchain import ToolchainError, find
from byoc_cudnn.codegen.external import arch_of, register
from byoc_cudnn.codegen.linked import kernels_of
from byoc_cudnn.codegen.regions import Region, read_region
from relay_wgrad.problem import ConvProblem
from tests.support.partition_cases import merged, problem_module, regions

pytestmark = pytest.mark.usefixtures("registered")

NHWC = "layout=NHWC/OHWI/NHWC"
# name -> problem, epilogue, options: each goes to a kernel of another family
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "fprop_stem": (
        f"fprop n=2 c=3 h=32 w=32 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 {NHWC} dtype=f16/f16/f16",
        ("bias", "relu"), {},
    ),
    "dgrad_mask": (
        f"dgrad n=2 c=64 h=14 w=14 k=64 r=3 s=3 pad=1,1,1,1 {NHWC} dtype=bf16/bf16/bf16",
        ("mask",), {},
    ),
    "dgrad_strictmask": (
        f"dgrad n=2 c=64 h=14 w=14 k=64 r=3 s=3 pad=1,1,1,1 {NHWC} dtype=bf16/bf16/bf16",
        ("strictmask",), {},
    ),
    "dgrad_strided": (
        f"dgrad n=2 c=64 h=14 w=14 k=64 r=3 s=3 stride=2,1 pad=1,0,1,2 {NHWC}", (), {},
    ),
    "dgrad_float32": (
        f"dgrad n=2 c=60 h=14 w=14 k=64 r=3 s=3 dil=2,1 {NHWC}", ("bias",), {"allow_tf32": False},
    ),
    "wgrad": (
        f"wgrad n=2 c=64 h=14 w=14 k=64 r=3 s=3 pad=1,1,1,1 {NHWC} dtype=f16/f16/f16",
        (), {"split_k": 4},
    ),
    "wgrad_odd": (
        f"wgrad n=2 c=31 h=14 w=13 k=33 r=3 s=2 stride=2,3 {NHWC} dtype=f16/f32/f16",
        (), {"deterministic": True},
    ),
}  # fmt: skip


def region(name: str) -> Region:
    line, epilogue, options = CASES[name]
    return Region.of(name, ConvProblem.parse(line), epilogue, **options)


@pytest.fixture(scope="module")
def needs_nvcc() -> None:
    found = find()
    if text := cutlass_objects.missing(found, cutlass_objects.find_cutlass()):
        pytest.skip(text)


# ---- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    source = generate([region(name)])
    head = head_and_runtime()
    assert source.startswith(head)
    (_, slices), (_, kernel) = kernels_of(source)
    assert slices == SLICES
    own = source[len(head) :].lstrip("\n")
    golden(f"cutlass_{name}.cc", own + "\n" + specialization(Kernel.parse(kernel)))


def test_equal_problems_share_one_row_and_like_ones_one_kernel() -> None:
    first = region("wgrad")
    again = replace(first, symbol="again")
    batch = replace(first, symbol="batch", problem=replace(first.problem, n=3))
    own = generate([first, again, batch])[len(head_and_runtime()) :]
    assert own.count('"wgrad n=') == 2
    assert own.count("call(kConvs[0]") == 2
    assert own.count("call(kConvs[1]") == 1
    assert len(kernels_of(own)) == 2  # the slices' and the one of all three


def test_the_gpu_is_the_newest_that_is_named() -> None:
    one, other = region("wgrad"), region("dgrad_mask")
    assert {arch for arch, _ in kernels_of(generate([one]))} == {(80,)}
    assert {arch for arch, _ in kernels_of(generate([one], 90))} == {(90,)}
    newer = replace(other, options={"arch": 89})
    assert {arch for arch, _ in kernels_of(generate([one, newer], 75))} == {(89,)}


@pytest.mark.parametrize(("name", "arch"), [("sm_90a", 90), ("sm_75", 75), ("sm_120", 120)])
def test_the_target_names_a_gpu(name: str, arch: int) -> None:
    assert arch_of(tvm.target.Target({"kind": "cuda", "arch": name})) == arch
    assert arch_of(None) is None
    assert arch_of(tvm.target.Target("llvm")) is None


@pytest.mark.parametrize(("target", "arch"), [("sm_75", 80), ("sm_80", 80), ("sm_90a", 90)])
def test_build_compiles_for_its_target(target: str, arch: int) -> None:
    problem = ConvProblem.parse(f"wgrad n=2 c=8 h=9 w=8 k=16 r=3 s=3 {NHWC}")
    out, _ = byoc_cudnn.partition_for_cutlass(problem_module(problem), strict=True)
    (source,) = build(out, {"kind": "cuda", "arch": target}).sources
    assert {found for found, _ in kernels_of(source)} == {(arch,)}


def test_what_the_check_refuses_is_not_generated() -> None:
    problem = ConvProblem.parse(f"wgrad n=1 c=8 h=8 w=8 k=8 r=3 s=3 groups=2 {NHWC}")
    with pytest.raises(ValueError, match="f: groups=2 of 4 channels: a kernel for each group pays"):
        generate([Region("f", problem, (), ("grad", "data"), {})])
    unknown = Region("f", region("wgrad").problem, (), ("grad", "data"), {"benchmark": True})
    with pytest.raises(TypeError, match="benchmark"):
        generate([unknown])


@pytest.mark.parametrize("name", ["f(); evil", "a-b", "", "2x", 'a"b', "a\nb"])
def test_hostile_symbols(name: str) -> None:
    problem = ConvProblem.parse("wgrad n=1 c=8 h=8 w=8 k=8 r=3 s=3")
    out, _ = byoc_cudnn.partition_for_cutlass(problem_module(problem))
    (func,) = regions(out).values()
    with pytest.raises(ValueError, match="must be a C identifier"):
        read_region(func.with_attr("global_symbol", name))


def test_hostile_names_of_a_program_stay_outside() -> None:
    """Parameters, functions and sizes of a program are in no source."""
    n = tvm.tirx.Var('n"; #error', "int64")
    x = relax.Var("x; #error", relax.TensorType((n, 8, 8, 8), "float16"))
    w = relax.Var('w" #error', relax.TensorType((8, 3, 3, 8), "float16"))
    bb = relax.BlockBuilder()
    with bb.function('main"#error', [x, w]):
        with bb.dataflow():
            out = bb.emit_output(
                relax.op.nn.conv2d(
                    x, w, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"
                )
            )
        bb.emit_func_output(out)
    module, _ = byoc_cudnn.partition_for_cutlass(bb.get(), strict=True)
    (func,) = regions(module).values()
    source = generate([read_region(func)])
    assert "#error" not in source
    assert "fprop n=n c=8" in source


def test_sizes_that_come_with_the_tensors_need_a_kernel_all_the_same() -> None:
    n = tvm.tirx.Var("n", "int64")
    problem = replace(region("wgrad").problem, n=n)
    source = generate([replace(region("wgrad"), problem=problem)])
    assert '"wgrad n=n c=64' in source
    assert len(kernels_of(source)) == 2


# ---- Hopper --------------------------------------------------------------------------------------

# name -> problem, epilogue: each goes to another of the three forms
HOPPER: dict[str, tuple[str, tuple[str, ...]]] = {
    "implicit": (
        f"fprop n=64 c=256 h=28 w=28 k=256 r=3 s=3 pad=1,1,1,1 {NHWC} dtype=f16/f16/f16",
        ("bias", "relu"),
    ),
    "plain": (f"wgrad n=64 c=256 h=28 w=28 k=512 r=1 s=1 {NHWC} dtype=bf16/bf16/bf16", ()),
    "strided": (
        f"dgrad n=64 c=256 h=28 w=28 k=512 r=1 s=1 stride=2,2 {NHWC} dtype=f16/f16/f16",
        ("mask",),
    ),
}


def hopper(name: str) -> Region:
    line, epilogue = HOPPER[name]
    return Region.of(name, ConvProblem.parse(line), epilogue, arch=90, wgmma=True)


@pytest.mark.parametrize("name", HOPPER)
def test_hopper_golden(name: str, golden: Callable[[str, str], None]) -> None:
    source = generate([hopper(name)])
    (_, (archs, kernel)) = kernels_of(source)
    assert archs == (90,)
    assert Kernel.parse(kernel).sm == 90
    own = source[len(head_and_runtime()) :].lstrip("\n")
    golden(f"cutlass_hopper_{name}.cc", own + "\n" + specialization(Kernel.parse(kernel)))


def test_code_for_a_newer_gpu_has_none_of_hopper() -> None:
    (_, (archs, name)) = kernels_of(generate([hopper("implicit")], 100))
    assert archs == (100,)
    assert Kernel.parse(name).sm == 80


def test_headers_without_the_builders_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_nvcc: None
) -> None:
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path))
    found = cutlass_objects.find_cutlass()
    assert found is not None
    bare = replace(found, include=tmp_path)
    monkeypatch.setattr(cutlass_objects, "find_cutlass", lambda environ: bare)
    with pytest.raises(ToolchainError, match="convolutions, which wgmma needs"):
        cutlass_objects.objects(generate([hopper("plain")]))


@pytest.mark.parametrize("name", HOPPER)
def test_hopper_kernels_compile(name: str, needs_nvcc: None) -> None:
    found = cutlass_objects.find_cutlass()
    if found is None or not found.has_builders:
        pytest.skip("needs the headers of nvidia-cutlass, or CUTLASS_HOME")
    (_, (_, kernel)) = kernels_of(generate([hopper(name)]))
    (path,) = cutlass_objects.objects(f"// kernel for sm_90: {kernel}\n")
    assert kernel in _symbols(path)


# ---- several GPUs --------------------------------------------------------------------------------


def test_each_gpu_has_its_own_kernel(golden: Callable[[str, str], None]) -> None:
    """Of one library: Hopper's own on sm_90, and what the model chooses for sm_80 there."""
    one = replace(hopper("implicit"), options={"arch": [90, 80], "wgmma": True})
    source = generate([one], 75)  # the target says nothing then
    found = {name: archs for archs, name in kernels_of(source)}
    assert found.pop(SLICES) == (80, 90)
    assert sorted((Kernel.parse(n).sm, archs) for n, archs in found.items()) == [
        (80, (80,)), (90, (90,)),
    ]  # fmt: skip
    golden("cutlass_two_gpus.cc", source[len(head_and_runtime()) :].lstrip("\n"))


def test_gpus_that_share_a_kernel_share_its_object(tmp_path: Path) -> None:
    """And what was measured on one of them leaves the other to the model."""
    small = replace(region("wgrad"), options={"arch": (80, 90)})
    assert {archs for archs, _ in kernels_of(generate([small]))} == {(80, 90)}
    (_, (_, kernel)) = kernels_of(generate([hopper("plain")]))
    pinned = replace(hopper("plain"), options={"arch": (80, 90), "wgmma": True, "kernel": kernel})
    assert {(90,), (80,)} < {archs for archs, _ in kernels_of(generate([pinned]))}
    unknown = {"arch": (80, 90), "kernel": "relay_wgrad_cutlass_x"}
    assert len(kernels_of(generate([replace(small, options=unknown)]))) == 2


@pytest.mark.longer
def test_a_library_for_two_gpus(needs_nvcc: None, tmp_path: Path) -> None:
    source, library = tmp_path / "two.cc", tmp_path / "two.so"
    several = replace(region("wgrad"), options={"arch": (80, 89), "split_k": 4})
    source.write_text(generate([several]), encoding="utf-8")
    subprocess.run(library_command(source, library), check=True)
    for path in cutlass_objects.objects(source.read_text(encoding="utf-8")):
        text = path.read_bytes()
        assert b"sm_80" in text, path.name
        assert b"sm_89" in text, path.name


# ---- without nvcc --------------------------------------------------------------------------------


@pytest.mark.longer
def test_without_nvcc_one_message_says_what_to_install(tmp_path: Path) -> None:
    problem = ConvProblem.parse(f"dgrad n=2 c=8 h=9 w=8 k=16 r=3 s=3 {NHWC}")
    out, _ = byoc_cudnn.partition_for_cutlass(problem_module(problem), strict=True)
    library = build(out, {"kind": "cuda", "arch": "sm_80"})  # needs no compiler
    (source,) = library.sources
    assert problem.repro() in source
    bare = replace(find(), nvcc=None)
    with pytest.raises(ToolchainError) as caught:
        library.export_library(tmp_path / "lib.so", toolchain=bare)
    message = str(caught.value)
    assert message.startswith("a build of CUTLASS kernels needs:\n")
    assert "nvcc: not found; pip install 'relay-wgrad[cutlass]', or set CUDA_HOME" in message
    assert "cuDNN" not in message  # which is not needed for this


# ---- nvcc ----------------------------------------------------------------------------------------


def _compiled(folder: Path, names: Iterable[str]) -> tuple[Path, str]:
    """(library, source) of cases; nvcc builds each kernel, for sm_80."""
    source, library = folder / "regions.cc", folder / "regions.so"
    source.write_text(generate([region(name) for name in names]), encoding="utf-8")
    command = [*library_command(source, library), "-Wall", "-Werror"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library, source.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def one(needs_nvcc: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return _compiled(tmp_path_factory.mktemp("one"), ["wgrad"])


@pytest.fixture(scope="module")
def six(needs_nvcc: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return _compiled(tmp_path_factory.mktemp("six"), CASES)


def _symbols(library: Path, *flags: str) -> list[str]:
    done = subprocess.run(
        ["nm", *flags, "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    return [line.split()[-1] for line in done.stdout.splitlines()]


@pytest.mark.longer("nvcc takes a quarter of a minute")
def test_a_kernel_compiles_and_links(one: tuple[Path, str]) -> None:
    _check_linked(*one, ["wgrad"])


@pytest.mark.longer
def test_six_kernels_compile_and_link(six: tuple[Path, str]) -> None:
    names = [name for _, name in kernels_of(six[1])]
    families = {(k.kind, k.math, k.algorithm, k.strided) for k in map(Kernel.parse, names[1:])}
    assert len(families) >= 5
    _check_linked(*six, list(CASES))


def _check_linked(library: Path, source: str, cases: list[str]) -> None:
    names = [name for _, name in kernels_of(source)]
    assert len(names) == len(cases) + 1
    exported = _symbols(library, "-D")
    assert {f"__tvm_ffi_{name}" for name in cases} <= set(exported)
    # Kernels are in the library and for nobody else: another library has its own.
    assert set(names) <= set(_symbols(library))
    assert not set(names) & set(exported)


@pytest.mark.longer("nvcc takes a quarter of a minute")
def test_a_second_build_compiles_nothing(
    one: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Any, who: str, seconds: float) -> None:
        raise AssertionError(f"{who} was called")

    monkeypatch.setattr(nvcc, "run_tool", run)
    paths = cutlass_objects.objects(one[1])
    assert len(paths) == 2  # the slices' and its own
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.longer("compiles C++")
def test_a_library_through_tvm(one: tuple[Path, str], tmp_path: Path) -> None:
    """The stock pipeline links the objects; the loaded library checks what it is given."""
    line, _, options = CASES["wgrad"]
    problem = ConvProblem.parse(line)
    out, _ = byoc_cudnn.partition_for_cutlass(problem_module(problem), strict=True, **options)
    register(BACKEND)
    library = Library(tvm.compile(relax.transform.RunCodegen()(out), target="llvm"))
    library.export_library(tmp_path / "lib.so")
    loaded = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "lib.so")), tvm.cpu())
    args = [
        tvm.runtime.tensor(np.zeros(problem.shape(role), "float16")) for role in problem.roles[:2]
    ]
    for machine in (loaded, library.virtual_machine(tvm.cpu())):
        with pytest.raises(ValueError, match=r"wgrad n=2 c=64 .* data is not on the CUDA device"):
            machine["main"](*args)
    assert library.plans() == []


@pytest.mark.longer
def test_both_libraries_in_one(six: tuple[Path, str], tmp_path: Path) -> None:
    """What CUTLASS refuses goes to cuDNN; one library has both, and links what each needs."""
    plain = ConvProblem.parse(CASES["wgrad"][0])
    grouped = replace(plain, groups=16)
    parts = {"plain": problem_module(plain), "grouped": problem_module(grouped)}
    out, report = byoc_cudnn.partition(
        merged(parts), ("cutlass", "cudnn"), strict=True, cutlass={"split_k": 4}
    )
    assert report.rows() == {"cutlass.wgrad": 1, "cudnn.wgrad": 1}
    for name in ("cutlass", "cudnn"):
        register(byoc_cudnn.BACKENDS[name])
    library = Library(tvm.compile(relax.transform.RunCodegen()(out), target="llvm"))
    assert len(library.sources) == 2
    library.export_library(tmp_path / "lib.so")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "lib.so")), tvm.cpu())
    for name, problem in (("plain", plain), ("grouped", grouped)):
        args = [
            tvm.runtime.tensor(np.zeros(problem.shape(r), "float16")) for r in problem.roles[:2]
        ]
        with pytest.raises(ValueError, match=f"groups={problem.groups} .* is not on the CUDA"):
            machine[name](*args)


def test_every_source_is_told_by_its_name() -> None:
    (_, _), (_, name) = kernels_of(generate([region("dgrad_mask")]))
    assert f'extern "C" int {name}(' in kernel_source(name)
    assert f'extern "C" int {SLICES}(' in kernel_source(SLICES)
    with pytest.raises(ValueError, match="not the name of a CUTLASS kernel: 'f'"):
        kernel_source("f")
