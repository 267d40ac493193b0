"""A small WaveNet in plain JAX: its dilated depthwise convolutions by this package, inside jax.jit.

The network is written with `jax.lax` alone.  `optimize` puts this package's kernels into its loss;
both sides train on the same noisy tones, and their losses are the same to rounding.
"""

import time

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import relay_wgrad.jax as rj

CHANNELS, LENGTH, BATCH, STEPS, RATE = 32, 256, 8, 30, 0.02


def network(weights, x):
    """x (N, 1, L): the next sample of each place."""
    first, layers, last = weights
    x = lax.conv(x, first, (1,), "SAME")
    for i, (depthwise, mixed) in enumerate(layers):
        dilation = 2**i
        past = [(dilation * (depthwise.shape[2] - 1), 0)]  # of each place what came before it
        y = lax.conv_general_dilated(
            x, depthwise, (1,), past, rhs_dilation=(dilation,), feature_group_count=CHANNELS
        )
        x = x + lax.conv(jnp.tanh(y), mixed, (1,), "SAME")
    return lax.conv(x, last, (1,), "SAME")


def loss(weights, x):
    return jnp.mean((network(weights, x)[:, :, :-1] - x[:, :, 1:]) ** 2)


def trained(objective, weights, batches):
    step = jax.jit(jax.value_and_grad(objective))
    losses, seconds = [], []
    for x in batches:
        began = time.perf_counter()
        value, gradients = jax.block_until_ready(step(weights, x))
        seconds.append(time.perf_counter() - began)
        losses.append(float(value))
        weights = jax.tree.map(lambda w, g: w - RATE * g, weights, gradients)
    return np.array(losses), 1e3 * float(np.median(seconds))


rng = np.random.default_rng(0)


def drawn(*shape):
    return jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[1] * shape[2]), "float32")


layers = [(drawn(CHANNELS, 1, 3), 0.3 * drawn(CHANNELS, CHANNELS, 1)) for _ in range(5)]
weights = (drawn(CHANNELS, 1, 1), layers, 0.1 * drawn(1, CHANNELS, 1))
places = np.arange(LENGTH) * rng.uniform(0.02, 0.2, (STEPS, BATCH, 1, 1))
batches = (np.sin(places) + 0.05 * rng.standard_normal(places.shape)).astype("float32")
plain, plain_ms = trained(loss, weights, batches)
with rj.recorded() as records:
    ours, ours_ms = trained(rj.optimize(loss), weights, batches)
print(f"loss {plain[0]:.3f} -> {plain[-1]:.3f}, by this package {ours[-1]:.3f}")
print(f"{len(records)} convolutions, {sum(not r.reason for r in records)} by this package")
print(f"milliseconds a step: lax {plain_ms:.1f}, this package {ours_ms:.1f}")
if not np.allclose(plain, ours, rtol=1e-3):
    raise SystemExit(f"the losses differ: {plain} and {ours}")
