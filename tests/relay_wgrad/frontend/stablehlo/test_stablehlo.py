"""Programs of StableHLO that JAX writes, against JAX in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from relay_wgrad.frontend import from_stablehlo  # noqa: E402
from relay_wgrad.frontend.stablehlo.importer import STABLEHLO_OPS  # noqa: E402
from tests.support.gradient_calls import ops  # noqa: E402
from tests.support.jax.convolutions import (  # noqa: E402
    Case,
    arguments,
    compared,
    function,
    kinds,
    parse,
    random_case,
    repro,
    verdict,
)
from tests.support.jax.evaluator import evaluated  # noqa: E402
from tests.support.jax.op_cases import GROUPS, draw  # noqa: E402
from tests.support.jax.plain_networks import NETWORKS, problem  # noqa: E402
from tests.support.jax.run import errors, joint, results  # noqa: E402
from tests.support.problems import relative_error  # noqa: E402


def lowered(f: Any, *given: Any) -> Any:
    return jax.jit(f, keep_unused=True).lower(*given)


# ---- operations ----------------------------------------------------------------------------------


@pytest.mark.longer_cases(
    "places",
    "activations",
    "functions",
    "pairs",
    "sums",
    "products",
    why="views, products and windows stay",
)
@pytest.mark.parametrize("group", GROUPS)
def test_values_and_gradients(group: str) -> None:
    """Each case's value and gradients; a group is one program."""
    cases = GROUPS[group]

    def whole(given: dict[str, Any]) -> dict[str, Any]:
        return {name: joint(f)(*given[name]) for name, (f, _) in cases.items()}

    apart, _ = errors(whole, [{name: given for name, (_, given) in cases.items()}])
    assert max(apart) < 1e-11, apart


