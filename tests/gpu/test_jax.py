"""JAX's gradients on a device: arrays go both ways by DLPack, and streams are kept apart."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from relay_wgrad.jax import compiled, value_and_grad
from tests.support.jax.plain_networks import problem

jax = pytest.importorskip("jax")

QUICK = ("cudnn", "cuda_direct")  # kernels of CUTLASS are minutes of a compiler's work
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]


def distances(got: Any, wanted: Any) -> list[float]:
    """Of each array, of its norm, the greatest last."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    return sorted(
        float(np.linalg.norm(np.asarray(one, "float64") - want) / np.linalg.norm(want))
        for one, want in pairs
    )


def arguments(name: str) -> Any:
    """(a loss, its arguments in float32 on JAX's default device, in float64 on the CPU)."""
    loss, exact = problem(name)
    low = jax.tree.map(lambda a: a.astype("float32") if a.dtype == "float64" else a, exact)
    return loss, jax.device_put(low), exact


@pytest.mark.parametrize("name", ["cnn-NHWC-0", "cnn-NCHW-1"])
def test_value_and_grad(name: str) -> None:
    loss, given, exact = arguments(name)
    step = value_and_grad(loss, given, device="cuda:0", backends=QUICK)
    cpu = jax.devices("cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        # In one program: XLA takes minutes to compile its operators one by one.
        reference = jax.jit(jax.value_and_grad(loss))
        wanted = jax.tree.map(np.asarray, reference(*jax.device_put(exact, cpu)))
    got = step(*given)
    assert all(d.platform == "gpu" for leaf in jax.tree.leaves(got) for d in leaf.devices())
    found = distances(got, wanted)
    # tf32; and where a pooling takes another maximum of two that are near, its layer's weight.
    assert found[len(found) // 2] < 1e-3, found
    assert found[-1] < 5e-2, found
    sources = {c.source for c in step.convolutions}
    assert sources, "no convolution"
    assert not [s for s in sources if s.startswith("generated")], sources


def test_steps_follow_each_other() -> None:
    """What JAX computes of results, and what becomes of arguments that nobody holds any more."""
    loss, (params, x, labels), _ = arguments("cnn-NHWC-0")
    step = value_and_grad(loss, (params, x, labels), device="cuda:0", backends=QUICK)
    reference = jax.jit(jax.value_and_grad(loss))

    def trained(function: Any) -> tuple[list[float], Any]:
        now, losses = params, []
        for i in range(30):
            value, gradient = function(now, x * (1 + i % 3), labels)
            now = jax.tree.map(lambda p, g: p - 0.01 * g, now, gradient)
            losses.append(float(value))
        return losses, now

    ours, last = trained(step)
    theirs, wanted = trained(reference)
    assert np.allclose(ours, theirs, rtol=5e-3), (ours, theirs)
    assert distances(last, jax.tree.map(np.asarray, wanted))[-1] < 5e-3


def long_work(x: Any) -> Any:
    """x, after a while of the GPU's; without a loop, of which the host may wait for each turn."""
    size = 8192
    a = jax.numpy.full((size, size), 1.0 / size, "float32") + x.ravel()[0] * 0
    for _ in range(50):
        a = a @ a
    return x + a[0, 0] * 0


def test_a_call_waits_for_nothing() -> None:
    """Neither for what computes its arguments, which are given up right after it, nor for another
    function's; and what takes its results has them."""
    x = jax.device_put(np.arange(1 << 16, dtype="float32"))
    first = compiled(lambda a: (a * 2 + 1, a.sum()), (x,), device="cuda:0", backends=QUICK)
    second = compiled(lambda a: a * a - 3, (x,), device="cuda:0", backends=QUICK)
    work = jax.jit(long_work)
    for _ in range(2):  # the first time things are compiled, and CUDA loads kernels when none runs
        jax.block_until_ready((work(x), first(x)[0] + 0, second(x)))
    began = time.perf_counter()
    jax.block_until_ready(work(x))
    whole = time.perf_counter() - began
    times = [time.perf_counter()]
    given = work(x)
    times.append(time.perf_counter())
    product, total = first(given)
    times.append(time.perf_counter())
    other = second(given)
    last = second(product)
    times.append(time.perf_counter())
    is_early = not given.is_ready()
    given.delete()
    product_again = product + 0
    product.delete()
    times.append(time.perf_counter())
    spent = [b - a for a, b in pairwise(times)]
    y = np.arange(1 << 16, dtype="float32")
    for got, want in (
        (product_again, y * 2 + 1), (total, y.sum(dtype="float64")), (other, y * y - 3),
        (last, (y * 2 + 1) ** 2 - 3),
    ):  # fmt: skip
        assert np.allclose(got, want, rtol=1e-5)
    assert is_early, (spent, whole)
    assert sum(spent) < whole / 2, (spent, whole)


def test_donated_weights() -> None:
    """A loop of updates, whose results lie where the weights did; nobody waits within it."""
    like = jax.device_put(np.ones((256, 256), "float32"))
    step = compiled(
        lambda w, x: (w - 0.1 * x, (w * x).sum()), (like, like), device="cuda:0", backends=QUICK,
        donate_argnums=0,
    )  # fmt: skip
    weights, x = jax.device_put(np.zeros((256, 256), "float32")), like * 2
    places = set[int]()
    for _ in range(20):
        before = weights
        weights, total = step(before, x)
        assert before.is_deleted()
        places.add(weights.unsafe_buffer_pointer())
    assert len(places) == 1
    assert np.allclose(weights, -0.2 * 20, rtol=1e-5)
    assert np.allclose(total, -0.2 * 19 * 2 * weights.size, rtol=1e-5)


def test_threads() -> None:
    x = jax.device_put(np.arange(1 << 20, dtype="float32"))
    function = compiled(lambda a, b: (a * b, a + b), (x, x), device="cuda:0", backends=QUICK)
    wrong: list[str] = []

    def work(number: int) -> None:
        for i in range(20):
            a, b = x + number, x * 0 + i
            product, total = function(a, b)
            if not (bool((product == a * b).all()) and bool((total == a + b).all())):
                wrong.append(f"{number}, {i}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
