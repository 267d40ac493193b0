"""The generated C++: its text, that it compiles and links, and its parts that need no GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from byoc_cudnn.backends.cudnn import BACKEND
from byoc_cudnn.backends.cudnn.codegen import generate, head_and_runtime
from byoc_cudnn.building.compiled import Library, build, library_command
from byoc_cudnn.codegen.external import register
from byoc_cudnn.codegen.regions import Region, read_region
from relay_wgrad.problem import ConvProblem
from tests.support.partition_cases import module, problem_module, regions

pytestmark = pytest.mark.usefixtures("registered")

NHWC, NDHWC = "layout=NHWC/OHWI/NHWC", "layout=NDHWC/ODHWI/NDHWC"
# name -> problem, epilogue's operands, options
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "fprop_stem": (
        f"fprop n=32 c=3 h=224 w=224 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3 {NHWC} dtype=f16/f16/f16",
        (), {"benchmark": True},
    ),
    "fprop_bias_relu": (
        f"fprop n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {NHWC} dtype=bf16/bf16/bf16",
        ("bias", "relu"), {},
    ),
    "dgrad_strided": (
        f"dgrad n=8 c=128 h=56 w=56 k=128 r=3 s=3 stride=2,2 pad=1,1,1,1 {NHWC}",
        (), {"allow_tf32": False},
    ),
    "dgrad_mask": (
        f"dgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {NHWC} dtype=f16/f16/f16",
        ("mask",), {},
    ),
    "dgrad_strictmask": (
        f"dgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 {NHWC} dtype=f16/f16/f16",
        ("strictmask",), {},
    ),
    "wgrad": ("wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1", (), {"deterministic": True}),
    "wgrad_depthwise": (
        f"wgrad n=8 c=96 h=56 w=55 k=96 r=3 s=3 stride=2,2 pad=1,1,1,1 dil=2,1 groups=96 {NHWC}",
        (), {"workspace_limit": 0},
    ),
    "wgrad_scaled": (
        f"wgrad n=2 c=32 d=16 h=24 w=20 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1 {NDHWC}",
        (), {"benchmark": True, "deterministic": True},
    ),
    "dgrad_volume": (
        "dgrad n=2 c=32 d=16 h=24 w=20 k=64 t=3 r=3 s=1 stride=2,1,1 pad=1,1,0,1,1,0 dil=1,2,1",
        (), {},
    ),
}  # fmt: skip


def region(name: str) -> Region:
    line, epilogue, options = CASES[name]
    return Region.of(name, ConvProblem.parse(line), epilogue, **options)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    source = generate([region(name)])
    head = head_and_runtime()
    assert source.startswith(head)
    golden(f"cudnn_{name}.cc", source[len(head) :].lstrip("\n"))


def test_compiles_and_links(tmp_path: Path) -> None:
    source, library = tmp_path / "regions.cc", tmp_path / "regions.so"
    source.write_text(generate([region(name) for name in CASES]), encoding="utf-8")
    command = [*library_command(source, library), "-Wall", "-Werror"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    for name in CASES:
        assert f"__tvm_ffi_{name}\n" in symbols


def test_equal_problems_share_one_row() -> None:
    twice = [region("wgrad"), Region("other", *_rest(region("wgrad")))]
    text = generate(twice)[len(head_and_runtime()) :]
    assert text.count("Kind::kWgrad, ") == 1
    assert "call(kConvs[0]" in text
    assert "call(kConvs[1]" not in text


def _rest(r: Region) -> tuple[Any, ...]:
    return (r.problem, r.epilogue, r.operands, r.options)


@pytest.mark.parametrize("name", ["f(); evil", "a-b", "", "2x", "x" * 300, 'a"b', "a\nb"])
def test_hostile_symbols(name: str) -> None:
    problem = ConvProblem.parse("wgrad n=1 c=8 h=8 w=8 k=8 r=3 s=3")
    out, _ = byoc_cudnn.partition_for_cudnn(problem_module(problem))
    (func,) = regions(out).values()
    with pytest.raises(ValueError, match="must be a C identifier"):
        read_region(func.with_attr("global_symbol", name))


def test_asymmetric_padding_is_refused() -> None:
    problem = ConvProblem.parse("wgrad n=1 c=8 h=8 w=8 k=8 r=3 s=3 pad=0,1,1,1")
    with pytest.raises(ValueError, match=r"needs symmetric padding, got \(0, 1, 1, 1\)"):
        generate([Region("f", problem, (), ("grad", "data"), {})])


def test_a_region_without_a_convolution() -> None:
    mod = module({"x": (2, 3)}, lambda emit, x: relax.op.nn.relu(x))
    with pytest.raises(ValueError, match="expected one composite function, found 0"):
        read_region(mod["main"].with_attr({"Codegen": "relay_wgrad_cudnn"}))


def test_operands_in_any_order() -> None:
    """Parameters are told by what is done with them, not by their place."""
    problem = ConvProblem.parse(f"fprop n=2 c=8 h=8 w=8 k=16 r=3 s=3 {NHWC}")

    def body(emit: Any, bias: Any, weight: Any, data: Any) -> Any:
        y = relax.op.nn.conv2d(
            data, weight, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"
        )
        return relax.op.nn.relu(emit(relax.op.add(bias, emit(y))))

    shapes = {"b": (1, 1, 1, 16), "w": problem.shape("weight"), "x": problem.shape("data")}
    out, report = byoc_cudnn.partition_for_cudnn(module(shapes, body), strict=True)
    assert report.entries[0].row == "fprop_bias_relu"
    (func,) = regions(out).values()
    found = read_region(func)
    assert found.epilogue == ("bias", "relu")
    by_shape = {
        tuple(int(x) for x in p.ty.shape.values): name
        for p, name in zip(func.params, found.operands, strict=True)
    }
    assert by_shape == {shapes["b"]: "bias", shapes["w"]: "weight", shapes["x"]: "data"}


@pytest.mark.longer("compiles C++; so do the tests beside it")
def test_build_without_a_gpu(tmp_path: Path) -> None:
    problem = ConvProblem.parse(f"dgrad n=2 c=8 h=9 w=8 k=16 r=3 s=3 {NHWC}")
    out, _ = byoc_cudnn.partition_for_cudnn(problem_module(problem), strict=True)
    library = build(out, {"kind": "cuda", "arch": "sm_75"})
    (source,) = library.sources
    assert problem.repro() in source
    library.export_library(tmp_path / "lib.so")
    assert tvm.runtime.load_module(str(tmp_path / "lib.so")) is not None
    assert (library.plans(), library.release()) == ([], 0)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(library, virtual machine) of one region in a module without a kernel for any device."""
    relay_wgrad.register()
    problem = ConvProblem.parse(f"wgrad n=2 c=8 h=9 w=8 k=16 r=3 s=3 {NHWC}")
    out, _ = byoc_cudnn.partition_for_cudnn(problem_module(problem), strict=True)
    register(BACKEND)
    library = Library(tvm.compile(relax.transform.RunCodegen()(out), target="llvm"))
    return library, library.virtual_machine(tvm.cpu())


