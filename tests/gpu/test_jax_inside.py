"""`lax`'s convolutions by this package inside `jax.jit` on a GPU, beside `lax`'s on the CPU in
float64; random ones are the generator's (`tests.fuzz.jax_convolutions`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import relay_wgrad.jax as rj  # noqa: E402
from tests.fuzz import jax_convolutions as random_ones  # noqa: E402
from tests.fuzz.harness import REFUSED  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

# lhs, rhs, and what `lax.conv_general_dilated` is given besides its usual padding "SAME".
PROBLEMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "dense": ((4, 16, 14, 15), (24, 16, 3, 3), {}),
    "strided": ((4, 16, 15, 14), (24, 16, 3, 3), {"window_strides": (2, 1)}),
    "one-tap": ((4, 16, 8, 8), (24, 16, 1, 1), {"window_strides": (2, 2)}),
    "dilated": ((2, 8, 16, 17), (16, 8, 3, 3), {"rhs_dilation": (2, 1)}),
    "grouped": ((2, 32, 12, 12), (32, 8, 3, 3), {"feature_group_count": 4}),
    "depthwise": ((2, 32, 14, 14), (32, 1, 5, 5), {"feature_group_count": 32}),
    "depthwise-1d": ((2, 32, 60), (32, 1, 5), {"feature_group_count": 32, "rhs_dilation": (4,)}),
    "one-dimension": ((3, 8, 40), (16, 8, 5), {"window_strides": (2,)}),
    "three-dimensions": ((2, 8, 6, 8, 10), (16, 8, 3, 3, 3), {}),
    "transposed": (
        (2, 16, 7, 8), (8, 16, 3, 3), {"lhs_dilation": (2, 2), "padding": ((1, 2), (1, 2))},
    ),
    "transposed-long": ((2, 32, 9), (1, 32, 64), {"lhs_dilation": (16,), "padding": ((63, 63),)}),
    "uneven-padding": ((2, 8, 9, 9), (8, 8, 3, 2), {"padding": ((0, 2), (3, 1))}),
    "images-in-groups": ((4, 8, 9, 9), (6, 8, 3, 3), {"batch_group_count": 2}),
    "channels-last": (
        (4, 14, 14, 16), (3, 3, 16, 24), {"dimension_numbers": ("NHWC", "HWIO", "NHWC")},
    ),
}  # fmt: skip
# (precision, what may be off, of the norm) by dtype: TF32 is for the usual precision alone.
BOUNDS = {
    "float32": ("highest", 2e-6), "bfloat16": (None, 3e-2), "float32-high": ("high", 2e-6),
    "float32-usual": (None, 3e-3),
}  # fmt: skip
CASES = [
    (name, dtype)
    for dtype in BOUNDS
    for name in PROBLEMS
    if "-" not in dtype or name in ("dense", "transposed")
]


@pytest.fixture(autouse=True)
def always_ours() -> Iterator[None]:
    before = rj.set_measured()
    yield
    rj.set_measured(*before)


def convolution(function: Callable[..., Any], name: str, precision: Any) -> Callable[..., Any]:
    rest = dict(PROBLEMS[name][2])
    strides = rest.pop("window_strides", (1,) * (len(PROBLEMS[name][0]) - 2))
    padding = rest.pop("padding", "SAME")
    return lambda x, w: function(x, w, strides, padding, precision=precision, **rest)


def operands(name: str, dtype: str, seed: int = 0) -> list[Any]:
    """On the GPU, in the dtype."""
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(s), dtype) for s in PROBLEMS[name][:2]]


def exact(function: Callable[..., Any], *given: Any) -> Any:
    """A function's results on the CPU, in float64."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        found = jax.jit(function)(*(np.asarray(x).astype("float64") for x in given))
        return jax.tree.map(np.asarray, found)


def compared(got: Any, want: Any, bound: float) -> None:
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.shape == two.shape
        assert all(device.platform == "gpu" for device in one.devices())
        off = np.linalg.norm(np.asarray(one).astype("float64") - two) / np.linalg.norm(two)
        assert off < bound


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_value_and_gradients(name: str, dtype: str) -> None:
    precision, bound = BOUNDS[dtype]
    given = operands(name, dtype.partition("-")[0])

    def both(function: Callable[..., Any]) -> Callable[..., Any]:
        made = convolution(function, name, precision)

        def run(x: Any, w: Any, ct: Any) -> Any:
            value, back = jax.vjp(made, x, w)
            return value, back(ct)

        return run

    shape = jax.eval_shape(convolution(lax.conv_general_dilated, name, None), *given)
    ct = jnp.asarray(np.random.default_rng(1).standard_normal(shape.shape), shape.dtype)
    with rj.recorded() as records:
        got = jax.jit(both(rj.conv_general_dilated))(*given, ct)
    assert [record.reason for record in records if record.reason] == []
    compared(got, exact(both(lax.conv_general_dilated), *given, ct), bound)


