"""JAX functions by Relax beside JAX, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from relay_wgrad.frontend import GradientGraph, from_stablehlo
from tests.support.onnx.models import call


def joint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments to values and, by each argument that is float, the gradient of their sum with a
    factor of its own for each element."""

    def run(*xs: Any) -> Any:
        floats = [i for i, x in enumerate(xs) if jnp.issubdtype(x.dtype, jnp.floating)]

        def scalar(*xs: Any) -> Any:
            y = function(*xs)
            factors = np.sin(np.arange(y.size) + 1.0).reshape(y.shape)
            return (y * factors).sum(), y

        (_, y), grads = jax.value_and_grad(scalar, floats, has_aux=True)(*xs)
        return y, *grads

    return run


def results(graph: GradientGraph, given: Sequence[Any]) -> list[Any]:
    """What the compiled graph gives, as arrays."""
    arrays = [np.asarray(x) for x in given]
    made: Any = []
    if any(result.kind == "result" for result in graph.outputs):
        made = [x.numpy() for x in call(graph.module, "main", graph.arguments(arrays))]
    return [np.asarray(v) for v in graph.results(arrays, made)]


def errors(function: Callable[..., Any], given: Sequence[Any]) -> tuple[list[float], GradientGraph]:
    """The distance of each result from JAX's, relative to its norm or a millionth of all's."""
    lowered = jax.jit(function, keep_unused=True).lower(*given)
    graph = from_stablehlo(lowered)
    flat = jax.tree.leaves(tuple(given))
    got = results(graph, flat)
    wanted = [np.asarray(v) for v in jax.tree.leaves(lowered.compile()(*given))]
    assert [g.shape for g in got] == [w.shape for w in wanted]
    assert [g.dtype for g in got] == [w.dtype for w in wanted]
    total = float(np.sqrt(sum(float((w.astype("float64") ** 2).sum()) for w in wanted)))
    apart = [
        float(np.linalg.norm((g - w).ravel()))
        / max(float(np.linalg.norm(w.ravel())), 1e-6 * total, 1e-300)
        for g, w in zip(got, wanted, strict=True)
    ]
    return [np.inf if np.isnan(e) else e for e in apart], graph