@pytest.mark.longer("compiles C++")
def test_before_anything_has_run(on_cpu: Any) -> None:
    assert on_cpu[0].plans() == []
    assert on_cpu[0].release() >= 1  # nothing, of the libraries that are there


@pytest.mark.longer("compiles C++")
def test_a_tensor_that_is_not_on_the_device(on_cpu: Any) -> None:
    shapes = ((2, 7, 6, 16), (2, 9, 8, 8))
    args = [tvm.runtime.tensor(np.zeros(shape, "float32")) for shape in shapes]
    with pytest.raises(ValueError, match=r"wgrad n=2 c=8 .* data is not on the CUDA device"):
        on_cpu[1]["main"](*args)


def test_build_refuses_other_targets() -> None:
    with pytest.raises(ValueError, match="the target must be a CUDA one, got llvm"):
        build(tvm.IRModule(), "llvm")


RECORD_MAIN = r"""
// Lists and times of candidates, "0=1.5"; prints those that are asked for, with "!" if they win.
int search(int count, char** candidates) {
  Search search;
  for (int i = 0; i < count; ++i) {
    const int list = candidates[i][0] - '0';
    const double ms = std::strtod(candidates[i] + 2, nullptr);
    if (!search.wants(list)) continue;
    const bool wins = search.ran(list, search.promising(ms) ? ms : INFINITY);
    std::printf("%d%s ", i, wins ? "!" : "");
  }
  return 0;
}

int main(int argc, char** argv) {
  const Choice choice{7, {{2, 8}, {13, 1}}};
  Record record;
  Choice found;
  double ms = 0;
  if (argc > 2 && argv[1] == std::string("search")) return search(argc - 2, argv + 2);
  std::printf("%s", record.find("key", &found, &ms) ? found.text().c_str() : "none");
  if (argc > 1) record.add(argv[1], choice, 0.25);
  return 0;
}
"""


