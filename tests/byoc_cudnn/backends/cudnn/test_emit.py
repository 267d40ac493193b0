"""`emit`: the text of the programs, and what of them runs without a GPU.

The programs are compiled and linked against the real headers and libraries.  Their second opinion,
the loop that cuDNN's result is compared with, and their half-precision types run here, within a
program that includes the emitted one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from byoc_cudnn.backends.cudnn.program import emit, render
from byoc_cudnn.building import toolchain
from relay_wgrad.cli.main import main
from relay_wgrad.layouts import ACTIVATION, KERNEL, permutation
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.children import run_module

ROOT = Path(__file__).parents[4]
NHWC = "layout=NHWC/OHWI/NHWC"
ODD = "n=2 c=6 h=9 w=8 k=4 r=3 s=2 stride=2,1 pad=1,0,2,1 dil=1,2 groups=2"
PROBLEMS = {
    "keras_conv2d_transpose": f"dgrad n=8 c=128 h=16 w=16 k=256 r=2 s=2 stride=2,2 {NHWC}"
    " dtype=f16/f16/f16",
    "fprop_asymmetric": f"fprop {ODD} dtype=f32/f32/f32",
    "wgrad_mixed": f"wgrad {ODD} {NHWC} dtype=bf16/f32/bf16",
    "dgrad_float64": f"dgrad {ODD} dtype=f64/f64/f64",
}
# More for the reference loop: depthwise, one-pixel, layouts that cuDNN does not have.
MORE = [
    "fprop n=1 c=4 h=5 w=5 k=8 r=3 s=3 pad=1,1,1,1 groups=4 dtype=f16/f16/f16",
    "dgrad n=1 c=4 h=7 w=5 k=8 r=3 s=3 stride=3,2 dil=2,1 groups=4 layout=HWNC/HWIO/NCHW",
    "wgrad n=3 c=1 h=1 w=1 k=1 r=1 s=1 dtype=bf16/bf16/bf16",
]


@pytest.mark.parametrize("name", PROBLEMS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    source = emit(ConvProblem.parse(PROBLEMS[name]))
    golden(f"{name}.cc", source)
    assert len(source.splitlines()) <= 370
    assert "@" not in source.replace("@NAME@", "")
    assert "//?" not in source


def test_options() -> None:
    """TF32 is a matter of float32 operands; the tolerance follows from what is rounded."""
    fp32 = ConvProblem.parse(PROBLEMS["fprop_asymmetric"])
    assert "kAllowTf32 = true" in emit(fp32)
    assert "kTolerance = 3e-3;  // for TF32 operands" in emit(fp32)
    strict = emit(fp32, allow_tf32=False, workspace_limit=0)
    assert "kAllowTf32 = false" in strict
    assert "kTolerance = 1e-4;  // for float32" in strict
    assert "kWorkspaceLimit = 0;" in strict
    mixed = emit(ConvProblem.parse(PROBLEMS["wgrad_mixed"]))
    assert "Tf32" not in mixed
    assert "kTolerance = 1e-4;  // for float32" in mixed


def test_asymmetric_padding_is_explained() -> None:
    problem = ConvProblem.parse(PROBLEMS["fprop_asymmetric"])
    assert "pad x with zeros first" in emit(problem)
    assert "kPrePadding = {1, 0}, kPostPadding = {2, 1}" in emit(problem)
    assert "and crop it" in emit(problem.with_kind(ConvKind.DGRAD))
    assert "asymmetric" not in emit(replace(problem, padding=(1, 2, 1, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_layout": 'NCHW"; system("true"); //'}, "no permutation of NCHW"),
        ({"kernel_layout": "OIH\n"}, "no permutation of OIHW"),
        ({"grad_layout": "NCHW*/"}, "no permutation of NCHW"),
        ({"data_dtype": "float32\n#include <x>"}, "data dtype must be one of float16"),
        ({"n": "1; }"}, "sizes that are numbers"),
        ({"groups": "1; }"}, "groups, strides, padding and dilation must be"),
        ({"strides": (1, 2**31)}, "must be below 2^31"),
        ({"padding": (0, 0, 2**40, 0)}, "must be below 2^31"),
        ({"n": 2**30}, "data has 463856467968 elements"),
        ({"groups": 4}, "groups must divide C"),
        ({"h": 1, "padding": (0, 0, 0, 0)}, "P must be positive, got P=0 from H=1, R=3"),
    ],
)
def test_hostile_or_impossible_problems(change: dict[str, object], message: str) -> None:
    problem = replace(ConvProblem.parse(PROBLEMS["fprop_asymmetric"]), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message.replace("^", r"\^")):
        emit(problem)


def test_workspace_limit() -> None:
    with pytest.raises(ValueError, match=r"workspace_limit must be .* at least 0, got -1"):
        emit(ConvProblem.parse(PROBLEMS["fprop_asymmetric"]), workspace_limit=-1)


def test_render() -> None:
    template = "a\n//? one\nb @X2@\n//? end\n//? two\nc @Y@\n//? end\nd\n"
    assert render(template, {"one"}, {"X2": "7"}) == "a\nb 7\nd\n"
    with pytest.raises(KeyError):
        render(template, {"two"}, {})


# ---- the command line ------------------------------------------------------------------------


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return run_module("relay_wgrad", "emit", *args, env={"COLUMNS": "200"})


def test_command(tmp_path: Path) -> None:
    line = PROBLEMS["keras_conv2d_transpose"]
    done = command("--backend", "cudnn", "--problem", line)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == emit(ConvProblem.parse(line))
    file = tmp_path / "transposed.cc"
    done = command("--problem", line, "-o", str(file), "--no-tf32", "--workspace-limit", "4096")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"wrote {file}" in done.stderr
    assert file.read_text() == emit(ConvProblem.parse(line), workspace_limit=4096)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--problem", "dgrad n=8"), "size 'c' is missing in problem 'dgrad n=8'"),
        (("--problem", "conv n=8"), "a problem starts with fprop, dgrad, wgrad"),
        (("--problem", f"fprop {ODD} layout=NCHW/OIHW/NC*/"), "expected data/weight/grad"),
        (
            ("--problem", f"fprop {ODD} layout=NCHW/OIHW/NC*;"),
            "the grad's must have the letters NCHW",
        ),
        (("--problem", f"fprop {ODD} x=\x1b[31m"), "unknown, repeated or malformed field 'x="),
        (("--problem", f"fprop {ODD}", "--backend", "cutlass"), "invalid choice: 'cutlass'"),
        (("--problem", f"fprop {ODD}", "--workspace-limit", "1e9"), "must be a number of bytes"),
        (("--problem", f"fprop {ODD}", "-o", "program"), "must end in .cc, .cpp or .cxx"),
        (("--problem", f"fprop {ODD}", "-o", "no/such/folder/x.cc"), "no such folder"),
        ((), "--problem"),
    ],
)
def test_command_errors(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["emit", *args])
    except SystemExit as done:  # how argparse ends
        code = done.code
    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert "\x1b" not in captured.err
    assert captured.out == ""


# ---- programs that run -------------------------------------------------------------------------


def build(source: str, folder: Path, harness: str = "", warnings: bool = False) -> Path:
    """Compiles and links an emitted program, or `harness` with the program included in it."""
    found = toolchain.find()
    if found.missing():
        pytest.skip(found.missing())
    (folder / "program.cc").write_text(source)
    file = folder / ("harness.cc" if harness else "program.cc")
    if harness:
        file.write_text(f'#define main emitted_main\n#include "program.cc"\n#undef main\n{harness}')
    options = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"] if warnings else ["-O0"]
    subprocess.run([*found.command(file, folder / "program"), *options], check=True)
    return folder / "program"


@pytest.mark.share(5)
@pytest.mark.parametrize("name", PROBLEMS)
def test_programs_build(name: str, tmp_path: Path) -> None:
    """Without a warning, and without a GPU the program says so."""
    program = build(emit(ConvProblem.parse(PROBLEMS[name])), tmp_path, warnings=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False,
                          env={"CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("failed to find a GPU: ")
    if not Path("/proc/driver/nvidia").exists():
        assert "no NVIDIA driver is here" in done.stderr


@pytest.mark.share(7)
@pytest.mark.parametrize("line", [*list(PROBLEMS.values())[1:], *MORE])
def test_reference(line: str, tmp_path: Path) -> None:
    """The program's second opinion, every element, against PyTorch in float64."""
    problem = ConvProblem.parse(line)
    names = {"data": "x", "weight": "w", "grad": "y"}
    first, second, result = (names[role] for role in problem.roles)
    harness = f"""
template <class T> void dump(const std::vector<T>& values) {{
  for (const T& value : values) {{
    const double wide = double(value);
    std::fwrite(&wide, sizeof wide, 1, stdout);
  }}
}}
int main() {{
  const auto firsts = random_values<First>({first}, 1);
  const auto seconds = random_values<Second>({second}, 2);
  std::vector<double> results(size_t({result}.size()), NAN);
  const Dims& d = {result}.dims;
  for (int64_t i = 0; i < d[0]; ++i) for (int64_t j = 0; j < d[1]; ++j)
    for (int64_t k = 0; k < d[2]; ++k) for (int64_t l = 0; l < d[3]; ++l)
      results[size_t({result}.offset(i, j, k, l))] = reference(firsts, seconds, i, j, k, l);
  dump(firsts);
  dump(seconds);
  dump(results);
}}
"""
    program = build(emit(problem), tmp_path, harness)
    numbers = np.frombuffer(subprocess.run([program], capture_output=True, check=True).stdout)
    tensors: dict[str, torch.Tensor] = {}
    for role in problem.roles:
        shape = problem.shape(role)
        flat, numbers = np.split(numbers, [int(np.prod(shape))])
        canonical = KERNEL if role == "weight" else ACTIVATION
        axes = permutation(problem.layout(role), canonical)
        tensors[role] = torch.from_numpy(flat.reshape(shape).transpose(axes).copy())
    assert numbers.size == 0
    for role in problem.roles[:2]:
        narrow = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.get(problem.dtype(role))
        if narrow is not None:
            values = tensors[role].numpy()
            np.testing.assert_array_equal(values, values.astype(narrow).astype(np.float64))
    want = by_pytorch(problem, tensors)
    torch.testing.assert_close(tensors[problem.roles[2]], want, rtol=0, atol=1e-12)


