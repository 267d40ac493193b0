"""cuDNN's convolutions on a device, against PyTorch in float64; everything starts as NaN."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from byoc_cudnn.backends.cudnn import check as cudnn
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.dtypes import MIXED
from relay_wgrad.problem import ConvKind, ConvProblem, symmetric
from tests.support.gpu.cudnn_runner import (
    after,
    destination,
    kind_problems,
    library_tolerance,
    load,
    operands_on_device,
    regions_of,
    to_numpy,
)
from tests.support.problems import (
    CORNERS,
    random_operands,
    random_problem,
    relative_error,
    torch_reference,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]

SEED = 21
RANDOM = 320  # problems of each kind
NATIVE = (("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NHWC"))

# name -> options, whether float32 may be rounded to tf32, problems of each kind, dtypes
OPTIONS: dict[str, tuple[dict[str, Any], bool, int, tuple[str, ...]]] = {
    "default": ({}, True, RANDOM, MIXED),
    "float32": ({"allow_tf32": False}, False, 100, ("float32",)),
    "deterministic": ({"deterministic": True}, True, 100, MIXED),
    "benchmark": ({"benchmark": True}, True, 40, MIXED),
    "no workspace": ({"workspace_limit": 0}, True, 60, MIXED),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path / "cache"))


def problems(kind: ConvKind, count: int, dtypes: tuple[str, ...]) -> list[ConvProblem]:
    """Random ones as they are after `partition`: what padding is lopsided is explicit."""
    rng = np.random.default_rng((SEED, list(ConvKind).index(kind), count))
    drawn = kind_problems(
        rng, kind, count, random_problem, dtypes=dtypes, layouts=NATIVE, mixed=False
    )
    for line in CORNERS:
        problem = ConvProblem.parse(line.format(kind.value))
        layouts = (problem.data_layout, problem.kernel_layout, problem.grad_layout)
        same = len({problem.data_dtype, problem.weight_dtype, problem.grad_dtype}) == 1
        if layouts in NATIVE and same and problem.data_dtype in dtypes:
            drawn.append(problem)
    return [symmetric(problem) for problem in drawn]


@pytest.mark.parametrize("kind", list(ConvKind))
@pytest.mark.parametrize("name", OPTIONS)
def test_random_problems(name: str, kind: ConvKind, tmp_path: Path) -> None:
    options, tf32, count, dtypes = OPTIONS[name]
    regions = regions_of(problems(kind, count, dtypes), **options)
    functions = load(regions, tmp_path)
    rng = np.random.default_rng(SEED)
    wrong, worst = [], 0.0
    for region in regions:
        p = region.problem
        a, b = random_operands(p, rng)
        args = operands_on_device(p, a, b)
        outs = [destination(p) for _ in range(2)]
        try:
            for out in outs:
                functions[region.symbol](*args, out)
        except RuntimeError as error:
            if not (name == "no workspace" and "over the limit of 0" in str(error)):
                wrong.append(f"{p}: {error}")
            continue
        share = relative_error(to_numpy(outs[0]), torch_reference(p, a, b)) / library_tolerance(
            p, tf32=tf32
        )
        worst = max(worst, share)
        if not share <= 1:
            wrong.append(f"{p}: {share:.3g} times the tolerance")
        if options.get("deterministic") and not torch.equal(*(o.view(torch.uint8) for o in outs)):
            wrong.append(f"{p}: two runs differ")
    print(f"\n{name} {kind.value}: {len(regions)} problems, worst {worst:.2f} of its tolerance")
    print(*wrong, sep="\n")
    assert wrong == []


def test_two_threads_two_streams(tmp_path: Path) -> None:
    """Both run every problem many times at once, each on its own stream and data."""
    chosen = [p for kind in ConvKind for p in problems(kind, 12, MIXED)[:12]]
    regions = regions_of(chosen)
    functions = load(regions, tmp_path)
    wrong: list[str] = []
    start = threading.Barrier(2)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            cases = []
            for region in regions:
                values = random_operands(region.problem, rng)
                cases.append((region, values, operands_on_device(region.problem, *values)))
            stream.synchronize()
            start.wait()
            outs = []
            for _ in range(20):
                outs = [destination(region.problem) for region, _, _ in cases]
                for (region, _, args), out in zip(cases, outs, strict=True):
                    functions[region.symbol](*args, out)
            stream.synchronize()
        for (region, values, _), out in zip(cases, outs, strict=True):
            p = region.problem
            error = relative_error(to_numpy(out), torch_reference(p, *values))
            if not error <= library_tolerance(p, tf32=True):
                wrong.append(f"thread {seed}: {p}: {error:.3g}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("warm", [True, False])
def test_graph_capture(warm: bool, tmp_path: Path) -> None:
    """A captured graph replays with new inputs; capture may even be the first call."""
    line = "{} n=2 c=64 h=15 w=14 k=96 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
    chosen = [ConvProblem.parse(line.format(kind.value)) for kind in ConvKind]
    regions = regions_of(chosen)
    functions = load(regions, tmp_path)
    rng = np.random.default_rng(SEED)
    for region in regions:
        p = region.problem
        args = operands_on_device(p, *random_operands(p, rng))
        out = destination(p)
        if warm:
            functions[region.symbol](*args, out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            functions[region.symbol](*args, out)
        for _ in range(2):
            values = random_operands(p, rng)
            for arg, value in zip(args, operands_on_device(p, *values), strict=True):
                arg.copy_(value)
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            error = relative_error(to_numpy(out), torch_reference(p, *values))
            assert error <= library_tolerance(p, tf32=True), str(p)


def test_no_allocation_after_the_first_call(tmp_path: Path) -> None:
    line = "wgrad n=8 c=64 h=28 w=28 k=64 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    (region,) = regions_of([ConvProblem.parse(line)])
    function = load([region], tmp_path)[region.symbol]
    args = operands_on_device(
        region.problem, *random_operands(region.problem, np.random.default_rng(SEED))
    )
    out = destination(region.problem)
    function(*args, out)
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    for _ in range(50):
        function(*args, out)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == free


def test_no_plan_names_the_problem(tmp_path: Path) -> None:
    """Every engine is ruled out: the message has the reasons and the problem's line."""
    line = "dgrad n=2 c=16 h=8 w=8 k=16 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    p = ConvProblem.parse(line)
    region = Region("f", p, ("mask",), ("grad", "weight", "mask"), {"allow_tf32": False})
    function = load([region], tmp_path)["f"]
    args = operands_on_device(p, *random_operands(p, np.random.default_rng(SEED)))
    out = destination(p)
    with pytest.raises(RuntimeError) as caught:
        function(*args, torch.randn_like(out), out)
    for part in ("cuDNN has no plan for dgrad n=2 c=16", p.repro(), "ruled out"):
        assert part in str(caught.value)


