"""JAX in float64, for the tests of this folder."""

from tests.support.jax.float64 import float64 as float64
