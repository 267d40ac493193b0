"""Relay programs on Relax: what real Relay computed, and what is refused."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.relay import ast
from relay_wgrad.relay.build import build
from relay_wgrad.relay.graph_executor import GraphModule
from relay_wgrad.relay.lower import lower
from relay_wgrad.relay.text import fromtext
from relay_wgrad.relay.types import TensorType
from tests.support.fast import FAST
from tests.support.relay.fixtures import fixture_names, load
from tests.support.timing import seconds

pytestmark = pytest.mark.usefixtures("registered")

HEAD = '#[version = "0.0.5"]\n'
VECTOR = "Tensor[(3), float32]"


def outputs_of(name: str) -> bool:
    return load(name)[1] is not None


@pytest.mark.longer_cases("resnet8_cifar_grad", why="whole networks; smaller ones stay")
@pytest.mark.share(5)
@pytest.mark.parametrize("name", [n for n in fixture_names("*") if outputs_of(n)])
def test_outputs_of_real_relay(name: str) -> None:
    """Each output within 1e-4 of Relay 0.19's, in relative norm.

    The gradients of `mlp_grad` and `resnet8_cifar_grad` are those of a softmax's sum, which is
    constant: zero but for rounding, there and here.
    """
    params, outputs, text = load(name)
    module = GraphModule(build(fromtext(text), FAST)["default"](tvm.cpu()))
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
    module = GraphModule(build(fromtext(HEAD + text), FAST)["default"](tvm.cpu()))
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


@pytest.mark.longer("programs long enough to tell linear time")
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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_round_takes_halves_away_from_zero(dtype: str) -> None:
    """As Relay does; Relax's own goes to even.  Exactly, up to where numbers have no fractions."""
    step = 1 / np.finfo(dtype).eps  # beyond it only whole numbers
    less = np.nextafter(np.array(0.5, dtype), np.array(0, dtype))
    wanted = np.array(
        [(0.5, 1), (1.5, 2), (2.5, 3), (less, 0), (0.2, 0), (0, 0), (step / 2 + 0.5, step / 2 + 1),
         (step - 0.5, step), (step + 1, step + 1), (4 * step, 4 * step), (np.inf, np.inf)],
        dtype,
    )  # fmt: skip
    x, want = np.concatenate([wanted, -wanted]).T
    got = run(f"def @main(%x: Tensor[({len(x)}), {dtype}]) {{ round(%x) }}", x=x)[0]
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))
    nan = run(f"def @main(%x: Tensor[(1), {dtype}]) {{ round(%x) }}", x=np.array([np.nan], dtype))
    assert np.isnan(nan[0]).all()


def test_round_of_integers_is_themselves() -> None:
    text = "def @main(%x: Tensor[(3), int32]) { round(%x) }"
    assert np.array_equal(run(text, x=np.array([1, -2, 2**31 - 1], "int32"))[0], [1, -2, 2**31 - 1])


def nested(depth: int, items: int = 0) -> ast.IRModule:
    """@main(%x): tuples around %x, of which some are taken off."""
    x = ast.Var("x", TensorType((3,), "float32"))
    body: ast.Expr = x
    for _ in range(depth):
        body = ast.Tuple((body,))
    for _ in range(items):
        body = ast.TupleGetItem(body, 0)
    return ast.IRModule({"main": ast.Function((x,), body)})


@pytest.mark.share(2)
@pytest.mark.parametrize("module", [nested(490), nested(20_000, 20_000), nested(20_000, 19_600)])
def test_tuples_within_tuples(module: ast.IRModule) -> None:
    found = GraphModule(build(module, "llvm")["default"](tvm.cpu()))
    found.run(x=X)
    assert found.get_num_outputs() == 1
    assert np.array_equal(found.get_output(0).numpy(), X)


@pytest.mark.parametrize("depth", [900, 100_000])
def test_results_that_nest_too_deep_for_tvm_are_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="tuples nest deeper than 500 in a result"):
        build(nested(depth), "llvm")


def test_inlining_that_doubles_with_each_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module(lower.__module__), "MOST_WRITTEN", 1000)

    def text(levels: int) -> str:
        lines = [f"def @f0(%x: {VECTOR}) -> {VECTOR} {{ add(%x, %x) }}"]
        lines += [
            f"def @f{i + 1}(%x: {VECTOR}) -> {VECTOR} {{ @f{i}(@f{i}(%x)) }}" for i in range(levels)
        ]
        return "\n".join([HEAD, *lines, f"def @main(%x: {VECTOR}) {{ @f{levels}(%x) }}"])

    well_formed = lower(fromtext(text(5)))["main"]
    assert len(well_formed.body.blocks[0].bindings) == 2**5 + 1
    with pytest.raises(ValueError, match=r"writes more than \d+ operators.*level upon level"):
        lower(fromtext(text(30)))


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
    'def @main() { full(1f, shape=[2], dtype="float99") }':
        "full: dtype must be the name of a dtype, got 'float99'",
    "def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(3, 4, 3, 3), float32])"
    " { nn.conv2d_transpose(%x, %w, output_padding=[1, 1]) }":
        "output_padding must be smaller than strides",
    "def @main(%x: Tensor[(1, 3, 8, 8), float32]) { nn.lrn(%x, size=2) }":
        "nn.lrn: size should be odd number, got 2",
    "def @main(%x: Tensor[(1, 3, 8, 8), float32]) { nn.lrn(%x, axis=2) }":
        "nn.lrn: axis should be 1 or 3",
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


def test_a_dtype_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'float99'"):
        TensorType((2,), "float99")
