"""CUTLASS's convolutions on a device, against PyTorch in float64; everything starts as NaN.

The kernels are built by nvcc where the test runs: some two hundred, of eight seconds each.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm

from byoc_cudnn.backends.cutlass import check as cutlass
from byoc_cudnn.backends.cutlass import codegen as code
from byoc_cudnn.backends.cutlass.kernels import TILES, candidates
from byoc_cudnn.backends.cutlass.model import Choice
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.dtypes import MIXED
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu.cudnn_runner import (
    destination,
    library_tolerance,
    operands_on_device,
    to_numpy,
)
from tests.support.gpu.cutlass_runner import (
    EPILOGUES,
    F16,
    SEED,
    load,
    needs_hopper,
    region_of,
    shares,
    wrong_ones,
)
from tests.support.problems import random_operands, random_problem, relative_error, torch_reference

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]

NHWC = (("NHWC", "OHWI", "NHWC"),)

# name -> options, problems of each kind, dtypes
OPTIONS: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "default": ({}, 100, MIXED),
    "float32": ({"allow_tf32": False}, 50, ("float32",)),
    "sm_75": ({"arch": 75}, 40, ("float16", "float32")),
    "split": ({"split_k": 13}, 30, MIXED),
    "wgmma": ({"arch": 90, "wgmma": True}, 60, ("float16", "bfloat16")),
}


def drawn(
    kind: ConvKind, epilogue: str, count: int, dtypes: tuple[str, ...], **options: Any
) -> list[ConvProblem]:
    """Distinct random problems that the backend takes, with any padding."""
    rng = np.random.default_rng((SEED, list(ConvKind).index(kind), count, len(epilogue)))
    found: dict[str, ConvProblem] = {}
    while len(found) < count:
        p = random_problem(rng, kind, dtypes=dtypes, layouts=NHWC, mixed=False)
        # Channels of random problems are seldom multiples of 8, and then seldom of 4 or 2.
        unit = int(rng.choice([1, 2, 4, 8, 8, 8]))
        if p.groups == 1 and unit > 1:
            p = replace(p, c=unit * (1 + p.c // unit), k=unit * (1 + p.k // unit))
        if rng.random() < 0.3:  # float32 results of half operands
            p = replace(p, **{f"{p.roles[2]}_dtype": "float32"})  # type: ignore[arg-type]
        if cutlass.check(p, epilogue, cutlass.Options(**options)):
            found.setdefault(p.repro(), p)
    return list(found.values())


@pytest.mark.parametrize("kind", list(ConvKind))
@pytest.mark.parametrize("name", OPTIONS)
def test_random_problems(name: str, kind: ConvKind, tmp_path: Path) -> None:
    options, count, dtypes = OPTIONS[name]
    if options.get("wgmma"):
        needs_hopper()
    chosen = drawn(kind, "", count, dtypes, **options)
    regions = [region_of(f"f{i}", p, **options) for i, p in enumerate(chosen)]
    assert wrong_ones(regions, tmp_path, SEED) == []


@pytest.mark.parametrize(("kind", "epilogue"), EPILOGUES)
def test_epilogues(kind: ConvKind, epilogue: str, tmp_path: Path) -> None:
    parts = tuple(epilogue.split("_"))
    chosen = drawn(kind, epilogue, 12, MIXED)
    regions = [region_of(f"f{i}", p, parts) for i, p in enumerate(chosen)]
    assert wrong_ones(regions, tmp_path, SEED) == []


# Larger than every tile in both directions, and no multiple of one.
LARGE = "{} n=3 c=304 h=21 w=22 k=280 r=3 s=3 pad=1,1,1,1 stride={} layout=NHWC/OHWI/NHWC dtype={}"


@pytest.mark.parametrize("math", ["f16", "bf16", "tf32", "f32"])
def test_every_tile(math: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is not asked: each tile computes one problem of each kind, dgrad two."""
    tile = 0

    def choose(p: ConvProblem, epilogue: tuple[str, ...], options: Any, arch: Any) -> Choice:
        return Choice(
            candidates(p, epilogue, options)[tile], 3 if p.kind is ConvKind.WGRAD else 1, 0
        )

    monkeypatch.setattr(code, "choose", choose)
    dtype = "/".join(["f32" if "32" in math else math] * 3)
    lines = [LARGE.format(kind, stride, dtype) for kind, stride in (
        ("fprop", "1,1"), ("dgrad", "1,1"), ("dgrad", "2,2"), ("wgrad", "2,1"),
    )]  # fmt: skip
    wrong = []
    for tile in range(len(TILES[math])):
        regions = [
            region_of(f"f{i}", ConvProblem.parse(line), allow_tf32=math == "tf32")
            for i, line in enumerate(lines)
        ]
        folder = tmp_path / str(tile)
        folder.mkdir()
        wrong += wrong_ones(regions, folder, SEED)
    assert wrong == []


