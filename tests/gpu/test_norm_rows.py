"""Layer normalization's kernels on a GPU, rows of channels that are last, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from byoc_cudnn.norm import NormCall, check, workspace_bytes
from tests.support.gpu.group_norm_runner import wrong
from tests.support.gpu.norm_runner import load, other_bits_in_place

pytestmark = pytest.mark.gpu

DTYPES, ACTIVATIONS = ("float16", "bfloat16", "float32"), ("", "gelu")
SHAPES = (
    (200704, 80), (12544, 320), (3137, 96), (999, 192), (777, 768), (50, 1024), (301, 13),
    (77, 2500), (1, 8), (5, 4),
)  # fmt: skip


def call_of(direction: str, dtype: str, activation: str) -> NormCall:
    symbol = f"{direction}_{dtype}_{activation or 'none'}"
    return NormCall(symbol, direction, dtype, activation, grouped=True, by_row=True)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [call_of(d, t, a) for d in ("forward", "backward") for t in DTYPES for a in ACTIVATIONS]
    assert all(map(check, calls))
    return load(calls, tmp_path_factory.mktemp("norm"))


def run(functions: Any, rows: int, channels: int, dtype: str, activation: str,
        workspace: Any = None) -> dict[str, torch.Tensor]:  # fmt: skip
    """All tensors of both directions by name, results full of NaN before."""
    generator = torch.Generator("cuda").manual_seed(channels)
    kind = getattr(torch, dtype)
    sizes = {"mean": (rows, 1), "rstd": (rows, 1), "gamma": (channels,), "beta": (channels,)}
    t: dict[str, torch.Tensor] = {}
    for direction in ("forward", "backward"):
        call = call_of(direction, dtype, activation)
        for name in (*call.operands, *call.results):
            size = sizes.get(name.removeprefix("d"), (rows, 1, channels))
            of = torch.float32 if name.removeprefix("d") in sizes else kind
            if name in call.results:
                t[name] = torch.full(size, torch.nan, device="cuda", dtype=of)
            elif name not in t:
                made = torch.randn(size, device="cuda", generator=generator)
                t[name] = (1.5 * made + 0.3).to(of)
        more = [] if workspace is None else [workspace]
        functions[call.symbol](*(t[n] for n in (*call.operands, *call.results)), *more)
    return t


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_shapes(functions: Any, dtype: str, activation: str) -> None:
    lines = []
    for rows, channels in SHAPES:
        t = run(functions, rows, channels, dtype, activation)
        lines += [f"{rows}x{channels} {line}" for line in wrong(t, dtype, 1, activation)]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("dtype", DTYPES)
def test_twice_the_same_bits_and_with_a_small_workspace(functions: Any, dtype: str) -> None:
    for rows, channels in ((3137, 96), (777, 768)):
        first, again = (run(functions, rows, channels, dtype, "") for _ in range(2))
        for name, value in first.items():
            assert torch.equal(value.view(torch.uint8), again[name].view(torch.uint8)), name
        least = 8 * channels
        assert workspace_bytes(channels, dtype, rows, by_row=True) > least
        block = torch.empty(least, device="cuda", dtype=torch.uint8)
        assert not wrong(run(functions, rows, channels, dtype, "", block), dtype, 1, "")


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_the_place_of_an_operand_the_same_bits(functions: Any, dtype: str) -> None:
    for rows, channels in ((3137, 96), (777, 768), (65, 13)):
        for activation in ACTIVATIONS:
            t = run(functions, rows, channels, dtype, activation)
            for direction in ("forward", "backward"):
                call = call_of(direction, dtype, activation)
                assert not other_bits_in_place(functions, call, t)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(functions: Any, value: float) -> None:
    call, t = call_of("forward", "float16", "gelu"), run(functions, 65, 96, "float16", "gelu")
    t["x"][33, 0, 7] = value
    functions[call.symbol](*(t[n] for n in (*call.operands, *call.results)))
    bad = ~torch.isfinite(t["y"])
    assert bool(bad[33].all())
    assert int(bad.sum()) == 96


def test_calls_are_checked(functions: Any) -> None:
    call, t = call_of("forward", "float32", ""), run(functions, 6, 12, "float32", "")
    args = [t[n] for n in (*call.operands, *call.results)]
    wide = [args[0].reshape(3, 2, 12), *args[1:3], args[3].reshape(3, 2, 12)]
    with pytest.raises(ValueError, match="x must have rows on its first axis"):
        functions[call.symbol](*wide, *(a[:3].contiguous() for a in args[4:]))


@pytest.mark.parametrize("rounded", ["float16", "bfloat16"])
def test_rows_between_products_in_half(tmp_path: Path, rounded: str) -> None:
    """y is written and dy read as halves; dx is float32 as x is."""
    how: Any = {"grouped": True, "by_row": True, "rounded": rounded}
    functions = load([NormCall(d, d, "float32", **how) for d in ("forward", "backward")], tmp_path)
    for rows, channels in ((12608, 384), (301, 13), (77, 2500)):
        generator = torch.Generator("cuda").manual_seed(channels)
        x, dy = (
            torch.randn((rows, 1, channels), device="cuda", generator=generator) for _ in range(2)
        )
        gamma, beta = (torch.randn(channels, device="cuda", generator=generator) for _ in range(2))
        dy = dy.to(getattr(torch, rounded))
        y, dx = torch.full_like(dy, torch.nan), torch.full_like(x, torch.nan)
        mean, rstd = (torch.full((rows, 1), torch.nan, device="cuda") for _ in range(2))
        dgamma, dbeta = (torch.full_like(gamma, torch.nan) for _ in range(2))
        functions["forward"](x, gamma, beta, y, mean, rstd)
        functions["backward"](dy, x, gamma, beta, mean, rstd, dx, dgamma, dbeta)
        wide = [t.double().requires_grad_() for t in (x, gamma, beta)]
        want = torch.nn.functional.layer_norm(wide[0], (channels,), *wide[1:], 1e-5)
        exact = [want, *torch.autograd.grad(want, wide, dy.double())]
        for made, right in zip((y, dx, dgamma, dbeta), exact, strict=True):
            limit = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 4e-6}
            error = (made.double() - right).norm() / right.norm()
            assert float(error.detach()) < limit[str(made.dtype).removeprefix("torch.")], (
                rows, channels,
            )  # fmt: skip
