"""Random convolutions of `jax.lax` by this package inside `jax.jit`, and what JAX makes of them.

    python -m tests.fuzz.jax_convolutions --minutes 30

A case is a convolution in one to three dimensions, of any layouts, strides, dilations of either
side, padding (negative too) and groups of features or of images, in float64.  Its value, `jvp`,
`vjp`, second derivatives and `vmap` over either or both operands are compared with `lax`'s, as are
the same of `optimize` on a function and on its gradient.  One that stays `lax`'s counts as refused.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.fuzz.harness import REFUSED, Generator, main

BOUND = 1e-12
# XLA's simplifier ends the process of some gradients with negative padding (jaxlib 0.10).
REFERENCE = {"xla_disable_hlo_passes": "algsimp"}
WAYS = ("value", "jvp", "vjp", "second", "vmap lhs", "vmap rhs", "vmap both", "optimize", "of grad")


def case(seed: int, index: int) -> str:
    import numpy as np

    rng = np.random.default_rng([seed, index])
    rank = int(rng.choice([1, 2, 2, 3]))
    groups, images = int(rng.choice([1, 1, 2, 3])), 1
    if groups == 1 and rng.random() < 0.25:
        images = int(rng.choice([2, 3]))

    def some(values: Any) -> str:
        return ",".join(str(int(x)) for x in values)

    words = {
        "way": WAYS[int(rng.integers(len(WAYS)))].replace(" ", "-"),
        "n": str(int(rng.integers(1, 3)) * images),
        "c": str(int(rng.integers(1, 4)) * groups),
        "k": str(int(rng.integers(1, 4)) * groups * images),
        "pixels": some(rng.integers(3, 9, rank)), "taps": some(rng.integers(1, 4, rank)),
        "stride": some(rng.integers(1, 3, rank)), "pad": some(rng.integers(-1, 3, 2 * rank)),
        "lhs": some(rng.choice([1, 1, 2], rank)), "rhs": some(rng.choice([1, 1, 2], rank)),
        "groups": str(groups), "images": str(images),
        "specs": "/".join(some(rng.permutation(rank + 2)) for _ in range(3)),
        "seed": str(int(rng.integers(10**6))),
    }  # fmt: skip
    return " ".join(f"{name}={text}" for name, text in words.items())


def fields(line: str) -> dict[str, Any]:
    return dict(word.split("=", 1) for word in line.split())


def labels(line: str) -> dict[str, str]:
    found = fields(line)
    return {
        "way": found["way"], "rank": str(found["taps"].count(",") + 1),
        "groups": "images" if found["images"] != "1" else str(found["groups"] != "1"),
        "dilated": str("2" in found["lhs"]),
    }  # fmt: skip


def check(line: str, dtype: str = "float64", bound: float = BOUND) -> str | None:
    """On JAX's default device; `lax`'s are on the CPU, in float64 whatever the dtype."""
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    import relay_wgrad.jax as rj

    found, numbers = fields(line), {}
    for name, text in found.items():
        if name not in ("way", "specs"):
            numbers[name] = [int(x) for x in text.split(",")]
    specs = [tuple(map(int, spec.split(","))) for spec in found["specs"].split("/")]

    def laid(shape: list[int], spec: tuple[int, ...]) -> list[int]:
        return [shape[spec.index(axis)] for axis in range(len(spec))]

    (n,), (c,), (k,), (groups,) = (numbers[x] for x in ("n", "c", "k", "groups"))
    pads = numbers["pad"]
    arguments = {
        "window_strides": numbers["stride"],
        "padding": list(zip(pads[::2], pads[1::2], strict=True)),
        "lhs_dilation": numbers["lhs"], "rhs_dilation": numbers["rhs"],
        "dimension_numbers": jax.lax.ConvDimensionNumbers(*specs),
        "feature_group_count": groups, "batch_group_count": numbers["images"][0],
        "precision": "highest",
    }  # fmt: skip
    rng = np.random.default_rng(numbers["seed"])
    shapes = (
        laid([n, c, *numbers["pixels"]], specs[0]),
        laid([k, c // groups, *numbers["taps"]], specs[1]),
    )
    x, w = (rng.standard_normal(shape) for shape in shapes)

    def theirs(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, **arguments)

    def ours(x: Any, w: Any) -> Any:
        return rj.conv_general_dilated(x, w, **arguments)

    way = found["way"].replace("-", " ")
    # Of no more digits than the dtype has.
    given = tuple(a.astype(dtype).astype("float64") for a in _operands(way, x, w, rng))
    with rj.recorded() as records:
        got = jax.jit(_way(way, ours, theirs, rj.optimize))(*(a.astype(dtype) for a in given))
    with jax.default_device(jax.devices("cpu")[0]):
        plain = jax.jit(
            _way(way, theirs, theirs, lambda function: function), compiler_options=REFERENCE
        )
        want = plain(*given)
    for i, (one, two) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        if (one.shape, str(one.dtype)) != (two.shape, dtype):
            return f"{i}: {one.dtype}{one.shape}, lax's {dtype}{two.shape}"
        exact = np.asarray(two)
        far, size = (float(np.linalg.norm(np.ravel(v))) for v in (np.asarray(one) - exact, exact))
        if not far <= bound * max(size, 1.0):
            return f"{i}: off by {far:.2g} of {size:.2g}"
    reasons = [record.reason for record in records if record.reason]
    return f"{REFUSED}{reasons[0]}" if reasons else None


def _operands(way: str, x: Any, w: Any, rng: Any) -> tuple[Any, ...]:
    if way.startswith("vmap"):
        several = [rng.standard_normal((3, *a.shape)) for a in (x, w)]
        return {
            "lhs": (several[0], w), "rhs": (x, several[1]), "both": tuple(several)
        }[way.partition(" ")[2]]  # fmt: skip
    return (x, w)


def _way(way: str, function: Any, plain: Any, optimize: Any) -> Any:
    """What is computed of a convolution, as a function of its operands."""
    import jax
    from jax import numpy as jnp

    def loss(convolution: Any) -> Any:
        return lambda x, w: jnp.sin(convolution(x, w)).sum()

    gradients = jax.grad(loss(function), (0, 1))
    if way == "value":
        return function
    if way == "jvp":
        return lambda x, w: jax.jvp(function, (x, w), (x[::-1] * 2, w * w))
    if way == "vjp":
        return gradients
    if way == "second":
        return jax.grad(lambda x, w: sum(jnp.cos(g).sum() for g in gradients(x, w)), (0, 1))
    if way.startswith("vmap"):
        axes = {"lhs": (0, None), "rhs": (None, 0), "both": (0, 0)}[way.partition(" ")[2]]
        return jax.vmap(lambda x, w: (function(x, w), gradients(x, w)), axes)
    if way == "optimize":
        return jax.value_and_grad(optimize(loss(plain)), (0, 1))
    return optimize(jax.grad(loss(plain), (0, 1)))


GENERATOR = Generator(
    "jax_convolutions",
    "`lax`'s convolutions by this package inside `jax.jit`, with what JAX makes of them",
    case=case,
    labels=labels,
    check=check,
)

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