LINE = "{} n=2 c=64 h=15 w=14 k=96 r=3 s=3 pad=1,1,1,1 " + F16


@pytest.mark.parametrize("dtype", MIXED)
def test_groups(dtype: str, tmp_path: Path) -> None:
    """With every epilogue, whose operands begin where the group's channels do."""
    short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[dtype]
    shapes = (
        "c=64 h=15 w=14 k=96 r=3 s=3 pad=1,1,1,1 groups=4",
        "c=32 h=13 w=17 k=32 r=1 s=1 groups=2",
        "c=30 h=15 w=14 k=45 r=3 s=2 stride=2,1 pad=1,0,2,1 groups=3",
        "c=256 h=9 w=9 k=512 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=32",
    )
    regions: list[Region] = []
    for kind, names in cutlass.EPILOGUES.items():
        for shape in shapes:
            line = f"{kind.value} n=3 {shape} layout=NHWC/OHWI/NHWC dtype={'/'.join([short] * 3)}"
            p = ConvProblem.parse(line)
            for name in names if shape == shapes[0] else ("",):
                epilogue = tuple(x for x in name.split("_") if x)
                regions.append(region_of(f"f{len(regions)}", p, epilogue))
    assert len(regions) == sum(map(len, cutlass.EPILOGUES.values())) + 3 * 3
    assert wrong_ones(regions, tmp_path, SEED) == []


def three() -> list[Region]:
    lines = [LINE.format(kind.value) for kind in ConvKind]
    return [region_of(f"f{i}", ConvProblem.parse(line)) for i, line in enumerate(lines)]


def test_any_batch(tmp_path: Path) -> None:
    """One library for every batch; an empty one gives an empty result, or zeros."""
    n = tvm.tirx.Var("n", "int64")
    regions = [replace(r, problem=replace(r.problem, n=n)) for r in three()]
    functions = load(regions, tmp_path)
    rng = np.random.default_rng(SEED)
    for batch in (1, 5, 32):
        for symbolic in regions:
            region = replace(symbolic, problem=replace(symbolic.problem, n=batch))
            share, same = shares(region, functions[region.symbol], rng)
            assert share <= 1, str(region.problem)
            assert same
    out = torch.full((96, 3, 3, 64), float("nan"), dtype=torch.float16, device="cuda")
    empty = [torch.empty((0, 15, 14, c), dtype=torch.float16, device="cuda") for c in (96, 64)]
    functions["f2"](*empty, out)
    assert not out.any()


def test_two_threads_two_streams(tmp_path: Path) -> None:
    """Both run every problem many times at once, each on its own stream and data."""
    regions = three()
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
            for _ in range(50):
                outs = [destination(p.problem) for p, _, _ in cases]
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
    regions = three()
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
    region = three()[2]
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


def test_a_tensor_that_lies_badly_is_refused(tmp_path: Path) -> None:
    region = three()[0]
    p = region.problem
    function = load([region], tmp_path)[region.symbol]
    data, weight = operands_on_device(p, *random_operands(p, np.random.default_rng(SEED)))
    shifted = torch.empty(data.numel() + 1, dtype=data.dtype, device="cuda")[1:].view(data.shape)
    with pytest.raises(ValueError, match="data must lie at a multiple of 16 bytes"):
        function(shifted, weight, destination(p))


def test_a_library_says_what_it_called(tmp_path: Path) -> None:
    region = three()[2]
    module = load([region], tmp_path)
    assert str(module[code.PLANS]()) == ""
    shares(region, module[region.symbol], np.random.default_rng(SEED))
    (line,) = str(module[code.PLANS]()).splitlines()
    problem, kernel, workspace, _ = line.split("\t")
    assert problem == region.problem.repro()
    assert kernel.startswith("relay_wgrad_cutlass_wgrad_f16_f32_")
    assert int(workspace) >= 4 * 96 * 64 * 9
