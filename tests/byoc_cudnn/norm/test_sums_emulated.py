"""Sums that normalizations' passes make, on a device that is the CPU: of what is normalized, behind
the activation, of two gradients, and of what comes by another way.

A call that is given the sum, or gives what is added to, is compared with float64 elsewhere; here a
sum that is rounded is compared bit for bit with that call, one that is not with float64.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from byoc_cudnn.norm import NormCall, check
from tests.support import cuda_emulated
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.norm_groups import alpha_of, expected
from tests.support.norm_tensors import ROWS, Tensors

KERNELS = [  # dtype, groups, activation, shapes: rows side by side and no whole packs among them
    ("float16", 0, "relu", ((300, 64), (70, 13), (3, 40, 24), (2, 8))),
    ("bfloat16", 0, "leaky_relu", ((3, 40, 24), (45, 7))),
    ("float32", 4, "gelu", ((2, 90, 16), (3, 5, 20))),
    ("float64", 0, "silu", ((30, 6),)),
]
each_kernel = pytest.mark.parametrize(
    ("dtype", "groups", "activation", "shape"),
    [(*kernel[:3], shape) for kernel in KERNELS for shape in kernel[3]],
    ids=str,
)
longer = pytest.mark.longer_cases(
    "False-bfloat16", "True-bfloat16", "False-float64", "True-float64",
    why="a compilation for each kernel",
)  # fmt: skip
both_ways = pytest.mark.parametrize("together", [False, True])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sums")


def call_of(direction: str, dtype: str, groups: int, activation: str, **how: Any) -> NormCall:
    alpha = alpha_of(activation)
    call = NormCall("f", direction, dtype, activation, grouped=groups > 0, alpha=alpha, **how)
    assert check(call), check(call).reason
    return call


def added(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In the dtype of the sums, then rounded."""
    wide = np.float64 if a.dtype == np.float64 else np.float32
    return aligned((a.astype(wide) + b.astype(wide)).astype(a.dtype))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit, but for which NaN one is."""
    wide = [v.astype("float64") for v in (a, b)]
    signs = [np.signbit(v) & ~np.isnan(v) for v in wide]
    return np.array_equal(*wide, equal_nan=True) and np.array_equal(*signs)


@longer
@each_kernel
@both_ways
def test_what_is_normalized(
    folder: Path, dtype: str, groups: int, activation: str, shape: tuple[int, ...], together: bool
) -> None:
    """Also with what is not finite in one of both, and a residual before the activation."""
    how: dict[str, Any] = {"residual": True} if activation in ("relu", "leaky_relu") else {}
    plain = call_of("forward", dtype, groups, activation, **how)
    call = replace(plain, total=True)
    assert check(call)
    parts = Tensors(shape, dtype, groups=groups).ready(call)
    if parts["more"].size > 40:
        parts["more"].reshape(-1)[[3, 40]] = np.nan, np.inf
    whole = Tensors(shape, dtype, groups=groups)
    whole |= {name: parts[name] for name in plain.operands}
    whole["x"] = added(parts["x"], parts["more"])
    given = {name: parts[name].copy() for name in ("x", "more")}
    launched = [
        cuda_emulated.norm(folder, one, t.ready(one), together)
        for one, t in ((call, parts), (plain, whole))
    ]
    assert launched[0] == launched[1]
    for name in plain.results:
        assert same(parts[name], whole[name]), name
    assert same(parts["total"], whole["x"])
    assert all(same(parts[name], value) for name, value in given.items())


@longer
@each_kernel
@both_ways
def test_behind_the_activation(
    folder: Path, dtype: str, groups: int, activation: str, shape: tuple[int, ...], together: bool
) -> None:
    call = call_of("forward", dtype, groups, activation, residual=True, after=True)
    t = Tensors(shape, dtype, groups=groups).ready(call)
    cuda_emulated.norm(folder, call, t, together)
    wide = {n: torch.tensor(t[n].astype("float64")) for n in ("x", "gamma", "beta")}
    plain = replace(call, residual=False, after=False)
    alone = Tensors(shape, dtype, groups=groups)
    alone |= {name: t[name] for name in plain.operands}
    cuda_emulated.norm(folder, plain, alone.ready(plain), together)
    y = torch.tensor(alone["y"].astype("float64"))  # tells the sides of corners
    want = expected(wide, torch.zeros(shape), y, groups, activation)["y"].numpy()
    want = want + t["residual"].astype("float64")
    got = t["y"].astype("float64")
    assert np.linalg.norm(got - want) <= 2 * ROWS[dtype] * np.linalg.norm(want)
    for name in ("mean", "rstd"):
        assert same(t[name], alone[name]), name
    t["residual"].reshape(-1)[5] = np.nan
    cuda_emulated.norm(folder, call, t, together)
    assert np.flatnonzero(np.isnan(t["y"].reshape(-1).astype("float64"))).tolist() == [5]


@longer
@each_kernel
@both_ways
def test_two_gradients(
    folder: Path, dtype: str, groups: int, activation: str, shape: tuple[int, ...], together: bool
) -> None:
    """Their sum is a result, whatever the activation."""
    plain = call_of("backward", dtype, groups, activation)
    call = replace(plain, summed=True, total=True)
    assert check(call)
    parts = Tensors(shape, dtype, groups=groups).ready(call)
    whole = Tensors(shape, dtype, groups=groups)
    whole |= {name: parts[name] for name in plain.operands}
    whole["dy"] = added(parts["dy"], parts["dy2"])
    for one, t in ((call, parts), (plain, whole)):
        cuda_emulated.norm(folder, one, t.ready(one), together)
    for name in plain.results:
        assert same(parts[name], whole[name]), name
    assert same(parts["total"], whole["dy"])


SKIPS: list[dict[str, Any]] = [
    {}, {"summed": True, "total": True}, {"residual": True, "bits": True, "summed": True}
]  # fmt: skip


@longer
@each_kernel
@both_ways
def test_what_comes_by_another_way(
    folder: Path, dtype: str, groups: int, activation: str, shape: tuple[int, ...], together: bool
) -> None:
    """Is added to dx before it is rounded; all else is as without it."""
    for how in SKIPS:
        if how.get("bits") and activation not in ("relu", "leaky_relu"):
            continue
        plain = call_of("backward", dtype, groups, activation, **how)
        call = replace(plain, skip=True)
        assert check(call)
        beside, alone = (Tensors(shape, dtype, groups=groups) for _ in range(2))
        beside.ready(call)
        alone |= {name: beside[name] for name in plain.operands}
        for one, t in ((call, beside), (plain, alone.ready(plain))):
            cuda_emulated.norm(folder, one, t, together)
        for name in plain.results[1:]:
            assert same(beside[name], alone[name]), (how, name)
        got, want = beside.wide("dx"), alone.wide("dx") + beside.wide("skip")
        size = np.linalg.norm(want) + np.linalg.norm(alone.wide("dx"))
        assert np.linalg.norm(got - want) <= 2 * ROWS[dtype] * size, how
        beside["skip"].reshape(-1)[7] = np.inf
        cuda_emulated.norm(folder, call, beside, together)
        assert np.flatnonzero(
            ~np.isfinite(beside["dx"].reshape(-1).astype("float64"))
        ).tolist() == [7]


@pytest.mark.longer_cases("bfloat16", "float32", "float64", why="a compilation for each kernel")
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_random_sizes(folder: Path, dtype: str) -> None:
    """Of each kernel many, also of few rows, against the calls that are given sums."""
    rng = np.random.default_rng(5)
    forward = call_of("forward", dtype, 0, "relu", total=True)
    back = call_of("backward", dtype, 0, "relu", summed=True, total=True)
    for _ in range(12):
        shape = (int(rng.integers(1, 90)), int(rng.integers(1, 41)))
        together = bool(rng.integers(2))
        for call in (forward, back):
            plain = replace(call, total=False, summed=False)
            one, two = ("x", "more") if call.forward else ("dy", "dy2")
            parts, whole = Tensors(shape, dtype).ready(call), Tensors(shape, dtype)
            whole |= {name: parts[name] for name in plain.operands}
            whole[one] = added(parts[one], parts[two])
            for each, t in ((call, parts), (plain, whole.ready(plain))):
                cuda_emulated.norm(folder, each, t, together)
            for name in plain.results:
                assert same(parts[name], whole[name]), (shape, name)
            assert same(parts["total"], whole[one]), shape
