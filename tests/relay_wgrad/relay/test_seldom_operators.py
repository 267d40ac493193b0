"""Operators of Relay that no network of the other tests has: numbers, and types that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay.op import random

pytestmark = pytest.mark.usefixtures("registered")


def ran(build: Any, *values: np.ndarray) -> np.ndarray:
    params = [relay.var(f"x{i}", shape=v.shape, dtype=str(v.dtype)) for i, v in enumerate(values)]
    result: np.ndarray = (
        relay.create_executor().evaluate(relay.Function(params, build(*params)))(*values).numpy()
    )
    return result


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("axes", "layout"), [(1, "NCW"), (3, "NCDHW")])
def test_pools_of_whole_lines_and_volumes(kind: str, axes: int, layout: str) -> None:
    x = drawn(2, 3, *(4, 5, 6)[:axes])
    pool = getattr(relay.nn, f"global_{kind}_pool{axes}d")
    want = getattr(x, "max" if kind == "max" else "mean")(tuple(range(2, 2 + axes)), keepdims=True)
    np.testing.assert_allclose(ran(lambda v: pool(v, layout=layout), x), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("begin", "end", "strides"),
    [([1, 0], [4, 2], [1, 1]), ([-1, 3], [-5, 0], [-2, -1]), ([2], [3], [1])],
)
def test_a_slice_is_set(begin: list[int], end: list[int], strides: list[int]) -> None:
    x = drawn(5, 4)
    place = tuple(slice(*bounds) for bounds in zip(begin, end, strides, strict=True))
    want = x.copy()
    want[place] = values = drawn(*x[place].shape) + 7
    got = ran(lambda a, v: relay.strided_set(a, v, begin, end, strides), x, values)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("shape", "bounds", "message"),
    [
        ((2, 4), ([0], [3], [1]), r"v must be of \(3, 4\), got"),
        ((2, 4), ([0], [2], [0]), "strides must not be 0"),
        ((2,), ([0], [2], [1]), "v must have data's axes"),
        ((2, 4), ([0, 0, 0], [2], [1]), "begin has more numbers than"),
    ],
)
def test_a_slice_that_does_not_fit(shape: Any, bounds: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ran(lambda a, v: relay.strided_set(a, v, *bounds), drawn(5, 4), drawn(*shape))


def test_an_lstm_of_the_testing_package() -> None:
    """One step from states of zeros: the gates in the order in which Relay's cell splits them."""
    module, params = relay.testing.lstm.get_workload(iterations=1, num_hidden=4, batch_size=2)
    x = drawn(2, 4)
    got = relay.create_executor(mod=module).evaluate()(x, **params).numpy()
    p = {name: value.numpy() for name, value in params.items()}
    gates = x @ p["lstm0_i2h_weight"].T + p["lstm0_i2h_bias"] + p["lstm0_h2h_bias"]
    enter, _, new, leave = np.split(gates, 4, 1)

    def sigmoid(v: Any) -> Any:
        return 1 / (1 + np.exp(-v))

    want = sigmoid(leave) * np.tanh(sigmoid(enter) * np.tanh(new))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_types_of_operands_that_have_none() -> None:
    """A deformable convolution's offset is as large as its result; a product's side has units."""
    x = relay.var("x", shape=(1, 4, 9, 11))
    offset, weight = relay.var("offset"), relay.var("weight")
    call = relay.nn.deformable_conv2d(
        x, offset, weight, strides=(2, 1), padding=(1, 1), kernel_size=(3, 3), channels=6,
        deformable_groups=2,
    )  # fmt: skip
    made = relay.transform.InferType()(relay.IRModule.from_expr(call))["main"]
    shapes = [tuple(p.checked_type.shape) for p in made.params]
    assert shapes == [(1, 4, 9, 11), (1, 36, 5, 11), (6, 4, 3, 3)]
    for transposed, want in ((False, (5, 7)), (True, (7, 5))):
        product = relay.nn.matmul(
            relay.var("a", shape=(2, 5)), relay.var("b"), units=7, transpose_b=transposed
        )
        made = relay.transform.InferType()(relay.IRModule.from_expr(product))["main"]
        assert tuple(made.params[1].checked_type.shape) == want


def test_keys_of_seeds() -> None:
    words = random.threefry_key((5 << 64) + 3).data.numpy()
    assert words.tolist() == [3, 5, 0, 0, 0, 0, 0, 0, 1 << 63, 0]
    for seed in (-1, 1 << 256):
        with pytest.raises(ValueError, match="the seed must be from 0"):
            random.threefry_key(seed)


@pytest.mark.parametrize("factor", [2.0, 1.5])
def test_sizes_that_follow_an_unknown_one(factor: float) -> None:
    """A whole multiple is one; another is rounded, halves away from zero."""
    n = relay.Any()
    x = relay.var("x", shape=(1, 3, n, 4))
    made = relay.testing.run_infer_type(relay.nn.upsampling(x, factor, factor))
    assert made.checked_type.shape[3] == 4 * factor
