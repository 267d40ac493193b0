"""The shape suites, and all of the GPU benchmark that needs no GPU."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu_cases, gpu_convolutions, gpu_timing, runner
from benchmarks.__main__ import main
from benchmarks.modes import MODES
from byoc_cudnn.backends.cuda_direct.codegen import generate as direct_generate
from byoc_cudnn.backends.cudnn import check as cudnn
from byoc_cudnn.backends.cudnn.codegen import generate
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.layers import DTYPES, LAYERS, ORDERS, SUITES, Layer, problems, suite
from tests.support.problems import random_operands, relative_error, torch_reference

KINDS = ("fprop", "dgrad", "wgrad")
EVERY = list(KINDS)

# Multiply-adds for one image in units of 1e9, weights of all convolutions, convolutions, distinct.
# torchvision's documentation of its models gives 4.09, 15.47 and 0.30 GFLOPS (it counts an addition
# with a multiplication) and 25557032, 138357544 and 3504872 parameters, which less fully connected
# layers, biases and normalization are these.  The generator of PyTorch's DCGAN example has 3576704
# parameters, 1920 of them normalization's; a U-Net of one channel and one class has 31030593 with
# 6849 biases, and 64 fewer weights than with two classes.  Of torchvision's others: less the fully
# connected layer, normalization, then squeeze and excitation; ConvNeXt less all but convolutions.
TOTALS = {
    "resnet50": (4.087, 25557032 - 2048 * 1000 - 1000 - 53120, 53, 23),
    "vgg16": (15.347, 138357544 - 123642856 - 4224, 13, 9),
    "mobilenetv2": (0.2995, 3504872 - 1280 * 1000 - 1000 - 34112, 52, 30),
    "dcgan": (0.1046, 3576704 - 1920, 5, 5),
    "unet": (48.096, 31030593 - 6849 + 64, 23, 19),
    "keras": (0.00839, 2 * 2 * 256 * 128, 1, 1),
    "efficientnet_b0": (0.3839, 5288548 - 1281000 - 42016 - 636540, 49, 32),
    "efficientnet_b4": (4.3889, 19341616 - 1793000 - 125200 - 3146448, 96, 37),
    "convnext": (0.2930, 28589128 - 769000 - 25942656, 22, 8),
    "resnext": (4.2284, 25028904 - 2049000 - 68224, 53, 24),
    "regnet": (5.1783, 4344144 + 9190136 + 15296552 - 2363000 - 133216 - 668024, 192, 60),
    "first": (0.3834, 607008, 6, 6),
    "few": (0.2376, 38336, 4, 4),
    "narrow": (0.7659, 179200, 21, 21),
}


@pytest.mark.parametrize("name", SUITES)
def test_totals(name: str) -> None:
    layers = suite(name, batch=1)
    gmac, weights, count, distinct = TOTALS[name]
    total = sum(layer.count * layer.problem.flop for layer in layers) / 2e9
    assert total == pytest.approx(gmac, rel=2e-3)
    assert weights == sum(x.count * math.prod(x.problem.shape("weight")) for x in layers)
    assert (count, distinct) == (sum(x.count for x in layers), len(layers))
    assert len({layer.problem for layer in layers}) == distinct
    assert all(layer.problem.kind is ConvKind.FPROP for layer in layers)


def test_resnet_has_the_layers_of_the_other_benchmarks() -> None:
    layers = suite("resnet50", 8, "f32", "NCHW")
    assert [(p.c, p.h, p.k, p.r, p.strides[0]) for p in (x.problem for x in layers)] == [*LAYERS]
    mine = [p for layer in layers for p in layer.problems(KINDS)]
    assert mine == problems(8, KINDS, ["NCHW"])


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("layout", ORDERS)
def test_layers_fit_each_other(name: str, layout: str) -> None:
    for layer in suite(name, 4, "bf16", layout):
        p = layer.problem
        assert ConvProblem.parse(p.repro()) == p
        assert {p.data_dtype, p.weight_dtype, p.grad_dtype} == {"bfloat16"}
        for kind in ConvKind:
            assert cudnn.check(p.with_kind(kind), "")


def test_a_transposed_layer_is_a_dgrad() -> None:
    (layer,) = suite("keras", 4)
    x = torch.zeros(4, 256, 8, 8)
    y = torch.nn.ConvTranspose2d(256, 128, 2, stride=2)(x)
    assert layer.transposed
    assert layer.problem.canonical_shape("grad") == tuple(x.shape)
    assert layer.problem.canonical_shape("data") == tuple(y.shape)
    assert layer.data_gradient is ConvKind.FPROP


def test_the_first_layer_has_no_data_gradient() -> None:
    for name, kinds in (("vgg16", ["fprop", "wgrad"]), ("dcgan", ["dgrad", "wgrad"]),
                        ("keras", EVERY)):  # fmt: skip
        assert [p.kind.value for p in suite(name)[0].problems(KINDS)] == kinds
    assert len(suite("vgg16")[1].problems()) == 3


@pytest.mark.parametrize("arguments", [("vgg",), ("vgg16", 1, "f64"), ("vgg16", 1, "f16", "CHWN")])
def test_unknown_names(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        suite(*arguments)


# ---- cases ---------------------------------------------------------------------------------------


def test_cases_are_distinct_and_fit() -> None:
    found = gpu_cases.cases([*SUITES], EVERY, [*MODES], 256)
    keys = {(case.problem, case.mode, case.transposed) for case in found}
    assert len(keys) == len(found) == len({case.symbol for case in found})
    for case in found:
        assert case.problem.bytes <= gpu_cases.MOST_BYTES
        assert cudnn.check(case.problem, "")
        assert case.problem.n in (256, 128, 64, 32, 16)
    # Each layer of each network is there, as often as the network has it.
    for name in SUITES:
        uses = sum(c.uses.get(name, 0) for c in found if c.mode == "f16" and c.kind == "wgrad")
        assert uses == TOTALS[name][2]
    resnet = [case for case in found if "resnet50" in case.uses]
    assert {case.problem.n for case in resnet} == {256}


def test_a_batch_that_is_too_large_becomes_a_power_of_two() -> None:
    problem = suite("unet", 1)[1].problem
    fits = gpu_cases.fitted(problem, 200, 1e15)
    assert fits is not None
    assert fits.n == 200
    larger = gpu_cases.fitted(problem, 1000, 1e15)
    assert larger is not None
    assert larger.n == 256
    assert gpu_cases.fitted(problem, 8, problem.flop / 2) is None


def test_code_is_generated_for_every_kind_of_case() -> None:
    found = gpu_cases.cases(["dcgan"], EVERY, [*MODES], 2)
    source = generate([case.region() for case in found])
    assert source.count("TVM_FFI_DLL_EXPORT int __tvm_ffi_case") == len(found)
    tf32, exact = (
        next(c for c in found if c.mode == mode and c.kind == "wgrad") for mode in ("tf32", "f32")
    )
    assert tf32.problem == exact.problem
    assert tf32.region().options != exact.region().options


# ---- PyTorch's calls and the checks, on the CPU --------------------------------------------------

LINES = (
    "{} n=3 c=6 h=8 w=9 k=4 r=3 s=2 stride=2,3 pad=1,0,1,0 groups=2 layout=NHWC/OHWI/NHWC",
    "{} n=3 c=20 h=8 w=8 k=20 r=3 s=3 pad=1,1,1,1 groups=20 layout=NHWC/OHWI/NHWC",
    "{} n=5 c=5 h=7 w=6 k=12 r=3 s=3 stride=2,2 pad=1,1,1,1 layout=NHWC/OHWI/NHWC",
)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_pytorchs_calls_and_the_checks(line: str, kind: str, transposed: bool) -> None:
    problem = ConvProblem.parse(line.format(kind))
    a, b = random_operands(problem, np.random.default_rng(1))
    want = torch_reference(problem, a, b)
    first, second, result = problem.roles
    t = {first: torch.from_numpy(a), second: torch.from_numpy(b),
         result: torch.full(problem.shape(result), math.nan)}  # fmt: skip
    views = {role: gpu_timing.canonical(value) for role, value in t.items()}
    theirs = gpu_timing.by_torch(problem, views, transposed)()
    assert relative_error(theirs.permute(0, 2, 3, 1).numpy(), want) < 1e-5

    case = gpu_cases.Case("", "f32", problem, transposed, "x")
    unwritten = gpu_timing.checked(case, views, theirs)
    assert "nan" in unwritten["reason"]
    views[result].copy_(torch.from_numpy(want).permute(0, 3, 1, 2))
    assert "reason" not in gpu_timing.checked(case, views, theirs)
    # One image or filter in the middle, where float64 does not look, is not forgotten.
    views[result][1] *= 1.01
    assert "difference" in gpu_timing.checked(case, views, theirs)["reason"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_measurement(kind: str, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ConvProblem.parse(LINES[2].format(kind))
    case = gpu_cases.Case("", "f32", problem, transposed, "x")
    monkeypatch.setattr(gpu_timing, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def timed(calls: list[Any], count: int) -> float:
        for i in range(count):
            calls[i % len(calls)]()
        return 1e-3

    def function(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.from_numpy(torch_reference(problem, a.numpy(), b.numpy())))

    monkeypatch.setattr(gpu_timing, "timed", timed)
    before = torch.backends.cudnn.benchmark
    found = gpu_timing.measure(case, function, seed=3)
    assert torch.backends.cudnn.benchmark == before
    assert "reason" not in found
    assert (found["calls"], found["sets"], found["seconds"]) == (3, 32, 1e-3)
    assert found["error"] < 1e-5
    idle = gpu_timing.measure(case, lambda *_: None, seed=3)
    assert "nan" in idle["reason"]


# ---- the run and its report ----------------------------------------------------------------------


def row(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "mode": "f16", "backend": "cudnn", "uses": {"keras": 1}, **more}


def test_a_networks_time_counts_its_layers_at_one_batch() -> None:
    base = {"seconds": 1.0, "torch_seconds": 2.0}
    rows = [row("wgrad", **base, batch=256), row("wgrad", **base, batch=128)]
    rows[1]["uses"] = {"keras": 3}
    (line,) = gpu_convolutions.totals(rows)
    assert line == "one pass, keras cudnn f16 wgrad: 7000.00 ms, PyTorch 14000.00, 2 layers"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device that is pretended; the cases that it ran."""
    ran: list[str] = []

    class Module(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            return lambda: ""

    def measure(case: gpu_cases.Case, function: Any, seed: int) -> dict[str, Any]:
        ran.append(case.symbol)
        if case.kind == "dgrad":
            raise RuntimeError("cuDNN has no plan")
        times = {"seconds": 2e-3, "torch_seconds": 1e-3, "spread": 0.01, "torch_spread": 0.02}
        return {**times, "error": 1e-4}

    floors = {"peak": dict.fromkeys(MODES, 1e14), "bandwidth": 4e12}
    paths = lambda all_cases, _: {c.symbol: Path() for c in all_cases}  # noqa: E731
    monkeypatch.setattr("tvm_ffi.load_module", lambda path: Module())
    monkeypatch.setattr(gpu_convolutions, "build", paths)
    monkeypatch.setattr(runner, "facts", lambda on_gpu: FACTS)
    monkeypatch.setattr(gpu_timing, "measure", measure)
    monkeypatch.setattr(gpu_timing, "floors", lambda modes: floors)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setenv("RELAY_WGRAD_CACHE", "")  # put back as it was, whatever a run sets
    return ran


FACTS = {"date": "today", "machine": {"gpu": "pretended"}, "versions": {}, "commit": None}


def test_a_run(measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    options = ["--suite", "keras", "--dtypes", "f16,tf32", "--batch", "64", "--json", str(file)]
    assert main(["gpu", "convolutions", *options]) == 1  # dgrad failed
    out = capsys.readouterr().out
    assert "kind wgrad: 2 rows, geometric mean 2.000" in out
    assert "256→128 8² 2×2 /2 T" in out
    assert "RuntimeError: cuDNN has no plan" in out
    result = json.loads(file.read_text())
    assert len(result["rows"]) == len(measured) == 6
    assert result["floors"]["bandwidth"] == 4e12
    assert {r["batch"] for r in result["rows"] if "batch" in r} == {64}
    assert main(["gpu", "convolutions", *options, "--resume"]) == 1
    assert len(measured) == 6  # all rows are kept


def test_names_are_short() -> None:
    names = [layer.name for name in SUITES for layer in suite(name)]
    assert max(map(len, names)) < 28
    assert isinstance(suite("keras")[0], Layer)
    assert {*DTYPES} == {"f16", "bf16", "f32"}


def test_our_own_kernels_are_cases_where_there_are_some() -> None:
    found = gpu_cases.cases(["efficientnet_b0"], EVERY, ["f16", "tf32"], 64, ("cudnn", "direct"))
    direct = [case for case in found if case.backend == "direct"]
    halves = [case.problem for case in direct if case.mode == "f16"]
    depthwise = [problem for problem in halves if problem.groups == problem.c]
    assert len(depthwise) == 36
    dense = [problem for problem in halves if problem not in depthwise]
    assert [(p.c, p.groups) for p in dense if p.c < 8] == [(3, 1)] * 2  # of the image
    assert all(p.groups == 1 and p.c * p.k <= 4096 for p in dense)  # few channels
    assert {case.problem for case in direct} < {c.problem for c in found if c.backend == "cudnn"}
    assert direct[0].region().options == {"arch": 90}
    text = direct_generate([case.region() for case in direct[:6]])
    assert text.count("TVM_FFI_DLL_EXPORT int __tvm_ffi_case") == 6
