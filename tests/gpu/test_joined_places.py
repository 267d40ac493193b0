"""Results that are written into joined tensors, on a GPU: the bits of those apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from byoc_cudnn import pool
from byoc_cudnn.joins import JoinsCall
from byoc_cudnn.joins import generate as generate_joins
from byoc_cudnn.joins import inputs as joins_inputs
from byoc_cudnn.joins.call import Piece, Term
from byoc_cudnn.norm import NormCall, check
from byoc_cudnn.pool import PoolCall
from tests.support.gpu.norm_runner import load, load_source

pytestmark = pytest.mark.gpu

# dtype, activation and more, shape, groups, the first channel and how many are joined
CASES: list[tuple[str, dict[str, Any], tuple[int, ...], int, tuple[int, int]]] = [
    ("bfloat16", {"activation": "relu"}, (8, 56, 56, 32), 0, (0, 64)),  # rows side by side
    ("float16", {"activation": "relu"}, (64, 28, 28, 160), 0, (896, 1056)),
    ("float16", {"activation": "relu"}, (8, 7, 7, 208), 0, (208, 832)),  # one launch
    ("bfloat16", {"activation": "relu", "residual": True, "bits": True}, (16, 31, 9, 128), 0,
     (64, 256)),
    ("bfloat16", {"activation": "leaky_relu", "alpha": 0.01}, (2, 33, 19, 64), 64, (0, 128)),
    ("float32", {"activation": "silu", "running": True}, (5, 19, 12), 0, (12, 24)),
    ("float64", {}, (3, 17, 6), 0, (2, 10)),
]  # fmt: skip


def call_of(case: int, **how: Any) -> NormCall:
    dtype, given, _, groups, place = CASES[case]
    plain = NormCall(f"plain_{case}", "forward", dtype, grouped=groups > 0, **given)
    if not how:
        return plain
    symbol = f"placed_{case}_{how['onto']}_{how['own']}"
    return replace(plain, symbol=symbol, place=place, **how)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    ways = [{}, *({"onto": onto, "own": own} for onto in (False, True) for own in (False, True))]
    calls = [call_of(case, **how) for case in range(len(CASES)) for how in ways]
    assert all(map(check, calls))
    return load(calls, tmp_path_factory.mktemp("placed"))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_bits_of_a_normalization_apart(functions: Any, case: int, onto: bool, own: bool) -> None:
    """In the place of what is joined so far, and beside it, which is a copy then."""
    dtype, _, shape, groups, (first, wide) = CASES[case]
    kind, generator = getattr(torch, dtype), torch.Generator("cuda").manual_seed(case)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", generator=generator)

    few = torch.float64 if dtype == "float64" else torch.float32
    width, statistics = shape[-1], (shape[0], groups) if groups else shape[-1:]
    call = call_of(case, onto=onto, own=own)
    operands = {name: random(width).to(few) for name in ("gamma", "beta", "running_mean")}
    operands |= {"running_var": random(width).abs().to(few) + 1}
    operands |= {name: random(*shape).to(kind) for name in ("x", "residual")}

    def results(of: NormCall) -> dict[str, torch.Tensor]:
        sizes = {"y": shape, "own": shape, "mean": statistics, "rstd": statistics}
        mask = (*shape[:-1], width * operands["x"].element_size() // 16)
        return {
            name: torch.zeros(mask, device="cuda", dtype=torch.uint8) if name == "mask"
            else torch.full(sizes.get(name, (width,)), torch.nan, device="cuda",
                            dtype=kind if name in ("y", "own") else few)
            for name in of.results
        }  # fmt: skip

    plain = call_of(case)
    apart = results(plain)
    functions[plain.symbol](*(operands[n] for n in plain.operands), *apart.values())
    for there in (True, False) if onto else (False,):
        joined = random(*shape[:-1], wide).to(kind)
        found = results(call) | {"y": joined if there else torch.zeros_like(joined)}
        want = joined.clone() if onto else found["y"].clone()
        want[..., first : first + width] = apart["y"]
        arguments = [operands[n] for n in plain.operands] + [joined] * onto
        functions[call.symbol](*arguments, *(found[n] for n in call.results))
        assert same(found["y"], want)
        for name in call.results[1:]:
            assert same(found[name], apart["y" if name == "own" else name]), name


# dtype, activation, shape, groups, the first channel and how many there are
WITHIN: list[tuple[str, str, tuple[int, ...], int, tuple[int, int]]] = [
    ("float16", "relu", (64, 28, 28, 160), 0, (0, 512)),
    ("float16", "relu", (16, 56, 56, 32), 0, (64, 256)),  # rows side by side
    ("bfloat16", "relu", (8, 7, 7, 208), 0, (0, 832)),  # one launch
    ("bfloat16", "silu", (4, 33, 9, 64), 4, (64, 128)),
    ("float32", "", (5, 19, 12), 0, (12, 24)),
]


def within_call(case: int, direction: str, there: bool) -> NormCall:
    dtype, activation, _, groups, within = WITHIN[case]
    call = NormCall(f"{direction}_{case}", direction, dtype, activation, grouped=groups > 0)
    return replace(call, symbol=f"{direction}_{case}_within", within=within) if there else call


@pytest.mark.parametrize("case", range(len(WITHIN)))
def test_bits_of_an_operand_copied(case: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    dtype, _, shape, groups, (first, wide) = WITHIN[case]
    directions = ("forward", "backward")
    calls = [within_call(case, d, there) for d in directions for there in (False, True)]
    assert all(map(check, calls))
    library = load(calls, tmp_path_factory.mktemp("within"))
    kind, width, generator = (
        getattr(torch, dtype),
        shape[-1],
        torch.Generator("cuda").manual_seed(1),
    )

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", generator=generator)

    x, dy = random(*shape[:-1], wide).to(kind), random(*shape).to(kind)
    gamma, beta, few = random(width), random(width), (shape[0], groups) if groups else (width,)
    found = []
    for there in (False, True):
        given = x if there else x[..., first : first + width].contiguous()
        y, mean, rstd = torch.full_like(dy, torch.nan), random(*few), random(*few)
        library[within_call(case, "forward", there).symbol](given, gamma, beta, y, mean, rstd)
        results = [torch.full_like(t, torch.nan) for t in (dy, gamma, beta)]
        back = within_call(case, "backward", there).symbol
        library[back](dy, given, gamma, beta, mean, rstd, *results)
        found.append([y, mean, rstd, *results])
    assert all(map(same, *found))


def test_a_place_of_no_whole_packs_is_refused(functions: Any) -> None:
    x = torch.zeros((5, 4), device="cuda", dtype=torch.float64)
    few, joined = (
        torch.zeros(3, device="cuda").double(),
        torch.zeros((5, 10), device="cuda").double(),
    )
    with pytest.raises(
        ValueError, match="3 channels from 2 on, of 10, must each be multiples of 2"
    ):
        functions["placed_6_False_False"](x[:, :3].contiguous(), few, few, joined, few, few)


def test_pooling_of_channels(tmp_path_factory: pytest.TempPathFactory) -> None:
    plain = PoolCall("plain", "forward", "bfloat16", (2, 2), (2, 2), index=True)
    sliced = replace(plain, symbol="sliced", slice=(32, 96))
    library = load_source(
        pool.generate, pool.inputs, [plain, sliced], tmp_path_factory.mktemp("pools")
    )
    wide = torch.randn((4, 56, 56, 96), device="cuda").bfloat16()
    found = []
    for symbol, x in (("plain", wide[..., 32:64].contiguous()), ("sliced", wide)):
        y = torch.full((4, 28, 28, 32), torch.nan, device="cuda", dtype=torch.bfloat16)
        index = torch.full(y.shape, 99, device="cuda", dtype=torch.uint8)
        library[symbol](x, y, index)
        found.append((y, index))
    assert all(map(same, *found))


def test_a_join_over_an_operand(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is there already stays, and is copied where the result lies elsewhere."""
    pieces = (Piece(16, (Term(0, 0),)), Piece(24, (Term(1, 8),)), Piece(8, (Term(0, 40),)))
    call = JoinsCall("f", "float16", (48, 32), (pieces,))
    assert call.overwrites == ((0, 0),)
    library = load_source(generate_joins, joins_inputs, [call], tmp_path_factory.mktemp("joined"))
    so_far, other = (torch.randn((9, 31, n), device="cuda").half() for n in call.channels)
    want = so_far.clone()
    want[..., 16:40] = other[..., 8:]
    apart = torch.full_like(so_far, torch.nan)
    library["f"](so_far, other, apart)
    library["f"](so_far, other, so_far)
    assert same(apart, want)
    assert same(so_far, want)
