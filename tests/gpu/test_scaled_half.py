"""Weight gradients of float32 by scaled float16 operands, on a device, against float64 and tf32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from byoc_cudnn.backends.cudnn.check import LAYOUTS, SCALED_HALF, VOLUME_LAYOUTS
from byoc_cudnn.backends.cudnn.codegen import PLANS
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem, symmetric
from tests.support.gpu.cudnn_runner import (
    destination,
    kind_problems,
    library_tolerance,
    load,
    operands_on_device,
    regions_of,
    to_numpy,
)
from tests.support.problems import random_operands, random_problem, relative_error, torch_reference
from tests.support.scaled_half import CORNERS, cases, errors, expect_specials, specials

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered", "poisoned_workspaces")]

SEED = 41
SCALED = "as scaled f16"  # in a plan's line


def problems(count: int) -> list[ConvProblem]:
    """Channels in eights, channels last, of two and three dimensions."""
    rng, found = np.random.default_rng(SEED), list[ConvProblem]()
    for rank, layouts in ((2, LAYOUTS[1:]), (3, VOLUME_LAYOUTS[1:])):
        drawn = kind_problems(
            rng, ConvKind.WGRAD, count, random_problem, dtypes=("float32",), layouts=layouts,
            mixed=False, rank=rank,
        )  # fmt: skip
        for p in map(symmetric, drawn):
            line = (
                p.repro()
                .replace(f" c={p.c} ", f" c={p.c * 8} ")
                .replace(f" k={p.k} ", f" k={p.k * 8} ")
            )
            found.append(ConvProblem.parse(line))
    return found + [ConvProblem.parse(line) for line in CORNERS]


def line_of(rows: int, c: int, k: int) -> ConvProblem:
    return ConvProblem.parse(f"wgrad n=1 c={c} h=1 w={rows} k={k} r=1 s=1 layout=NHWC/OHWI/NHWC")


RANGES, SPECIAL = line_of(40000, 64, 32), line_of(640, 64, 64)


@pytest.fixture(scope="module")
def always(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Regions, and a module of them whose scaled plans are used wherever they may be."""
    folder = tmp_path_factory.mktemp("always")
    regions = regions_of([*problems(40), RANGES, SPECIAL], deterministic=True)
    regions.append(Region.of("ieee", SPECIAL, allow_tf32=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SCALED_HALF, "always")
        module = load(regions, folder)
        # The variable is read by the first call.
        run(module, regions[-3], *(np.ones(RANGES.shape(r), "float32") for r in ("grad", "data")))
    return regions, module


def run(module: Any, region: Region, first: np.ndarray, second: np.ndarray) -> torch.Tensor:
    p, out = region.problem, destination(region.problem)
    given = [
        torch.from_numpy(a).cuda().view(p.shape(r)) for a, r in ((first, "grad"), (second, "data"))
    ]
    module[region.symbol](*given, out)
    return out


def plans(module: Any) -> list[str]:
    return str(module[PLANS]()).splitlines()


def test_random_problems(always: Any) -> None:
    """Each twice: the same bits."""
    regions, module = always
    regions = [r for r in regions if r.problem not in (RANGES, SPECIAL)]
    rng, wrong, worst = np.random.default_rng(SEED), list[str](), 0.0
    for region in regions:
        p = region.problem
        a, b = random_operands(p, rng)
        given, outs = operands_on_device(p, a, b), [destination(p), destination(p)]
        for out in outs:
            module[region.symbol](*given, out)
        share = relative_error(to_numpy(outs[0]), torch_reference(p, a, b)) / library_tolerance(
            p, tf32=True
        )
        worst = max(worst, share)
        if not (share <= 1 and torch.equal(*outs)):
            wrong.append(f"{p}: {share:.3g} times the tolerance")
    lines = plans(module)
    used = sum(SCALED in line for line in lines)
    print(f"\nscaled float16: {len(regions)} problems, {used} so, worst {worst:.2f}")
    assert wrong == []
    assert used >= 0.8 * len(lines), "\n".join(line for line in lines if SCALED not in line)


def test_ranges(always: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors beside those of cuDNN's tf32, printed; no worse than twice these, or 2^-10."""
    p = RANGES
    monkeypatch.setenv(SCALED_HALF, "0")
    scaled = next(r for r in always[0] if r.problem == p)
    (plain,) = regions_of([p])
    module, wrong = load([plain], tmp_path), []
    for name, (x, y) in cases(np.random.default_rng(SEED), p.w, p.c, p.k).items():
        want = y.astype(np.float64).T @ x.astype(np.float64)
        sides = (run(always[1], scaled, y, x), run(module, plain, y, x))
        found = [errors(to_numpy(a).reshape(p.k, p.c).astype(np.float64), want) for a in sides]
        print(f"{name:16} scaled {found[0]} tf32 {found[1]}")
        if not (found[0] <= np.maximum(2 * found[1], 2.0**-10)).all():
            wrong.append(name)
    assert SCALED not in str(module[PLANS]())
    assert f"w={p.w} " in "".join(line for line in plans(always[1]) if SCALED in line)
    assert wrong == []


def test_special_values(always: Any) -> None:
    """NaN and infinity reach the results of their channels, and those alone."""
    x, y, want = specials(np.random.default_rng(SEED), 640, 64)
    region = next(r for r in always[0] if r.problem == SPECIAL)
    got = to_numpy(run(always[1], region, y, x)).reshape(want.shape)
    assert f"w={SPECIAL.w} " in "".join(line for line in plans(always[1]) if SCALED in line)
    expect_specials(got, want)


def test_ieee_float32_stays(always: Any) -> None:
    rng = np.random.default_rng(SEED)
    x, y = (rng.standard_normal((640, 64)).astype(np.float32) for _ in range(2))
    want = y.astype(np.float64).T @ x.astype(np.float64)
    got = to_numpy(run(always[1], always[0][-1], y, x)).reshape(want.shape)
    assert relative_error(got, want) < 1e-5


def test_a_choice_by_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is faster it is taken, and another library that has the record takes it too."""
    big = (
        "wgrad n=1 c=128 d=48 h=48 w=48 k=128 t=3 r=3 s=3 pad=1,1,1,1,1,1 layout=NDHWC/ODHWI/NDHWC"
    )
    p = ConvProblem.parse(big)
    monkeypatch.setenv("RELAY_WGRAD_CACHE", str(tmp_path / "cache"))
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        module = load(regions_of([p], benchmark=True, deterministic=True), tmp_path / name)
        generator = torch.Generator("cuda").manual_seed(3)
        given = [torch.randn(p.shape(r), device="cuda", generator=generator) for r in p.roles[:2]]
        out, again = destination(p), destination(p)
        module["f0"](*given, out)
        module["f0"](*given, again)
        assert torch.equal(out, again)
        print("\n" + str(module[PLANS]()))
        assert SCALED in str(module[PLANS]())
        made.append(out)
    assert torch.equal(*made)
    y, x = (a.permute(0, 4, 1, 2, 3) for a in given)
    torch.backends.cudnn.allow_tf32 = False
    want = torch.nn.grad.conv3d_weight(x, (128, 128, 3, 3, 3), y, padding=1).permute(0, 2, 3, 4, 1)
    error = float((made[0] - want).norm() / want.norm())
    assert error < 1e-3
