"""Programs of symbolic sizes compute at each size what the program of numbers does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from legalize.cpu import host_target
from relay_wgrad import relay
from relay_wgrad.relay import te
from tests.support.relay.symbolic_programs import Program, program

pytestmark = pytest.mark.usefixtures("registered")
# Of 0 to 33 TVM refuses to compile 5 and 33, whose loops it cannot fuse.
SEEDS = (0, 1, 2, 3, 4, 6, 7, 8)
SIZES = ({"n": 1, "h": 5, "w": 7}, {"n": 3, "h": 8, "w": 6})


def ran(function: relay.Function) -> Any:
    """The function compiled, as one of arrays."""
    mod = relay.IRModule.from_expr(function)
    made = relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()
    return lambda *arrays: made(*arrays).numpy()


def check(made: Program) -> None:
    symbolic = ran(made.symbolic())
    for sizes in SIZES:
        inputs = made.inputs(sizes)
        got, want = symbolic(*inputs), ran(made.static(sizes))(*inputs)
        assert got.shape == want.shape, (made, sizes)
        distance = np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)
        assert distance < 1e-5, (made, sizes, distance)


@pytest.mark.share(7)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed: int) -> None:
    check(program(seed))


def test_sizes_that_must_be_equal_are_compared_at_the_run() -> None:
    m, k = te.size_var("m"), te.size_var("k")
    x, w = relay.var("x", shape=(2, m)), relay.var("w", shape=(3, k))
    dense = ran(relay.Function([x, w], relay.nn.dense(x, w)))
    a, b = np.ones((2, 6), "float32"), np.ones((3, 6), "float32")
    assert np.array_equal(dense(a, b), a @ b.T)
    with pytest.raises((RuntimeError, ValueError), match=r"Mismatched|shape"):
        dense(a, b[:, :4].copy())


def test_unknown_sizes_that_meet_are_one() -> None:
    x, y = (relay.var(name, shape=(relay.Any(), 4)) for name in "xy")
    add = ran(relay.Function([x, y], x + y))
    a, b = np.ones((3, 4), "float32"), np.full((3, 4), 2, "float32")
    assert np.array_equal(add(a, b), a + b)
    with pytest.raises((RuntimeError, ValueError), match=r"Mismatched|shape"):
        add(a, b[:2].copy())


def test_what_the_run_cannot_compare_is_refused() -> None:
    n = te.size_var("n")
    x = relay.var("x", shape=(n, 3))
    function = relay.Function([x], relay.reshape(x, (-1, 7)))
    assert (
        str(relay.testing.run_infer_type(function).ret_type) == "Tensor[(n * 3 // 7, 7), float32]"
    )
    with pytest.raises(ValueError, match="reshape: only the run knows whether"):
        relay.lower(relay.IRModule.from_expr(function))


def test_a_function_is_inlined_at_two_sizes() -> None:
    n, m = te.size_var("n"), te.size_var("m")
    mod = relay.IRModule()
    x = relay.var("x", shape=(n, 3))
    mod["double"] = relay.Function([x], relay.add(x, x), relay.TensorType((n, 3)))
    y, z = relay.var("y", shape=(m, 3)), relay.var("z", shape=(5, 3))
    double = relay.GlobalVar("double")
    out = relay.Tuple((relay.Call(double, (y,)), relay.Call(double, (z,))))
    mod["main"] = relay.Function([y, z], out)
    mod = relay.transform.InferType()(mod)
    types = mod["main"].ret_type
    assert types == relay.TupleType((relay.TensorType((m, 3)), relay.TensorType((5, 3))))
    run = relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()
    a, b = np.ones((2, 3), "float32"), np.ones((5, 3), "float32")
    assert [out.numpy().shape for out in run(a, b)] == [(2, 3), (5, 3)]


@pytest.mark.parametrize("mode", ["clip", "wrap", "fast"])
def test_take_along_an_axis_of_unknown_size(mode: str) -> None:
    """An index out of bounds reads no other memory."""
    x = relay.var("x", shape=(te.size_var("n"), 2))
    i = relay.var("i", shape=(4,), dtype="int32")
    take = ran(relay.Function([x, i], relay.take(x, i, axis=0, mode=mode)))
    data, at = np.arange(6, dtype="float32").reshape(3, 2), np.array([2, 0, 7, -1], "int32")
    want = np.take(data, at, 0, mode="wrap" if mode == "wrap" else "clip")
    assert np.array_equal(take(data, at), want)


def test_means_over_an_axis_of_unknown_size() -> None:
    n = te.size_var("n")
    x = relay.var("x", shape=(n, 3), dtype="int32")
    data = np.array([[1, 2, 3], [5, 7, 10]], "int32")
    mean = ran(relay.Function([x], relay.mean(x, 0)))
    assert np.array_equal(mean(data), data.sum(0) // 2)
    y = relay.var("y", shape=(n, 3))
    variance = ran(relay.Function([y], relay.variance(y, 0, unbiased=True)))
    assert np.allclose(variance(data.astype("float32")), data.var(0, ddof=1))
    entropy = ran(relay.Function([y], relay.nn.cross_entropy_with_logits(y, y)))
    real = data.astype("float32")
    assert np.allclose(entropy(real), -(real * real).sum() / 2)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("layout", "shape", "of_the_run"),
    [
        ("NCHW4c", (2, 3, 7, 9, 4), (0, 2, 3)),
        ("NHWC4c", (2, 7, 9, 6, 4), (0, 1, 2, 3)),
        ("NCHW4c2c", (2, 3, 7, 9, 4, 2), (0, 2, 3)),
    ],
)
def test_images_in_blocks(layout: str, shape: tuple[int, ...], of_the_run: tuple[int, ...]) -> None:
    """A stride makes sizes of sizes, by which TVM's reshape divides in code without an end."""
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    results = []
    for sizes in (shape, [relay.Any() if i in of_the_run else n for i, n in enumerate(shape)]):
        x = relay.var("x", shape=sizes)
        pool = relay.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1), layout=layout)
        results.append(ran(relay.Function([x], pool))(data))
    assert np.array_equal(*results)