def test_constants_and_inputs_are_results() -> None:
    x = draw(2, 3)
    graph = from_stablehlo(lowered(lambda x: (x, jnp.ones(4), x + 1, x + 0.0), x))
    assert [r.kind for r in graph.outputs] == ["input", "value", "result", "result"]
    for got, want in zip(results(graph, [x]), (x, np.ones(4), x + 1, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_other_dtypes(dtype: str) -> None:
    """Constants of bfloat16, casts between, a convolution with a wider result."""
    x = jnp.asarray(draw(2, 5, 5, 3), dtype)
    w = jnp.asarray(draw(3, 3, 3, 4, seed=1), dtype)
    table = jnp.asarray(np.asarray([0.5, -3.0, 1e-3, 7.0]), dtype)
    many = jnp.asarray(draw(200, seed=2), dtype)  # printed as bytes

    def f(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        y = y.astype(dtype) * table + jnp.asarray(1.5, dtype)
        return jnp.minimum(y, many.max()) + jnp.asarray([np.inf, 1, 1, 1], dtype).clip(max=2)

    graph = from_stablehlo(lowered(f, x, w))
    assert kinds(graph) == ["fprop"]
    (got,) = results(graph, [x, w])
    want = np.asarray(f(x, w)).astype("float64")
    assert relative_error(got.astype("float64"), want) < {"float32": 1e-6}.get(dtype, 8e-3)


# ---- what holds a program ------------------------------------------------------------------------


def test_text_bytecode_and_what_has_them() -> None:
    x, w = draw(1, 2, 5, 5), draw(3, 2, 3, 3, seed=1)

    def f(x: Any, w: Any) -> Any:
        return jax.nn.relu(lax.conv(x, w, (1, 1), "SAME"))

    low = lowered(f, x, w)
    exported = jax.export.export(jax.jit(f))(x, w)
    given = [
        low, low.as_text(), low.compiler_ir("stablehlo"), exported,
        exported.mlir_module_serialized, str(exported.mlir_module()),
    ]  # fmt: skip
    made = [from_stablehlo(one) for one in given]
    assert {str(g.module) for g in made} == {str(made[0].module)}


def test_refused_by_name() -> None:
    x = draw(4, 4)
    with pytest.raises(ValueError, match=r"custom call 'lapack_.*' is not supported"):
        from_stablehlo(lowered(jnp.linalg.cholesky, x))
    with pytest.raises(ValueError, match=r"stablehlo.sort \(%0.*\) is not supported"):
        from_stablehlo(lowered(lambda x: lax.sort(x), x))
    with pytest.raises(ValueError, match=r"stablehlo.while"):
        from_stablehlo(
            lowered(lambda x: lax.fori_loop(0, x.sum().astype(int), lambda i, x: jnp.sin(x), x), x)
        )
    with pytest.raises(ValueError, match=r"type tensor<4x4xcomplex<f64>> is not supported"):
        from_stablehlo(lowered(lambda x: x.astype(complex).real, x))
    with pytest.raises(ValueError, match=r"reduce .*of several tensors at once"):
        from_stablehlo(lowered(jnp.argmax, x))
    with pytest.raises(ValueError, match=r"convolution .*: of int32 is not supported"):
        from_stablehlo(lowered(lambda x: lax.conv(x, x, (1, 1), "SAME"), np.ones((1, 1, 3, 3), int)
                               .astype("int32")))  # fmt: skip
    with pytest.raises(ValueError, match=r"not a module of StableHLO: .*expected"):
        from_stablehlo("module @m { func.func }")
    with pytest.raises(TypeError, match=r"expected text, bytecode, or what .* gives, got int"):
        from_stablehlo(3)
    dynamic = (
        "func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> { return %x : tensor<?x2xf32> }"
    )
    with pytest.raises(ValueError, match=r"a value of type tensor<\?x2xf32> is not supported"):
        from_stablehlo(dynamic)


def test_each_operation_is_tried() -> None:
    """Every row is in some program of these tests."""
    texts = [
        lowered(joint(f), *given).as_text() for cases in GROUPS.values()
        for f, given in cases.values()
    ]  # fmt: skip
    whole = "\n".join(texts)
    missing = [name for name in STABLEHLO_OPS if f"lo.{name}" not in whole]
    assert missing == ["logistic"]  # below


def test_what_jax_does_not_write() -> None:
    """A logistic function, a composite, a broadcast that turns axes around, a scalar truth."""
    text = """
    func.func public @main(%x: tensor<2x3xf64>, %t: tensor<i1>) -> (tensor<3x4x2xf64>) {
      %y = stablehlo.logistic %x : tensor<2x3xf64>
      %z = stablehlo.composite "my.twice" %y {decomposition = @twice}
        : (tensor<2x3xf64>) -> tensor<2x3xf64>
      %b = stablehlo.broadcast_in_dim %z, dims = [2, 0] : (tensor<2x3xf64>) -> tensor<3x4x2xf64>
      %n = stablehlo.negate %b : tensor<3x4x2xf64>
      %s = stablehlo.select %t, %b, %n : tensor<i1>, tensor<3x4x2xf64>
      return %s : tensor<3x4x2xf64>
    }
    func.func private @twice(%x: tensor<2x3xf64>) -> tensor<2x3xf64> {
      %y = stablehlo.add %x, %x : tensor<2x3xf64>
      return %y : tensor<2x3xf64>
    }"""
    x = draw(2, 3)
    for truth in (True, False):
        (got,) = results(from_stablehlo(text), [x, np.asarray(truth)])
        want = np.broadcast_to((2 / (1 + np.exp(-x))).T[:, None], (3, 4, 2))
        np.testing.assert_allclose(got, want if truth else -want, rtol=1e-14)


# ---- convolutions --------------------------------------------------------------------------------


@pytest.mark.share(5)
@pytest.mark.parametrize("block", range(10))
def test_random_convolutions(block: int) -> None:
    """Value and gradients by both operands; all of a plain convolution's are recognised."""
    for index in range(4 * block, 4 * block + 4):
        case = random_case(np.random.default_rng([9, index]))
        found = verdict(case)
        assert found == "raised" or (found == "left" and not case.plain), (found, repro(case))
        assert parse(repro(case)) == case


def test_compiled() -> None:
    """Grouped, with negative padding and a stride, in three layouts; the last one by TVM too."""
    numbers = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWCN", "IWHO", "CNHW")]
    shapes = [(2, 6, 7, 4), (2, 4, 6, 7), (6, 7, 4, 2)], [(3, 2, 2, 6), (6, 2, 3, 2), (2, 2, 3, 6)]
    for layout, lhs, rhs in zip(numbers, *shapes, strict=True):
        case = Case(lhs, rhs, (2, 1), ((1, -1), (0, 2)), (1, 1), (1, 2), layout, 2)
        error, graph = compared(case)
        assert error < 1e-13
        assert sorted(kinds(graph)) == ["dgrad", "fprop", "wgrad"]
        assert ops(graph.module).count("relax.permute_dims") == 0
    given = arguments(case)
    wanted = jax.jit(function(case))(*given)
    for one, want in zip(results(graph, given), wanted, strict=True):
        assert relative_error(one, np.asarray(want)) < 1e-13


@pytest.mark.parametrize("turned", ["true, false", "true, true"])
def test_a_window_that_is_read_backwards(turned: str) -> None:
    """JAX never writes it, but reverses the weight; other frameworks' StableHLO may."""
    case = Case((2, 3, 6, 5), (4, 3, 3, 2), (1, 1), ((1, 2), (0, 1)), (2, 1), (1, 1),
                ("NCHW", "OIHW", "NCHW"))  # fmt: skip
    x, w, _ = arguments(case)
    text = (
        lowered(case, x, w).as_text().replace("reverse = [false, false]", f"reverse = [{turned}]")
    )
    assert turned in text
    graph = from_stablehlo(text)
    axes = [2 + i for i, word in enumerate(turned.split(", ")) if word == "true"]
    (got,) = evaluated(graph.module, [x, w])
    assert relative_error(got, np.asarray(case(x, jnp.flip(w, axes)))) < 1e-13
    assert kinds(graph) == ["dgrad"]
    assert ops(graph.module).count("relax.flip") == 2 - len(axes)


def test_a_general_convolution_is_reported() -> None:
    """Dilated and strided at once it is no member of the family."""
    case = Case((1, 2, 5, 5), (3, 2, 2, 2), (3, 3), ((1, 1), (1, 1)), (2, 2), (2, 2),
                ("NCHW", "OIHW", "NCHW"))  # fmt: skip
    assert verdict(case) == "left"
    _, graph = compared(case)
    assert graph.report is not None
    assert all("zeros are put between lhs' elements" in e.reason for e in graph.report.left)
    assert verdict(replace(case, stride=(1, 1))) == "raised"


def test_nothing_is_met() -> None:
    """Padding takes all of the image, and more."""
    case = Case((1, 1, 1, 3), (1, 1, 1, 2), (1, 2), ((0, 0), (-5, 7)), (1, 1), (1, 2),
                ("NCHW", "OIHW", "NCHW"))  # fmt: skip
    error, graph = compared(case)
    assert error == 0
    assert graph.report is not None
    assert "no element of lhs meets a tap" in graph.report.left[0].reason


# ---- networks ------------------------------------------------------------------------------------


@pytest.mark.longer("whole networks")
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks(kind: str) -> None:
    """Value and every gradient to 1e-9; every convolution is recognised, in its own layout."""
    layout = "NHWC" if list(NETWORKS).index(kind) % 2 == 0 else "NCHW"
    loss, given = problem(f"{kind}-{layout}-0")
    apart, graph = errors(jax.value_and_grad(loss, (0, 1)), given)
    assert max(apart) < 1e-9
    assert graph.report is not None
    assert not graph.report.left
    found = kinds(graph)
    forward = lowered(loss, *given).as_text().count("stablehlo.convolution")
    assert len(found) == 3 * forward
    assert found.count("wgrad") == forward
    assert f"layout={layout}" in graph.report.raised[0].problem