@pytest.mark.parametrize("name", ["dense", "strided", "grouped", "depthwise-1d", "transposed"])
def test_second_order_and_vmap(name: str) -> None:
    given = operands(name, "float32")
    several = jnp.stack([operands(name, "float32", seed)[0] for seed in range(3)])
    filters = jnp.stack([operands(name, "float32", seed)[1] for seed in range(3)])

    def of(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        made = convolution(function, name, "highest")
        gradients = jax.grad(lambda x, w: jnp.sin(made(x, w)).sum(), (0, 1))
        second = jax.grad(lambda x, w: sum(jnp.cos(g).sum() for g in gradients(x, w)), (0, 1))
        return second, lambda xs, ws, x, w: (
            jax.vmap(gradients, (0, None))(xs, w), jax.vmap(gradients, (None, 0))(x, ws),
            jax.vmap(gradients)(xs, ws),
        )  # fmt: skip

    ours, theirs = of(rj.conv_general_dilated), of(lax.conv_general_dilated)
    # Sines of gradients that are sums of hundreds have fewer digits than these.
    compared(jax.jit(ours[0])(*given), exact(theirs[0], *given), 1e-4)
    more = (several, filters, *given)
    compared(jax.jit(ours[1])(*more), exact(theirs[1], *more), 1e-5)


def test_steps_within_one_program() -> None:
    """Many calls that follow each other, which XLA may record as a command buffer, and again with
    other arrays at other addresses."""
    x = operands("dense", "float32")[0]
    square = jnp.asarray(np.random.default_rng(2).standard_normal((16, 16, 3, 3)) / 12, "float32")

    def chain(conv: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any, w: Any) -> Any:
            for _ in range(8):
                x = jnp.tanh(conv(x, w, (1, 1), "SAME", precision="highest"))
            return (x**2).mean()

        return jax.value_and_grad(run, (0, 1))

    step, plain = jax.jit(chain(rj.conv_general_dilated)), chain(lax.conv_general_dilated)
    kept = []
    for i in range(6):
        given = (x * (1 + 0.1 * i), square)
        kept.append((step(*given), given))
    for got, given in kept:
        compared(got, exact(plain, *given), 1e-4)


def test_a_choice_by_rule_and_by_times() -> None:
    """Dilated lines in depth: fprops and dgrads by times, that those of the first dilation have
    for both where they are clear; wgrads untimed."""
    rj.set_measured("cuda")
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(s), "float32") for s in ((4, 64, 700), (64, 1, 3)))

    def both(conv: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any, w: Any) -> Any:
            for step in (2, 4):
                x = conv(
                    x, w, (1,), "SAME", rhs_dilation=(step,), feature_group_count=64,
                    precision="highest",
                )  # fmt: skip
            return jnp.sin(x).sum()

        return jax.value_and_grad(run, (0, 1))

    with rj.recorded() as records:
        got = jax.jit(both(rj.conv_general_dilated))(x, w)
    compared(got, exact(both(lax.conv_general_dilated), x, w), 1e-4)
    found: dict[str, list[tuple[float, float]]] = {}
    for record in records:  # of a derivative, where it has times or is `lax`'s
        assert record.ours_ms is not None
        assert record.lax_ms is not None
        times = (record.ours_ms, record.lax_ms)
        found.setdefault(record.problem.partition(" ")[0], []).append(times)
    assert {kind: len(each) for kind, each in found.items()} == {"fprop": 2, "dgrad": 2}
    for one, two in found.values():
        assert (one == two) is (max(one) > 1.5 * min(one))


@pytest.mark.longer("two hundred problems are tuned")
def test_random_ones() -> None:
    found = Counter[str]()
    for index in range(200):
        line = random_ones.case(1, index)
        answer = random_ones.check(line, "float32", 1e-4) or ""
        assert not answer or answer.startswith(REFUSED), f"{line}: {answer}"
        found[answer] += 1
    assert found[""] >= 190, found
