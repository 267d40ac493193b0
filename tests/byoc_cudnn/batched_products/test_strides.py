"""Strides of views are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from byoc_cudnn.batched_products import Matrices
from byoc_cudnn.batched_products.strides import matrices, permuted, repeated, reshaped, whole


def test_views_are_those_of_an_array() -> None:
    """Permutations and reshapes at random: a view is found where NumPy has one, and is that."""
    rng, views, copies = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        sizes = [int(n) for n in rng.integers(1, 5, rng.integers(2, 5))]
        array, axes = np.arange(np.prod(sizes)).reshape(sizes), whole(sizes)
        for _ in range(3):
            order = [int(n) for n in rng.permutation(array.ndim)]
            array, axes = array.transpose(order), permuted(axes or [], order)
            cut = int(rng.integers(array.ndim))
            merged = [*array.shape[:cut], *array.shape[cut + 1 :]]
            merged = [*merged, array.shape[cut]] if cut == array.ndim - 1 else [
                *array.shape[:cut], array.shape[cut] * array.shape[cut + 1],
                *array.shape[cut + 2 :],
            ]  # fmt: skip
            axes = reshaped(axes, merged)
            made = array.reshape(merged)
            shared = np.shares_memory(made, array)
            assert (axes is not None) == shared or array.size == 1
            if axes is None:
                copies += 1
                break
            views += 1
            array = made
            assert [n for n, _ in axes] == list(array.shape)
            strides = [s // array.itemsize for s in array.strides]
            assert all(n == 1 or a == b for (n, a), b in zip(axes, strides, strict=True))
    assert min(views, copies) > 200


def test_repeated_axes_have_no_stride() -> None:
    assert repeated([(1, 6), (2, 3), (3, 1)], [5, 4, 2, 3]) == [(5, 0), (4, 0), (2, 3), (3, 1)]
    assert reshaped([(5, 0), (4, 0), (6, 1)], [20, 2, 3]) == [(20, 0), (2, 3), (3, 1)]


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        ([(4, 6), (2, 3), (3, 1)], Matrices(3, 6)),
        ([(4, 6), (3, 1), (2, 3)], Matrices(3, 6, turned=True)),
        ([(5, 24), (4, 6), (2, 3), (3, 1)], Matrices(3, 6)),
        ([(4, 6), (5, 24), (2, 3), (3, 1)], None),
        ([(4, 3), (2, 12), (3, 1)], Matrices(12, 3)),
        ([(4, 6), (2, 0), (3, 1)], None),
        ([(4, 1), (2, 12), (3, 4)], None),
        ([(2, 3), (3, 1)], Matrices(3, 0)),
        ([(1, 0), (2, 3), (3, 1)], Matrices(3, 0)),
    ],
)
def test_matrices(axes: list[tuple[int, int]], found: Matrices | None) -> None:
    assert matrices(axes) == found
