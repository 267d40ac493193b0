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
    run = enqueued(function, like, lambda to, made: made.copyto(to), "cpu")
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


def test_what_a_function_raises_is_an_error_of_the_call() -> None:
    def function(x: Any) -> list[Any]:
        raise ValueError("no such number")

    like = [jax.ShapeDtypeStruct((2,), "float32")]
    run = enqueued(function, like, lambda to, made: None, "cpu")
    with pytest.raises(Exception, match="no such number"):
        jax.block_until_ready(run(jnp.ones(2, "float32")))
