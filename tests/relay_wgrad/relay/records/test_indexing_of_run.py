"""Reads, writes and sums by index where only the run knows sizes, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay.types import ANY

pytestmark = pytest.mark.usefixtures("registered")
RNG = np.random.default_rng(11)
BEGIN = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test's numbers are the same whichever tests its process has run before."""
    RNG.bit_generator.state = BEGIN


def _run(body: Any, params: list[Any], *args: Any) -> Any:
    return relay.create_executor("vm").evaluate(relay.Function(params, body))(*args)


def _open(name: str, ndim: int, dtype: str = "float32") -> Any:
    return relay.var(name, shape=(ANY,) * ndim, dtype=dtype)


def _real(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def test_gather_counts_from_the_end_and_holds_within() -> None:
    x, i = _open("x", 2), _open("i", 2, "int32")
    which = np.array([[0, -1, 2, 9], [-9, 1, 0, 2]], "int32")
    data = _real(3, 4)
    got = _run(relay.gather(x, 0, i), [x, i], data, which)
    held = np.clip(np.where(which < 0, which + 3, which), 0, 2)
    np.testing.assert_array_equal(got.numpy(), np.take_along_axis(data, held, 0))
    none = _run(relay.gather(x, 0, i), [x, i], data[:0], which)
    np.testing.assert_array_equal(none.numpy(), np.zeros((2, 4)))


def test_gather_nd_with_a_batch() -> None:
    x, i = _open("x", 3), relay.var("i", shape=(1, ANY, ANY), dtype="int64")
    data, which = _real(2, 3, 4), np.array([[[1, 0], [-1, 7]]])
    got = _run(relay.gather_nd(x, i, batch_dims=1), [x, i], data, which)
    want = np.stack([data[0][[1, 0]], data[1][[2, 2]]])
    np.testing.assert_array_equal(got.numpy(), want)


def test_adv_index_repeats_indices() -> None:
    x = _open("x", 3)
    a, b = (relay.var("a", shape=(ANY, 1), dtype="int64"), _open("b", 1, "int64"))
    data, rows, columns = _real(3, 4, 2), np.array([[0], [-1]]), np.array([1, 3, -4])
    got = _run(relay.adv_index([x, a, b]), [x, a, b], data, rows, columns)
    np.testing.assert_array_equal(got.numpy(), data[rows, columns])


@pytest.mark.parametrize("mode", ["update", "add", "mul", "mean", "min", "max"])
def test_scatters_along_one_of_several_axes(mode: str) -> None:
    """What is outside is written nowhere, along the axis and beside it."""
    d, i, u = _open("d", 2), _open("i", 2, "int64"), _open("u", 2)
    data, new = _real(3, 4), _real(4, 3)
    index = np.array([[0, -1, 9], [1, -9, 3], [-4, 2, 2], [0, 1, 2]])
    got = _run(relay.scatter_elements(d, i, u, 1, mode), [d, i, u], data, index, new)
    want = data.copy()
    for r, c in np.ndindex(*index.shape):
        k = index[r, c] + (4 if index[r, c] < 0 else 0)
        if r < 3 and 0 <= k < 4:
            a, b = want[r, k], new[r, c]
            want[r, k] = {"update": b, "add": a + b, "mul": a * b, "mean": (a + b) / 2,
                          "min": min(a, b), "max": max(a, b)}[mode]  # fmt: skip
    np.testing.assert_allclose(got.numpy(), want, 1e-6)


@pytest.mark.share(3)
@pytest.mark.parametrize("shape", [(5,), (5, 3, 2)])
@pytest.mark.parametrize("known", [True, False])
def test_segments_that_the_run_counts(shape: tuple[int, ...], known: bool) -> None:
    """As many as the ids say; rows beyond the ids belong to none."""
    rows, ids = _real(*shape), np.array([2, 0, 2, 3], "int32")
    x = relay.var("x", shape=shape if known else (ANY,) * len(shape))
    i = relay.var("i", shape=(4 if known else ANY,), dtype="int32")
    want = np.zeros((6, *shape[1:]), "float32")
    np.add.at(want, ids, rows[:4])
    for count, made in ((4, relay.segment_sum(x, i)), (6, relay.segment_sum(x, i, 6))):
        got = _run(made, [x, i], rows, ids).numpy()
        np.testing.assert_allclose(got, want[:count], 1e-6)


def test_slices_by_size_of_unknown_axes() -> None:
    x, data = _open("x", 3), _real(4, 5, 6)
    made = relay.strided_slice(x, [1, -2], [2, -1], [1, 1], [0, 2], "size")
    np.testing.assert_array_equal(_run(made, [x], data).numpy(), data[1:3, :, 4:])


@pytest.mark.parametrize("name", ["max", "avg"])
def test_global_pools_of_unknown_images(name: str) -> None:
    # None negative: of a mean that cancels float32 has fewer digits than are asked for.
    x, data = relay.var("x", shape=(ANY, 3, ANY, ANY)), abs(_real(2, 3, 4, 5))
    made = getattr(relay.nn, f"global_{name}_pool2d")(x)
    want = getattr(data, {"max": "max", "avg": "mean"}[name])((2, 3), keepdims=True)
    np.testing.assert_allclose(_run(made, [x], data).numpy(), want, 1e-6)


def test_gaps_between_elements_of_unknown_sizes() -> None:
    x, data = _open("x", 2), _real(3, 4)
    want = np.ones((5, 10), "float32")
    want[::2, ::3] = data
    np.testing.assert_array_equal(_run(relay.nn.dilate(x, [2, 3], 1.0), [x], data).numpy(), want)
    assert _run(relay.nn.dilate(x, [2, 3]), [x], data[:1]).numpy().shape == (1, 10)


def test_bounds_that_are_joined() -> None:
    """The sizes of a slice are told by a vector of parts, of which one is a constant."""
    x, n = relay.var("x", shape=(9, 7)), relay.var("n", shape=(1,), dtype="int64")
    zeros, ones = (relay.const(np.array([v, v]), "int64") for v in (0, 1))
    end = relay.concatenate([n, relay.const(np.array([3]), "int64")], 0)
    data = _real(9, 7)
    got = _run(relay.strided_slice(x, zeros, end, ones), [x, n], data, np.array([4]))
    np.testing.assert_array_equal(got.numpy(), data[:4, :3])
