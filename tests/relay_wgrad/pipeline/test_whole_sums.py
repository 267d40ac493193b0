"""Sums of everything are sums over rows first on CUDA, for many blocks; others stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import relax as R

from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.whole_sums import LEAST, WholeSums, in_rows
from tests.support.built import built
from tests.support.compiled import virtual_machine
from tests.support.cuda_source import cuda_source
from tests.support.schedules import CUDA

pytestmark = pytest.mark.usefixtures("registered")

Sum = Callable[[Any], Any]
WAYS: dict[str, Sum] = {
    "sum": R.sum,
    "sum of axes": lambda x: R.sum(x, list(range(x.ty.ndim)), keepdims=True),
    "collapse": lambda x: R.collapse_sum_to(x, R.shape((1,))),
    "collapse to a scalar": lambda x: R.collapse_sum_to(x, R.shape(())),
    "mean": R.mean,
}


def module(way: Sum, sizes: tuple[int, ...], dtype: str = "float32") -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(sizes, dtype))
    return built([x], lambda emit: emit(way(emit(R.multiply(x, x)))))


def rewritten(mod: tvm.IRModule) -> tvm.IRModule:
    with CUDA:
        return WholeSums()(mod)


def shapes_at_random(seed: int, count: int) -> list[tuple[int, ...]]:
    """Of one to five axes, with ones, rows of one element and of very many, and few elements."""
    rng, found = np.random.default_rng(seed), list[tuple[int, ...]]()
    while len(found) < count:
        sizes = tuple(int(n) for n in rng.choice([1, 2, 3, 7, 8, 14, 40, 64, 129, 5000],
                                                 int(rng.integers(1, 6))))  # fmt: skip
        if math.prod(sizes) < 2_000_000:
            found.append(sizes)
    return found


@pytest.mark.share(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(way: str, dtype: str) -> None:
    """Run on the CPU, beside float64."""
    changed = 0
    for i, sizes in enumerate([(4, 9, 11, 96), (70, 500, 1), (1 << 16,), *shapes_at_random(1, 6)]):
        mod = module(WAYS[way], sizes, dtype)
        made = rewritten(mod)
        relax.analysis.well_formed(made)
        assert tvm_ffi.structural_equal(made["main"].ret_ty, mod["main"].ret_ty)
        changed += "columns" in made.script()
        x = np.random.default_rng(i).standard_normal(sizes).astype(dtype)
        got = virtual_machine(made)["main"](tvm.runtime.tensor(x)).numpy()
        want = (x.astype("float64") ** 2).sum() / (x.size if way == "mean" else 1)
        np.testing.assert_allclose(got.astype("float64").item(), want, rtol=1e-5)
    assert changed >= 3


@pytest.mark.parametrize("sizes", [(1, LEAST - 1), (65537,), (1, 1, 65537)])
def test_what_stays(sizes: tuple[int, ...]) -> None:
    """Few elements, and a prime number of them."""
    assert "columns" not in rewritten(module(R.sum, sizes)).script()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str) -> None:
    """A mean's sum is float32; a sum in half stays, whose order of rounding is its own."""
    sizes = (64, 30, 40)
    assert "columns" not in rewritten(module(R.sum, sizes, dtype)).script()
    x = np.random.default_rng(0).uniform(90, 110, sizes).astype("float16")
    if dtype == "bfloat16":
        assert "columns" in rewritten(module(R.mean, sizes, dtype)).script()
        return
    param = relax.Var("x", relax.TensorType(sizes, dtype))
    made = rewritten(built([param], lambda emit: emit(R.mean(param))))
    got = virtual_machine(made)["main"](tvm.runtime.tensor(x)).numpy()
    assert got.dtype == dtype
    np.testing.assert_allclose(float(got), x.astype("float64").mean(), rtol=5e-4)


def test_sums_that_keep_an_axis_stay() -> None:
    mod = module(lambda x: R.sum(x, [0, 1]), (300, 20, 64))
    assert "columns" not in rewritten(mod).script()


def test_a_cpu_has_one_kernel() -> None:
    mod = module(R.sum, (64, 64, 64))
    with tvm.target.Target("llvm"):
        assert "columns" not in WholeSums()(mod).script()


def test_rows() -> None:
    """All elements, whole, in rows that neighbouring threads read and one block adds."""
    for sizes in shapes_at_random(2, 200):
        view = in_rows(list(sizes))
        if view is not None:
            assert math.prod(view) == math.prod(sizes)
            assert 8 <= view[-1] <= 4096
            assert math.prod(view[:-1]) > 1


@pytest.mark.parametrize("sizes", [(64, 56, 56, 96), (64, 224, 224, 1)])
def test_many_blocks(sizes: tuple[int, ...]) -> None:
    """What reads everything has many blocks."""
    executable = tvm.compile(
        module(R.sum, sizes), CUDA.with_host("llvm"), relax_pipeline=cuda_pipeline()
    )
    bodies = [t for t in cuda_source(executable.mod).split("__global__") if ") {" in t]
    (reads,) = (body for body in bodies if "x_ptr" in body)
    assert "blockIdx.x" in reads
