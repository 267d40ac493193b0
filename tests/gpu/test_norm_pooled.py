"""A normalization with the max pooling that follows, on a GPU: what both apart give.

To the bit where they sum in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from byoc_cudnn import norm, pool
from tests.support.gpu.norm_runner import load, load_source

pytestmark = pytest.mark.gpu

WINDOWS = ((3, 3, 2, 2, 1, 1, 1, 1), (2, 2, 2, 2, 0, 0, 0, 0), (3, 2, 1, 2, 1, 0, 1, 0))
KINDS = [("bfloat16", "relu"), ("float16", "relu6"), ("float32", "silu"), ("float64", "")]
SHAPES = ((2, 17, 30, 64), (1, 2, 3, 13), (5, 9, 8, 72), (8, 56, 56, 64))
DIRECTIONS = ("forward", "backward")
CLOSE = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 1e-5, torch.float64: 1e-13}


def norm_call(direction: str, kind: int, window: int | None) -> norm.NormCall:
    dtype, activation = KINDS[kind]
    forward, pooled = direction == "forward", () if window is None else WINDOWS[window]
    symbol = f"{direction}_{dtype}_{'alone' if window is None else window}"
    return norm.NormCall(symbol, direction, dtype, activation, running=forward, pooled=pooled)


def pool_call(direction: str, kind: int, window: int) -> pool.PoolCall:
    w = WINDOWS[window]
    return pool.PoolCall(
        f"pool_{direction}_{KINDS[kind][0]}_{window}", direction, KINDS[kind][0], (w[0], w[1]),
        (w[2], w[3]), (w[4], w[5], w[6], w[7]), index=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    every = [(d, k) for d in DIRECTIONS for k in range(len(KINDS))]
    norms = [norm_call(*one, w) for one in every for w in (None, *range(len(WINDOWS)))]
    pools = [pool_call(*one, w) for one in every for w in range(len(WINDOWS))]

    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    found = load(norms, folder("norm"))
    other = load_source(pool.generate, pool.inputs, pools, folder("pool"))
    return {c.symbol: found[c.symbol] for c in norms} | {c.symbol: other[c.symbol] for c in pools}


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=str)
@pytest.mark.parametrize("window", range(len(WINDOWS)), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bits_of_both_apart(
    functions: dict[str, Any],
    kind: int,
    window: int,
    shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELAY_WGRAD_TOGETHER", "0")  # another order of the sums
    dtype = getattr(torch, KINDS[kind][0])
    sums = torch.float64 if dtype is torch.float64 else torch.float32
    generator = torch.Generator("cuda").manual_seed(0)

    def random(of: torch.dtype, *sizes: int) -> torch.Tensor:
        t = torch.randn(sizes, device="cuda", dtype=torch.float64, generator=generator)
        return (2 * t + 0.3).to(of)

    x, vectors = random(dtype, *shape), [random(sums, shape[-1]) for _ in range(4)]
    gamma, beta, *running = vectors
    r, s, down, across, top, left, bottom, right = WINDOWS[window]
    n, h, w, c = shape
    size = (n, (h + top + bottom - r) // down + 1, (w + left + right - s) // across + 1, c)
    dy = random(dtype, *size)

    def empty(like: torch.Tensor, count: int) -> list[torch.Tensor]:
        return [torch.full_like(like, float("nan")) for _ in range(count)]

    def index() -> torch.Tensor:
        return torch.full(size, 200, device="cuda", dtype=torch.uint8)

    # Apart.
    whole, through, dx = empty(x, 3)
    (y,) = empty(dy, 1)
    mean, rstd, new_mean, new_var, dgamma, dbeta = empty(gamma, 6)
    taps = index()
    functions[norm_call("forward", kind, None).symbol](
        x, gamma, beta, *running, whole, mean, rstd, new_mean, new_var
    )
    functions[pool_call("forward", kind, window).symbol](whole, y, taps)
    functions[pool_call("backward", kind, window).symbol](dy, taps, through)
    functions[norm_call("backward", kind, None).symbol](
        through, x, gamma, beta, mean, rstd, dx, dgamma, dbeta
    )
    apart = [y, taps, mean, rstd, new_mean, new_var, dx, dgamma, dbeta]
    # Together.
    (y,), (dx,), taps = empty(dy, 1), empty(x, 1), index()
    mean, rstd, new_mean, new_var, dgamma, dbeta = empty(gamma, 6)
    functions[norm_call("forward", kind, window).symbol](
        x, gamma, beta, *running, y, mean, rstd, new_mean, new_var, taps
    )
    functions[norm_call("backward", kind, window).symbol](
        dy, taps, x, gamma, beta, mean, rstd, dx, dgamma, dbeta
    )
    names = ("y", "index", "mean", "rstd", "new_mean", "new_var", "dx", "dgamma", "dbeta")
    got = [y, taps, mean, rstd, new_mean, new_var, dx, dgamma, dbeta]
    # Apart, rows of few channels are side by side, which is another order of the sums; backward
    # cells of pixels are.
    in_order = shape[-1] % 64 == 0
    for name, one, two in zip(names, apart, got, strict=True):
        same = torch.equal(one.view(torch.uint8), two.view(torch.uint8))
        free = not in_order or name in ("dx", "dgamma", "dbeta")
        assert same or (free and distance(one, two) <= CLOSE[dtype]), name
    assert torch.isfinite(y).all()


def distance(one: torch.Tensor, two: torch.Tensor) -> float:
    """Relative, in norm; of indices the part that differs, where values all but tie."""
    if one.dtype is torch.uint8:
        return float((one != two).double().mean())
    one, two = one.double(), two.double()
    return float((one - two).norm() / two.norm())


def test_calls_are_checked(functions: dict[str, Any]) -> None:
    function = functions[norm_call("backward", 0, 0).symbol]
    x = torch.zeros((1, 8, 8, 16), device="cuda", dtype=torch.bfloat16)
    vector = torch.zeros(16, device="cuda")
    dy, taps = x[:, :4, :4].contiguous(), torch.zeros((1, 4, 4, 16), device="cuda").byte()
    rest = [x, *[vector] * 4, x.clone(), vector.clone(), vector.clone()]
    function(dy, taps, *rest)
    with pytest.raises(ValueError, match="8 pixels have 4 windows, got 8"):
        function(x, torch.zeros(x.shape, device="cuda").byte(), *rest)
    with pytest.raises(TypeError, match="index must be uint8"):
        function(dy, dy, *rest)
    with pytest.raises(ValueError, match="shapes that do not fit each other"):
        function(dy, taps[..., :8].contiguous(), *rest)
