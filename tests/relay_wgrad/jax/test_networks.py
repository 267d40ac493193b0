"""Networks of flax and equinox, unchanged, trained with optax inside `jax.jit` by `optimize`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax import numpy as jnp

import relay_wgrad.jax as rj
from tests.support.jax.networks import losses

SIZES = {
    "resnet18": {"width": 8, "size": 64, "n": 8},
    "unet": {"width": 8, "size": 16, "depth": 1},
    "wavenet": {"width": 8, "layers": 4, "size": 64},
}
CONVOLUTIONS = {"resnet18": 20, "unet": 5, "wavenet": 14}


@pytest.mark.share(2)
@pytest.mark.longer_cases("resnet18", "unet-step", "wavenet-loss", why="XLA compiles both sides")
@pytest.mark.parametrize("whole", [False, True], ids=["loss", "step"])
@pytest.mark.parametrize("name", SIZES)
def test_a_training_has_the_losses_of_laxs(name: str, whole: bool) -> None:
    wanted = losses(name, **SIZES[name])
    with rj.recorded() as records:
        found = losses(name, rj.optimize, whole, **SIZES[name])
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    assert [record.reason for record in records if record.reason] == []
    # Of the first one nobody asks for the data's gradient.
    count = CONVOLUTIONS[name]
    assert len(records) == (3 * count - 1 if whole else count)
    if whole:  # a dgrad of stride 1 may be read as an fprop, a wgrad of one tap as either
        assert Counter(r.problem.split()[0] for r in records)["wgrad"] >= count // 2


class Small(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(3, 4, (3, 3), strides=2, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(nnx.tanh(self.norm(self.conv(x))))


def wrapped(where: str) -> Any:
    """A step by `optimize` around the loss, around the step within `nnx.jit`, or around that."""

    def loss(model: Small, x: Any) -> Any:
        return (model(x) ** 2).mean()

    def step(model: Small, state: Any, x: Any) -> Any:
        around = rj.optimize if where == "loss" else lambda function: function
        value, gradients = nnx.value_and_grad(around(loss))(model, x)
        state.update(model, gradients)
        return value

    inner = nnx.jit(rj.optimize(step) if where == "step" else step)
    return rj.optimize(inner) if where == "jit" else inner


@pytest.mark.longer_cases("step", "jit")
@pytest.mark.parametrize("where", ["loss", "step", "jit"])
def test_what_a_function_writes_into_nnx_objects(where: str) -> None:
    """Statistics, the count of a dropout's keys, an optimizer's moments, and the weights."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 8, 3)), "float32")
    each = []
    for place in ("", where):
        model = Small()
        state = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
        step = wrapped(place)
        each.append(([float(step(model, state, x)) for _ in range(3)], nnx.state((model, state))))
    (wanted, after), (found, ours) = each
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert len(set(wanted)) == 3
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(after), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("called", [lambda model: model, lambda model: model.__call__])
def test_an_nnx_object_that_is_the_function(called: Any) -> None:
    """Its statistics are written into it."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 8, 3)), "float32")
    ours, twin = Small(), Small()
    found, wanted = rj.optimize(called(ours))(x), twin(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    each = [jax.tree.leaves(nnx.state(model, nnx.BatchStat)) for model in (ours, twin)]
    assert each[0]
    for a, b in zip(*each, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_nnx_objects_of_another_structure_are_refused() -> None:
    def adds(model: Small) -> Any:
        model.more = nnx.Param(jnp.zeros(3))
        return model.conv.kernel[...].sum()

    with pytest.raises(ValueError, match="adds adds or takes away parts of an nnx object"):
        rj.optimize(adds)(Small())
    with pytest.raises(ValueError, match="returns an nnx object that is one of its arguments"):
        rj.optimize(lambda model: (model.conv, 1))(Small())
