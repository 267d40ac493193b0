"""The CUDA kernels on a device, against PyTorch in float64; destinations start as NaN.

Without a device these tests fail: they run only where they are asked for (`-m gpu`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import tvm

from legalize.cuda import gemm, prim_func
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu.runner import Case, Outcome, choose_compiler, run_all
from tests.support.problems import CORNERS, random_problem, tolerance

pytestmark = pytest.mark.gpu

SEED = 20
RANDOM = 100  # problems of each kind


@pytest.fixture(scope="module")
def device() -> tvm.runtime.Device:
    found = tvm.cuda(0)
    if not found.exist:
        pytest.fail("no CUDA device that TVM can use")
    return found


def _cases(kind: ConvKind) -> list[Case]:
    rng = np.random.default_rng((SEED, list(ConvKind).index(kind)))
    cases = [Case(random_problem(rng, kind).repro()) for _ in range(RANDOM)]
    cases += [Case(ConvProblem.parse(line.format(kind.value)).repro()) for line in CORNERS]
    line = "n=2 c=19 h=13 w=12 k=37 r=3 s=3 stride=2,1 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    tiled = ConvProblem.parse(f"{kind.value} {line}").repro()
    for tile in range(len(gemm.TILES)):
        cases += [Case(tiled, tile, 0, splits) for splits in (1, 3)]
    line = "n=3 c=6 h=13 w=12 k=12 r=3 s=2 stride=2,1 pad=1,1,1,1 groups=6"
    direct = ConvProblem.parse(f"{kind.value} {line}").repro()
    for outputs in (256, 32, 1):
        cases += [Case(direct, -1, outputs, splits) for splits in (1, 3)]
    return cases


@pytest.fixture(scope="module")
def outcomes(device: tvm.runtime.Device) -> list[Outcome]:
    """All kinds at once, so that no process waits for another kind's slowest."""
    return run_all([case for kind in ConvKind for case in _cases(kind)], SEED)


@pytest.mark.parametrize("kind", list(ConvKind))
def test_kernels(kind: ConvKind, outcomes: list[Outcome]) -> None:
    mine = [o for o in outcomes if o.case.repro.startswith(kind.value)]
    assert len(mine) >= RANDOM
    wrong = [f"{o.case}: {o.error:.3g} times the tolerance" for o in mine if not o.error <= 1]
    assert wrong == []
    assert [o.case for o in mine if not o.repeatable] == []


@pytest.mark.parametrize("kind", [ConvKind.FPROP, ConvKind.DGRAD])
def test_tensors_beyond_32_bit_indices(kind: ConvKind, device: tvm.runtime.Device) -> None:
    choose_compiler()
    problem = replace(
        ConvProblem.parse(
            "fprop n=34000 c=64 h=32 w=32 k=8 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
            " dtype=f16/f16/f16"
        ),
        kind=kind,
    )
    assert np.prod(problem.shape("data")) > 2**31
    target = tvm.target.Target.from_device(device)
    func = prim_func(problem, target).with_attr("global_symbol", "main")
    module = tvm.compile(tvm.IRModule({"main": func}), target=target)
    generator = torch.Generator("cuda").manual_seed(SEED)
    first, second, result = problem.roles
    a, b = (
        torch.randn(problem.shape(r), dtype=torch.float16, device="cuda", generator=generator)
        for r in (first, second)
    )
    out = torch.full(problem.shape(result), torch.nan, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    module["main"](*(tvm.runtime.from_dlpack(x) for x in (a, b, out)))
    device.sync()
    assert not torch.isnan(out).any()
    for images in (slice(0, 4), slice(-4, None)):
        x, w = a[images].double().permute(0, 3, 1, 2), b.double().permute(0, 3, 1, 2)
        if kind is ConvKind.FPROP:
            want = torch.nn.functional.conv2d(x, w, padding=1)
        else:
            want = torch.nn.functional.conv_transpose2d(x, w, padding=1)
        difference = out[images].double() - want.permute(0, 2, 3, 1)
        assert difference.norm() / want.norm() <= tolerance(problem)
