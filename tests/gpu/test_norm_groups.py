"""Group and instance normalization's kernels on a GPU, and every activation, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from byoc_cudnn.norm import NormCall, check, workspace_bytes
from tests.support.gpu.norm_runner import ROWS, SUMS, load
from tests.support.norm_groups import CALLS, alpha_of, expected

pytestmark = pytest.mark.gpu

SHAPES = (
    (2, 24, 20, 22, 32), (3, 5, 7, 9, 40), (1, 9, 8, 8, 32), (2, 1, 1, 1, 16), (2, 3, 12),
    (5, 33, 260), (70, 6, 6, 4), (2, 4, 4, 4, 320), (2, 64, 64, 64, 32),
)  # fmt: skip
DTYPES = ("bfloat16", "float32")


def call_of(direction: str, dtype: str, groups: int, activation: str, how: Any) -> NormCall:
    """One of a kind, whatever its groups."""
    given = {n: v for n, v in how.items() if n != "summed" or direction == "backward"}
    kind = "groups" if groups else "batch"
    symbol = "_".join([direction, dtype, kind, activation, *given])
    return NormCall(
        symbol, direction, dtype, activation, alpha=alpha_of(activation), grouped=groups != 0,
        **given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [call_of(d, t, *rest) for d in ("forward", "backward") for t in DTYPES
             for rest in CALLS]  # fmt: skip
    assert all(map(check, calls))
    return load(list({c.symbol: c for c in calls}.values()), tmp_path_factory.mktemp("norm"))


def run(functions: Any, shape: Any, dtype: str, groups: int, activation: str, how: Any,
        workspace: Any = None) -> dict[str, torch.Tensor]:  # fmt: skip
    """All tensors of both directions by name."""
    generator = torch.Generator("cuda").manual_seed(len(shape) + shape[-1])
    groups = shape[-1] if groups < 0 else groups
    rows, sums = getattr(torch, dtype), torch.float32
    few = (shape[0], groups) if groups else shape[-1:]
    sizes = {"mean": few, "rstd": few, "gamma": shape[-1:], "beta": shape[-1:]}
    packs = -(-shape[-1] * torch.empty((), dtype=rows).element_size() // 16)
    t: dict[str, torch.Tensor] = {}
    for direction in ("forward", "backward"):
        call = call_of(direction, dtype, groups, activation, how)
        for name in (*call.operands, *call.results):
            if name == "mask":
                t.setdefault(name, torch.full((*shape[:-1], packs), 0x5A, device="cuda",
                                              dtype=torch.uint8))  # fmt: skip
                continue
            size = sizes.get(name.removeprefix("d"), shape)
            kind = sums if size is not shape else rows
            if name in call.results:
                t[name] = torch.full(size, torch.nan, device="cuda", dtype=kind)
            elif name not in t:
                made = torch.randn(size, device="cuda", generator=generator)
                t[name] = (1.5 * made + 0.3).to(kind)
        more = [] if workspace is None else [workspace]
        functions[call.symbol](*(t[n] for n in (*call.operands, *call.results)), *more)
    return t


def wrong(t: dict[str, torch.Tensor], dtype: str, groups: int, activation: str) -> list[str]:
    given = {n: t[n] for n in ("x", "gamma", "beta", "residual") if n in t}
    groups = t["x"].shape[-1] if groups < 0 else groups
    dy = t["dy"] + t["dy2"] if "dy2" in t else t["dy"]
    want = expected(given, dy, t["y"], groups, activation)
    lines = []
    scale = float(want["rstd"].max() * t["gamma"].abs().max() * dy.double().norm())
    for name, right in want.items():
        if name not in t:
            continue
        got = t[name].double().reshape(right.shape)
        rows = t[name].shape == t["x"].shape
        # A sum's error is that of its terms; dx is a difference of what is as large as `scale`, and
        # with a residual of dy as it was rounded for that: of one voxel it should be nothing.
        rounding = ROWS[dtype] if name == "dx" and "residual" in t else 2e-6
        limit = 2 * (ROWS if rows else SUMS)[dtype] * float(right.norm()) + rounding * scale
        error = float((got - right).norm())
        if not error <= limit:
            lines.append(f"{name}: {error:.1e}, at most {limit:.1e}")
    return lines


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "activation", "how"), CALLS, ids=str)
def test_shapes(functions: Any, dtype: str, groups: int, activation: str, how: Any) -> None:
    lines = []
    for shape in SHAPES:
        if groups > 0 and shape[-1] % groups:
            continue
        t = run(functions, shape, dtype, groups, activation, how)
        lines += [f"{shape} {line}" for line in wrong(t, dtype, groups, activation)]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_its_group(functions: Any, dtype: str, value: float) -> None:
    shape, how = (3, 9, 9, 32), {"residual": True}
    call = call_of("forward", dtype, 4, "leaky_relu", how)
    t = run(functions, shape, dtype, 4, "leaky_relu", how)
    t["x"][1, 2, 3, 9] = value  # of group 1 of the second image
    functions[call.symbol](*(t[n] for n in (*call.operands, *call.results)))
    bad = ~torch.isfinite(t["y"])
    assert bool(bad[1, ..., 8:16].all())
    bad[1, ..., 8:16] = False
    assert not bool(bad.any())


@pytest.mark.parametrize("dtype", DTYPES)
def test_twice_the_same_bits_and_with_a_small_workspace(functions: Any, dtype: str) -> None:
    for groups, activation, how in CALLS[:4]:
        for shape in ((2, 24, 20, 22, 32), (5, 33, 260)):
            first = run(functions, shape, dtype, groups, activation, how)
            again = run(functions, shape, dtype, groups, activation, how)
            for name, value in first.items():
                assert torch.equal(value.view(torch.uint8), again[name].view(torch.uint8)), name
            assert workspace_bytes(shape[-1], dtype, shape[0]) > 12 * shape[-1] * shape[0]
            block = torch.empty(12 * shape[-1] * shape[0], device="cuda", dtype=torch.uint8)
            small = run(functions, shape, dtype, groups, activation, how, block)
            assert not wrong(small, dtype, groups, activation)


def test_calls_are_checked(functions: Any) -> None:
    call = call_of("forward", "float32", 4, "leaky_relu", {"residual": True})
    t = run(functions, (2, 3, 12), "float32", 4, "leaky_relu", {"residual": True})
    args = [t[n] for n in (*call.operands, *call.results)]
    with pytest.raises(ValueError, match="mean must have two axes, of the 2 images and of groups"):
        functions[call.symbol](*args[:5], args[5][:, :3].flatten(), args[6])
    with pytest.raises(ValueError, match="mean must have two axes"):
        functions[call.symbol](*args[:5], args[5].new_empty(2, 5), args[6])
    with pytest.raises(ValueError, match="mean has 4 groups and rstd 3"):
        functions[call.symbol](*args[:6], args[6].new_empty(2, 3))
