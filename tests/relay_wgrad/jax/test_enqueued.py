"""A function of tensors as a call within XLA's programs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import tvm  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from relay_wgrad.jax.enqueued import enqueued  # noqa: E402


def test_results_are_the_callers() -> None:
    """Though the function writes over its own in its next call; of several threads."""
    kept = [tvm.runtime.empty((3, 4), "float32"), tvm.runtime.empty((), "float64")]

    def function(x: Any, y: Any) -> list[Any]:
        kept[0].copyfrom(x.numpy() * 2)
        kept[1].copyfrom(np.asarray(y.numpy().sum()))
        return kept

    like = [jax.ShapeDtypeStruct((3, 4), "float32"), jax.ShapeDtypeStruct((), "float64")]
    takes = [jax.ShapeDtypeStruct((3, 4), "float32"), jax.ShapeDtypeStruct((5,), "float64")]
    run = enqueued(function, takes, like, lambda to, made: made.copyto(to), "cpu")
    wrong: list[int] = []

    def work(number: int) -> None:
        given = [(jnp.full((3, 4), i + number, "float32"), jnp.ones(i + 1)) for i in range(20)]
        given = [(x, jnp.zeros(5).at[: len(y)].set(1.0)) for x, y in given]
        made = [run(*pair) for pair in given]
        wrong.extend(
            i for i, ((a, b), (x, y)) in enumerate(zip(made, given, strict=True))
            if not (bool((a == 2 * x).all()) and float(b) == float(y.sum()))
        )  # fmt: skip

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_results_in_the_places_of_what_is_donated() -> None:
    """Of one shape and dtype; what has no such result stays, and what is read is read before."""
    kept = [tvm.runtime.empty((64,), "float32") for _ in range(2)]

    def function(a: Any, b: Any, c: Any) -> list[Any]:
        kept[0].copyfrom(b.numpy() * 2)
        kept[1].copyfrom(a.numpy() + b.numpy() + c.numpy()[:64])
        return kept

    like = [jax.ShapeDtypeStruct((64,), "float32")] * 2
    takes = [*like, jax.ShapeDtypeStruct((65,), "float32")]
    run = enqueued(function, takes, like, lambda to, made: made.copyto(to), "cpu", [0, 2])
    a, b, c = jnp.arange(64.0, dtype="float32"), jnp.ones(64, "float32"), jnp.ones(65, "float32")
    place = a.unsafe_buffer_pointer()
    first, second = jax.block_until_ready(run(a, b, c))
    assert a.is_deleted()
    assert not b.is_deleted()
    assert not c.is_deleted()
    assert first.unsafe_buffer_pointer() == place
    assert bool((first == 2).all())
    assert bool((second == jnp.arange(64) + 2).all())


def test_what_a_function_raises_is_an_error_of_the_call() -> None:
    def function(x: Any) -> list[Any]:
        raise ValueError("no such number")

    like = [jax.ShapeDtypeStruct((2,), "float32")]
    run = enqueued(function, like, like, lambda to, made: None, "cpu")
    with pytest.raises(Exception, match="no such number"):
        jax.block_until_ready(run(jnp.ones(2, "float32")))