def by_pytorch(problem: ConvProblem, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    leaves = {
        role: tensors[role].clone().requires_grad_(role == problem.roles[2])
        for role in ("data", "weight")
    }
    top, left, bottom, right = problem.padding
    padded = torch.nn.functional.pad(leaves["data"], (left, right, top, bottom))
    y = torch.nn.functional.conv2d(
        padded, leaves["weight"], stride=problem.strides, dilation=problem.dilation,
        groups=problem.groups,
    )  # fmt: skip
    if problem.kind is ConvKind.FPROP:
        return y.detach()
    y.backward(tensors["grad"])
    gradient = leaves[problem.roles[2]].grad
    assert gradient is not None
    return gradient


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("dtype", "cpp", "narrow"),
    [("f16", "Half", np.float16), ("bf16", "BFloat16", ml_dtypes.bfloat16)],
)
def test_half_precision_types(dtype: str, cpp: str, narrow: type, tmp_path: Path) -> None:
    """Each of the 65,536 values reads right, infinities and NaN too, and numbers round right."""
    line = f"wgrad n=1 c=1 h=1 w=1 k=1 r=1 s=1 dtype={dtype}/{dtype}/{dtype}"
    harness = f"""
int main() {{
  for (int bits = 0; bits < 65536; ++bits) {{
    {cpp} value;
    value.bits = uint16_t(bits);
    const double wide = double(value);
    std::fwrite(&wide, sizeof wide, 1, stdout);
  }}
  for (float wide; std::fread(&wide, sizeof wide, 1, stdin) == 1;) {{
    const uint16_t bits = {cpp}(wide).bits;
    std::fwrite(&bits, sizeof bits, 1, stdout);
  }}
}}
"""
    program = build(emit(ConvProblem.parse(line)), tmp_path, harness)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        every = np.arange(65536, dtype=np.uint16).view(narrow).astype(np.float64)
    finite = every[np.isfinite(every)].astype(np.float32)
    rng = np.random.default_rng(0)
    # Random numbers, every value, and what lies half-way between neighbours.
    halves = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    some = np.concatenate([
        rng.uniform(-1, 1, 10000), rng.uniform(-1, 1, 10000) * 2.0 ** rng.integers(-24, 15, 10000),
        finite, halves[np.abs(halves) < 65504],
    ]).astype(np.float32)  # fmt: skip
    done = subprocess.run([program], input=some.tobytes(), capture_output=True, check=True)
    read = np.frombuffer(done.stdout[: 65536 * 8])
    np.testing.assert_array_equal(read, every)
    written = np.frombuffer(done.stdout[65536 * 8 :], dtype=np.uint16)
    np.testing.assert_array_equal(written, some.astype(narrow).view(np.uint16))
