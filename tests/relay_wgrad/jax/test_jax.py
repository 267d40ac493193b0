"""JAX functions run by this package, on JAX's arrays."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

from relay_wgrad.jax import compiled, conv_general_dilated, value_and_grad  # noqa: E402
from tests.support.jax.plain_networks import problem  # noqa: E402


def same(got: Any, wanted: Any, bound: float) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, want in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert isinstance(one, jax.Array)
        assert one.dtype == want.dtype
        if one.dtype == bool:
            assert (one == want).all()
            continue
        assert float(jnp.linalg.norm(one - want)) <= bound * float(jnp.linalg.norm(want))


def test_value_and_grad() -> None:
    loss, (params, x, labels) = problem("cnn-NHWC-0")
    step = value_and_grad(loss, (params, x, labels))
    reference = jax.value_and_grad(loss)
    for factor in (1.0, 0.5):
        given = ([jnp.asarray(p * factor) for p in params], x * factor, labels)
        same(step(*given), reference(*given), 1e-12)
    assert [c.op for c in step.convolutions].count("conv2d_backward_weight") == 2
    assert step.graph.report is not None
    assert len(step.graph.report.raised) == 3  # nobody asked for the images' gradient


def test_trees_and_more_arguments() -> None:
    def f(tree: Any, flag: Any, y: Any) -> Any:
        value = jnp.where(flag, tree["a"] * y, tree["b"][0] + y).sum()
        return value, {"aux": y * 2, "n": jnp.arange(3), "flag": flag}

    tree = {"a": np.arange(3.0), "b": (np.ones(3),)}
    given = (tree, np.asarray([True, False, True]), jnp.asarray([3.0, 4.0, 5.0]))
    step = value_and_grad(f, given, (0, 2), has_aux=True)
    got = step(*given)
    same(got, jax.value_and_grad(f, (0, 2), has_aux=True)(*given), 1e-15)
    assert got[0][1]["flag"].dtype == bool
    plain = compiled(lambda x: (x, None), (np.ones(2),))
    assert plain(np.asarray([1.0, 2.0]))[0].tolist() == [1.0, 2.0]


def test_arrays_without_axes() -> None:
    """Numbers of Python and NumPy too, as arguments and as what a program knows at once."""

    def f(x: Any, factor: Any, unused: Any) -> Any:
        return (x * factor).sum()

    for factor in (2.0, np.float32(2.0), np.asarray(2.0), jnp.asarray(2.0)):
        given = (jnp.arange(3.0), factor, jnp.asarray(1.0))
        step = value_and_grad(f, given, (0, 1, 2))
        same(step(*given), jax.value_and_grad(f, (0, 1, 2))(*given), 1e-12)


def test_donated_arguments() -> None:
    """They are given up, but for one that is a result as it stands; weights of a loop of steps."""

    def step(weights: Any, x: Any, kept: Any) -> Any:
        gradient = jax.grad(lambda w: ((x @ w["a"] - w["b"]) ** 2).sum())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), kept

    x = np.random.default_rng(0).standard_normal((5, 3))
    first = {"a": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    run = compiled(step, (first, x, jnp.ones(4)), donate_argnums=(0, 2))
    weights, kept = jax.tree.map(jnp.copy, first), jnp.arange(4.0)
    wanted = first
    for _ in range(3):
        before = weights
        weights, kept = run(before, x, kept)
        wanted, _ = step(wanted, x, kept)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    same(weights, wanted, 1e-12)
    assert kept.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_refused() -> None:
    step = compiled(lambda x: x * 2, (np.ones((2, 3)),))
    with pytest.raises(ValueError, match=r"argument 0 is float32\[2, 3\], the example float64"):
        step(np.ones((2, 3), "float32"))
    with pytest.raises(
        ValueError, match=r"argument 0 is float64\[3\], the example float64\[2, 3\]"
    ):
        step(np.ones(3))
    with pytest.raises(ValueError, match="arguments are PyTreeDef"):
        step(np.ones((2, 3)), 1)
    with pytest.raises(ValueError, match="custom call 'lapack_"):
        compiled(jnp.linalg.cholesky, (np.eye(2),))
    with pytest.raises(ValueError, match="device must be"):
        compiled(jnp.sin, (np.eye(2),), device="tpu")
    with pytest.raises(ValueError, match="donate_argnums are of 1 arguments, got 1"):
        compiled(jnp.sin, (np.eye(2),), donate_argnums=1)
    with pytest.raises(ValueError, match=r"backends are a GPU's, got \('cudnn',\) for .* 'cpu'"):
        compiled(jnp.sin, (np.eye(2),), backends=("cudnn",))


@pytest.mark.longer("a process; who imports JAX is known by test_architecture")
def test_the_package_needs_no_jax() -> None:
    code = (
        "import sys, relay_wgrad, relay_wgrad.frontend, relay_wgrad.jax\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_our_convolutions_within() -> None:
    """They are read as `lax`'s; what JAX has lowered and kept before and after has kernels."""
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 3, 6, 6), (4, 3, 3, 3)))

    def loss(x: Any) -> Any:
        return jnp.tanh(conv_general_dilated(x, w, (1, 1), "SAME")).sum()

    wanted = jax.value_and_grad(loss)(x)
    before = jax.jit(loss).lower(x).as_text()
    step = value_and_grad(loss, (x,))
    same(step(x), wanted, 1e-12)
    assert len(step.convolutions) == 2  # a dgrad of stride 1 may be read as an fprop
    forward = compiled(loss, (x,))
    same(forward(x), wanted[0], 1e-12)
    assert "custom_call @relay_wgrad" in before
    assert jax.jit(loss).lower(x).as_text() == before


@pytest.mark.parametrize("around", [jax.jit, jax.grad, jax.vmap])
def test_a_trace_around_it_is_refused(around: Any) -> None:
    square = compiled(lambda x: x * x, (1.0,))
    given = jnp.ones(3) if around is jax.vmap else 1.0
    with pytest.raises(TypeError, match=r"runs outside of jax\.jit"):
        around(lambda x: square(x))(given)