@pytest.mark.longer
def test_gradients_of_a_symbolic_batch() -> None:
    """A layer with a normalization by the batch, a join and means: as of the program of numbers."""

    def gradients(n: Any) -> Any:
        x, w = relay.var("x", shape=(n, 4, 6, 6)), relay.var("w", shape=(4, 4, 3, 3))
        y = relay.nn.relu(relay.nn.conv2d(x, w, strides=2))
        centred = relay.subtract(y, relay.mean(y, [0, 2], keepdims=True))
        spread = relay.variance(y, [0, 3], keepdims=True, unbiased=True)
        out = relay.concatenate([centred, relay.multiply(spread, y)], 1)
        function = relay.Function([x, w], relay.mean(out, [0, 1]))
        mod = relay.IRModule.from_expr(relay.transform.gradient(function, mode="first_order"))
        return relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()

    symbolic, rng = gradients(te.size_var("n")), np.random.default_rng(0)
    for batch in (2, 5):
        shapes = (batch, 4, 6, 6), (4, 4, 3, 3)
        inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        wanted = gradients(batch)(*inputs)[1]
        for got, want in zip(symbolic(*inputs)[1], wanted, strict=True):
            a, b = got.numpy(), want.numpy()
            assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(b)


def test_a_mask_of_another_sizes_name_is_memory_of_the_kernel() -> None:
    """Two open batches are one at the run: what compares them is no part of what chooses by it."""
    shape = (relay.Any(), 1, 37, 96)
    x, y = (relay.var(name, shape=shape, dtype="float32") for name in "xy")
    zero, quarter = (relay.const(np.float32(number)) for number in (0.0, 0.25))
    largest = relay.where(relay.greater(y, x), y, x)
    masked = relay.where(relay.greater(x, quarter), largest, zero)
    outs = [largest, relay.sum(masked, [1, 2]), relay.sum(relay.multiply(masked, x), [1, 2])]
    mod = relay.IRModule.from_expr(relay.Function([x, y], relay.Tuple(outs)))
    a, b = np.random.default_rng(0).standard_normal((2, 3, *shape[1:])).astype("float32")
    got = relay.create_executor("vm", mod, tvm.cpu(), host_target()).evaluate()(a, b)
    kept = np.where(a > 0.25, np.maximum(a, b), 0)
    wanted = np.maximum(a, b), kept.sum((1, 2)), (kept * a).sum((1, 2))
    for each, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(each.numpy(), want, rtol=1e-5, atol=1e-5)
