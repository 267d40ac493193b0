"""The primitive's own rules, which the generator compares by numbers alone
(`tests.fuzz.jax_convolutions`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

from relay_wgrad.jax.primitive import convolution  # noqa: E402
from relay_wgrad.jax.records import Options  # noqa: E402
from relay_wgrad.problem import ConvKind, ConvProblem  # noqa: E402

LINE = "n=2 c=4 h=7 w=6 k=6 r=3 s=2 stride=2,1 pad=1,0,0,1 groups=2 layout=NHWC/HWIO/NCHW"


def given(kind: ConvKind, dtype: str = "float32", more: int = 0) -> tuple[ConvProblem, list[Any]]:
    problem = ConvProblem.parse(f"{kind.value} {LINE}")
    shapes = [problem.shape(role) for role in problem.roles[:2]]
    shapes[0] = (shapes[0][0] + more, *shapes[0][1:])
    rng = np.random.default_rng(0)
    return problem, [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


@pytest.mark.parametrize("kind", ConvKind, ids=lambda kind: kind.value)
def test_types(kind: ConvKind) -> None:
    """What is told of a result is what comes; other operands are refused when they are traced."""
    problem, operands = given(kind)
    told = jax.eval_shape(lambda *two: convolution(*two, problem, Options()), *operands)
    made = convolution(*operands, problem, Options())
    role = problem.roles[2]
    assert (told.shape, told.dtype) == (made.shape, made.dtype)
    assert (made.shape, str(made.dtype)) == (problem.shape(role), "float32")
    first = problem.roles[0]
    for wrong in (given(kind, "float64")[1], given(kind, "int32")[1], given(kind, more=1)[1]):
        got = f"{wrong[0].dtype}{list(wrong[0].shape)}"
        with pytest.raises(TypeError) as caught:
            jax.eval_shape(lambda *two: convolution(*two, problem, Options()), *wrong)
        wanted = f"{kind.value}: {first} must be float32{list(problem.shape(first))}, got {got}"
        assert str(caught.value) == wanted
