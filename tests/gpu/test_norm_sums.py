"""Sums that normalizations' passes make, on a GPU: as of calls that are given the sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from byoc_cudnn.norm import NormCall
from tests.support.gpu.norm_runner import ROWS, load, other_bits_in_place

pytestmark = pytest.mark.gpu

SHAPES = (
    (2, 3, 5, 64),
    (3, 7, 7, 13),
    (33, 28, 28, 256),
    (4, 9, 5, 260),
    (64, 7, 7, 512),
    (5, 4104),
)
DTYPES = ("float16", "bfloat16", "float32")
FORWARD = NormCall("forward", "forward", "float16", "silu")
BACKWARD = NormCall("backward", "backward", "float16", "silu")
CALLS = {
    "forward": FORWARD,
    "total": replace(FORWARD, total=True),
    "after": replace(FORWARD, residual=True, after=True),
    "backward": BACKWARD,
    "gradients": replace(BACKWARD, summed=True, total=True),
    "skip": replace(BACKWARD, skip=True),
}


def call_of(name: str, dtype: str) -> NormCall:
    return replace(CALLS[name], symbol=f"{name}_{dtype}", dtype=dtype)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    calls = [call_of(name, dtype) for name in CALLS for dtype in DTYPES]
    return load(calls, tmp_path_factory.mktemp("sums"))


def run(functions: Any, given: dict[str, torch.Tensor], call: NormCall) -> dict[str, torch.Tensor]:
    """Operands that are not given are random ones, results begin as NaN."""
    x, gamma = given["x"], given["gamma"]
    t = dict(given)
    for name in call.operands:
        t.setdefault(name, torch.randn_like(x))
    for name in call.results:
        like = x if name in ("y", "dx", "total") else gamma
        t[name] = torch.full_like(like, float("nan"))
    functions[call.symbol](*[t[name] for name in (*call.operands, *call.results)])
    return t


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_of_what_is_added_before(functions: Any, dtype: str) -> None:
    kind, sums = getattr(torch, dtype), torch.float32
    for seed, shape in enumerate(SHAPES):
        torch.manual_seed(seed)
        x, vectors = torch.randn(shape, device="cuda", dtype=kind), []
        vectors = [torch.rand(shape[-1], device="cuda", dtype=sums) + 0.5 for _ in range(4)]
        given = {"x": x, **dict(zip(("gamma", "beta", "mean", "rstd"), vectors, strict=True))}
        calls = {name: call_of(name, dtype) for name in CALLS}
        for name, plain, one, two in (
            ("total", "forward", "x", "more"), ("gradients", "backward", "dy", "dy2"),
        ):  # fmt: skip
            got = run(functions, given, calls[name])
            whole = (got[one].float() + got[two].float()).to(kind)
            want = run(functions, {**given, one: whole}, calls[plain])
            assert torch.equal(got["total"], whole), (shape, name)
            for result in calls[plain].results:
                assert torch.equal(got[result], want[result]), (shape, name, result)
            assert not other_bits_in_place(functions, calls[name], got)
        for name, plain, result, other in (
            ("after", "forward", "y", "residual"), ("skip", "backward", "dx", "skip"),
        ):  # fmt: skip
            got = run(functions, given, calls[name])
            want = run(functions, {k: got[k] for k in calls[plain].operands}, calls[plain])
            right = want[result].double() + got[other].double()
            size = right.norm() + want[result].double().norm()
            assert (got[result].double() - right).norm() <= 2 * ROWS[dtype] * size, (shape, name)
            assert not other_bits_in_place(functions, calls[name], got)