@pytest.fixture(scope="module")
def record_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that looks "key" up in the tuning record and adds its argument."""
    folder = tmp_path_factory.mktemp("record")
    source, program = folder / "main.cc", folder / "main"
    source.write_text(head_and_runtime() + RECORD_MAIN, encoding="utf-8")
    # A program and not a library, without optimization: that is faster to build.
    command = [x for x in library_command(source, program) if x != "-shared"] + ["-O0"]
    subprocess.run(command, check=True)
    return program


def lookup(program: Path, folder: Path, *keys: str) -> tuple[str, str]:
    done = subprocess.run(
        [str(program), *keys], env={"RELAY_WGRAD_CACHE": str(folder)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


HEADER = "relay-wgrad cudnn plans 1\n"
GOOD = "key\t7:2=8,13=1\t0.250000\n"


@pytest.mark.longer("compiles C++")
def test_what_is_timed(record_program: Path, tmp_path: Path) -> None:
    """The begin of each list, until four in a row take twice as long; the last resort at need."""

    def asked(*candidates: str) -> list[str]:
        return lookup(record_program, tmp_path, "search", *candidates)[0].split()

    assert len(asked(*["0=1"] * 30, *["1=1"] * 30, "2=1")) == 16 + 8
    assert asked("0=3", "0=2", "1=2.5", "1=1", "2=0.5") == ["0!", "1!", "2", "3!"]
    late = ["0=1", "0=3", "0=3", "0=3", "0=1.5", "0=3", "0=3", "0=3", "0=9000", "0=0.5", "1=0.7"]
    assert asked(*late) == ["0!", "1", "2", "3", "4", "5", "6", "7", "8", "10!"]
    assert asked("2=7", "2=5") == ["0!"]
    assert asked("0=5000", "0=1") == ["0!", "1!"]  # without another nothing is hopeless


def test_record_round_trip(record_program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    assert lookup(record_program, folder, "key") == ("none", "")
    assert lookup(record_program, folder, "other") == ("7:2=8,13=1", "")
    record = folder / "cudnn-plans-1.tsv"
    assert record.read_text() == HEADER + GOOD + GOOD.replace("key", "other", 1)
    assert record.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(p.name for p in folder.iterdir()) == ["cudnn-plans-1.tsv", "lock"]


@pytest.mark.parametrize(
    ("text", "found", "warning"),
    [
        (HEADER + GOOD, "7:2=8,13=1", ""),
        ("", "none", "is not a record of this version"),
        ("{}", "none", "is not a record of this version"),
        (HEADER.replace("1", "2") + GOOD, "none", "is not a record of this version"),
        (HEADER + "key\t7:2=8,13=1\n", "none", "1 damaged lines"),
        (HEADER + "key\t-7:\t0.1\n", "none", "1 damaged lines"),
        (HEADER + "key\t7:2=\t0.1\n", "none", "1 damaged lines"),
        (HEADER + "key\t7:2=8,\t0.1\n", "none", "1 damaged lines"),
        (HEADER + "key\t99999999999999999999:\t0.1\n", "none", "1 damaged lines"),
        (HEADER + "key\t7:2=8\tnan\n", "none", "1 damaged lines"),
        (HEADER + "\x00\xff\n" * 3 + GOOD, "7:2=8,13=1", "3 damaged lines"),
        (HEADER + GOOD[:-20], "none", "1 damaged lines"),
    ],
)
def test_damaged_records(
    text: str, found: str, warning: str, record_program: Path, tmp_path: Path
) -> None:
    (tmp_path / "cudnn-plans-1.tsv").write_bytes(text.encode("latin-1"))
    out, err = lookup(record_program, tmp_path)
    assert out == found
    assert (warning in err) if warning else err == ""


def test_a_record_that_others_may_write_is_not_used(record_program: Path, tmp_path: Path) -> None:
    record = tmp_path / "cudnn-plans-1.tsv"
    record.write_text(HEADER + GOOD)
    record.chmod(0o666)
    out, err = lookup(record_program, tmp_path)
    assert out == "none"
    assert "not a file that this user alone may write" in err
    record.chmod(0o600)
    link = tmp_path / "elsewhere"
    link.mkdir()
    (link / "cudnn-plans-1.tsv").symlink_to(record)
    assert lookup(record_program, link)[0] == "none"


def test_a_folder_that_cannot_be_written(record_program: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    out, err = lookup(record_program, blocker / "cache", "key")
    assert out == "none"
    assert "its timings are not kept" in err
