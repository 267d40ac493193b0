"""Relay programs on Relax: what real Relay computed, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.relay import ast
from relay_wgrad.relay.build import build
from relay_wgrad.relay.graph_executor import GraphModule
from relay_wgrad.relay.lower import lower
from relay_wgrad.relay.text import fromtext
from tests.problems import numpy_dtype
from tests.relay_fixtures import fixture_names, load
from tests.timing import seconds

pytestmark = pytest.mark.usefixtures("registered")

HEAD = '#[version = "0.0.5"]\n'
VECTOR = "Tensor[(3), float32]"


def outputs_of(name: str) -> bool:
    return load(name)[1] is not None


@pytest.mark.parametrize("name", [n for n in fixture_names("*") if outputs_of(n)])
def test_outputs_of_real_relay(name: str) -> None:
    """Each output within 1e-4 of Relay 0.19's, in relative norm.

    The gradients of `mlp_grad` and `resnet8_cifar_grad` are those of a softmax's sum, which is
    constant: zero but for rounding, there and here.
    """
    params, outputs, text = load(name)
    module = GraphModule(build(fromtext(text), "llvm")["default"](tvm.cpu()))
    module.run(**params)
    assert module.get_num_outputs() == len(outputs)
    noise = name in ("mlp_grad", "resnet8_cifar_grad")
    for i, want in enumerate(outputs):
        got = module.get_output(i).numpy()
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if noise and i > 0:
            assert max(np.abs(got).max(), np.abs(want).max()) < 2e-6
        else:
            assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


@pytest.mark.parametrize("name", fixture_names("*"))
def test_every_fixture_lowers(name: str) -> None:
    """With the types that its text states: each call's is compared on the way."""
    out = lower(fromtext(load(name)[2]))
    relax.analysis.well_formed(out)


def run(text: str, **inputs: np.ndarray) -> list[np.ndarray]:
    module = GraphModule(build(fromtext(HEAD + text), "llvm")["default"](tvm.cpu()))
    module.run(**inputs)
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


X = np.array([1, -2, 3], "float32")


def test_functions_are_called_where_they_are_bound() -> None:
    text = f"""def @main(%x: {VECTOR}) {{
      let %f = fn (%a: {VECTOR}, %b: {VECTOR}) {{ multiply(%a, add(%b, %b)) }};
      let %g = fn (%c: {VECTOR}) {{ let %h = fn (%d: {VECTOR}) {{ negative(%d) }}; %h(%c) }};
      (%f(%x, %g(%x)), %f(%f(%x, %x), %g(%f(%x, %x))))
    }}"""
    once, twice = run(text, x=X)
    np.testing.assert_allclose(once, -2 * X * X)
    np.testing.assert_allclose(twice, -2 * (2 * X * X) ** 2)


def test_other_global_functions_are_inlined() -> None:
    text = f"""def @double(%x: {VECTOR}) -> {VECTOR} {{ add(%x, %x) }}
    def @main(%x: {VECTOR}) -> {VECTOR} {{ @double(@double(%x)) }}"""
    np.testing.assert_allclose(run(text, x=X)[0], 4 * X)


def test_a_shared_node_is_computed_once() -> None:
    text = f"""def @main(%x: {VECTOR}) {{
      %0 = exp(%x);
      %1 = add(%0, %0);
      (multiply(%1, %1), %1)
    }}"""
    func = lower(fromtext(HEAD + text))["main"]
    calls = [b.value for b in func.body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    assert [str(c.op.name) for c in calls] == ["relax.exp", "relax.add", "relax.multiply"]


def test_unknown_sizes_are_symbols() -> None:
    text = "def @main(%x: Tensor[(?, 4), float32]) { nn.relu(%x) }"
    for rows in (1, 5):
        x = np.random.default_rng(0).standard_normal((rows, 4)).astype("float32")
        np.testing.assert_allclose(run(text, x=x)[0], np.maximum(x, 0))


def test_depth_costs_no_stack_and_linear_time() -> None:
    def cost(depth: int) -> float:
        lets = "\n".join(
            f"let %v{i + 1} = add(%v{i}, %v{i});" for i in range(depth)
        )  # fmt: skip
        module = fromtext(f"{HEAD}def @main(%v0: {VECTOR}) {{\n{lets}\n%v{depth} }}")
        return seconds(lambda: lower(module), 2)

    short, long = cost(1000), cost(8000)
    assert long < 8 * short * 3  # quadratic would be 64 times


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "bool"])
def test_constants_keep_their_dtype(dtype: str) -> None:
    data = np.array([[1, 0, 1]], numpy_dtype(dtype))
    constant = ast.Constant(data)
    module = ast.IRModule({"main": ast.Function((), ast.Tuple((constant, constant)))})
    func = lower(module)["main"]
    assert [str(f.dtype) for f in func.ret_ty.fields] == [dtype] * 2


REFUSED = {
    "def @main(%x: Tensor[(3), float32]) { add(%x, %y) }": "%y",
    "def @main(%x: Tensor[(3), float32]) -> Tensor[(4), float32] { add(%x, %x) }":
        r"the result of @main is Tensor\[\(3\), float32\], and the program says Tensor\[\(4\)",
    "def @main(%x: Tensor[(3), float32]) { add(%x, %x) /* ty=Tensor[(2), float32] */ }":
        r"the program says Tensor\[\(2\), float32\]",
    "def @main(%x: Tensor[(3), float32]) { @f(%x) }": "@f",
    "def @main(%x: Tensor[(3), float32]) { @main(%x) }": "recursion has no lowering",
    "def @main(%x: Tensor[(3), float32]) { (%x, %x).2 }": r"\.2 of a tuple of 2",
    "def @main(%x: Tensor[(3), float32]) { %x.0 }": "which is no tuple",
    "def @main(%x: Tensor[(3), float32]) { nn.convolve(%x) }": "operator 'nn.convolve'",
    "def @main(%x: Tensor[(3), float32]) { add(%x) }": "takes 2 arguments",
    "def @main(%x: Tensor[(3), float32]) { sum(%x, axes=[0]) }": "unknown attributes axes",
    "def @main(%x) { add(%x, %x) }": "the type of lhs is not stated",
    "def @main(%x: Tensor[(3), float32]) { fn (%y: Tensor[(3), float32]) { %y } }":
        "a function is a result",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=REFUSED[text]):
        lower(fromtext(HEAD + text))


def test_a_violated_relation_points_at_the_call() -> None:
    text = f"{HEAD}def @main(%x: {VECTOR}, %y: Tensor[(2), float32]) {{\n  add(%x, %y)\n}}"
    with pytest.raises(ValueError, match=r"add: .*:3:3"):
        lower(fromtext(text))
