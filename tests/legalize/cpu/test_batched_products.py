"""Products of many small matrices against NumPy in float64, into outputs full of NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.target import Target

from legalize import cpu
from legalize.cpu.batched_products import batches

HOST = cpu.host_target()
TARGETS = {
    "host": HOST,
    "sse2": Target({"kind": "llvm", "num-cores": 2}),
    "one core": Target({"kind": "llvm", "num-cores": 1}),
}
ERROR = {"float32": 2e-6, "float64": 1e-14}
_random = np.random.default_rng(7)
SIZES = [
    (1, 1, 1), (1, 1, 40), (5, 3, 1), (14, 32, 8), (15, 33, 9), (197, 197, 64), (49, 32, 49),
    *(tuple(int(x) for x in _random.integers(1, 90, 3)) for _ in range(12)),
]  # fmt: skip


def product(sizes: Any, dtype: str, target: Target, count: int = 3) -> tuple[Any, Any]:
    """(the kernel's, NumPy's)."""
    rows, columns, terms = sizes
    kernel = tvm.compile(batches(sizes, dtype, target), target=target)["main"]
    random = np.random.default_rng(sum(sizes))
    a = random.standard_normal((count, rows, terms)).astype(dtype)
    b = random.standard_normal((count, terms, columns)).astype(dtype)
    out = tvm.runtime.tensor(np.full((count, rows, columns), np.nan, dtype))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    return out.numpy(), a.astype("float64") @ b.astype("float64")


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, int, int], dtype: str) -> None:
    got, want = product(sizes, dtype, HOST)
    assert np.linalg.norm(got - want) <= ERROR[dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target: str) -> None:
    got, want = product((29, 37, 18), "float32", TARGETS[target])
    assert np.linalg.norm(got - want) <= ERROR["float32"] * np.linalg.norm(want)


@pytest.mark.parametrize("count", [0, 1, 17])
def test_any_number_of_matrices(count: int) -> None:
    got, want = product((9, 20, 6), "float32", HOST, count)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= ERROR["float32"] * max(np.linalg.norm(want), 1.0)


def test_the_same_bits_on_any_number_of_cores() -> None:
    some = [product((61, 45, 77), "float32", Target({"kind": "llvm", "num-cores": n}))[0]
            for n in (1, 2, 7)]  # fmt: skip
    assert all(np.array_equal(some[0], other) for other in some[1:])


def test_nan_and_infinity_stay_in_their_rows() -> None:
    """Columns that are computed twice are no sums of others' values."""
    kernel = tvm.compile(batches((4, 21, 5), "float32", HOST), target=HOST)["main"]
    a, b = np.ones((1, 4, 5), "float32"), np.ones((1, 5, 21), "float32")
    a[0, 1, 2], b[0, 0, 20] = np.nan, np.inf
    out = tvm.runtime.tensor(np.zeros((1, 4, 21), "float32"))
    kernel(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_array_equal(out.numpy(), a @ b)