# (kind, epilogue) -> problems that the partition's rules send to it, drawn from random ones
EPILOGUES = [
    (kind, epilogue)
    for kind, names in cudnn.EPILOGUES.items()
    for epilogue in names
    if epilogue
]  # fmt: skip


@pytest.mark.parametrize(("kind", "epilogue"), EPILOGUES)
def test_epilogues(kind: ConvKind, epilogue: str, tmp_path: Path) -> None:
    """Masks and sums of random data with exact zeros, and NaN in masks."""
    rng = np.random.default_rng((SEED, len(epilogue)))
    parts = tuple(epilogue.split("_"))
    regions = []
    # cuDNN compiles engines for dgrad's epilogues when a plan is made: seconds each.
    while len(regions) < (60 if kind is ConvKind.FPROP else 12):
        p = symmetric(random_problem(rng, kind, dtypes=MIXED, layouts=NATIVE, mixed=False))
        # Channels of random problems are seldom multiples of 8, which some epilogues need.
        if p.groups == 1 and rng.random() < 0.7:
            p = replace(p, c=8 * (1 + p.c // 8), k=8 * (1 + p.k // 8))
        if cudnn.check(p, epilogue):
            name = f"f{len(regions)}"
            regions.append(Region.of(name, p, parts))
    functions = load(regions, tmp_path)
    wrong = []
    for region in regions:
        p = region.problem
        values = random_operands(p, rng)
        extra, want = after(region, torch_reference(p, *values), rng)
        args = [*operands_on_device(p, *values), *extra]
        out = destination(p)
        try:
            functions[region.symbol](*args, out)
        except RuntimeError as error:
            wrong.append(f"{p}: {error}")
            continue
        error = relative_error(to_numpy(out), want)
        if not error <= library_tolerance(p, tf32=True):
            wrong.append(f"{p}: {error:.3g}")
    print(*wrong, sep="\n")
    assert wrong == []


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(
    ("kind", "epilogue"), [(kind, e) for kind, e in EPILOGUES if e.endswith("relu")]
)
def test_relu_keeps_nan(kind: ConvKind, epilogue: str, dtype: str, tmp_path: Path) -> None:
    """An image that is NaN stays so, or training would go on with a loss that is a number."""
    line = f"{kind.value} n=2 c=16 h=8 w=8 k=24 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    p = ConvProblem.parse(f"{line} dtype={dtype}/{dtype}/{dtype}")
    assert cudnn.check(p, epilogue)
    region = Region.of("f", p, tuple(epilogue.split("_")))
    function = load([region], tmp_path)["f"]
    rng = np.random.default_rng(SEED)
    values = random_operands(p, rng)
    values[0][0] = np.nan
    extra, _ = after(region, torch_reference(p, *values), rng)
    out = destination(p)
    function(*operands_on_device(p, *values), *extra, out)
    nan = np.isnan(to_numpy(out))
    assert nan[0].all()
    assert not nan[1].any()
