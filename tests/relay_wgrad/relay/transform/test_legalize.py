"""Legalize: the weight gradient's composite as Relay printed it, and what users register."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.text import astext, fromtext
from relay_wgrad.rules import out_size
from tests.fixtures.relay.inputs import load
from tests.support.relay.evaluate import evaluate
from tests.support.relay.fixtures import fixture_names
from tests.support.relay.layout_fixtures import count
from tests.support.relay.modules import VECTOR, equal, of_vectors, outputs, typed
from tests.support.relay.texts import call_chain, fixture_text

LEGALIZED = fixture_names("wgrad_*_legalized")
WGRAD = "nn.conv2d_backward_weight"


# ---- Relay's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEGALIZED)
def test_relays_own_composites(name: str) -> None:
    got = T.Legalize()(fromtext(fixture_text(name.removesuffix("_legalized"))))
    assert relay.structural_equal(got, T.InferType()(fromtext(fixture_text(name)))), astext(got)


RUN = [*(name.removesuffix("_legalized") for name in LEGALIZED), "smallnet_grad"]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", RUN)
@pytest.mark.usefixtures("registered")
def test_composites_run(name: str) -> None:
    inputs, expected, text = load(name)
    got = T.Legalize()(fromtext(text))
    assert count(got, WGRAD) == 0
    for ours, theirs in zip(outputs(got, inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_composite_within_a_program() -> None:
    """As `smallnet_grad_legalized`, whose lets Relay dropped: those operators, as often."""
    got = T.Legalize()(fromtext(fixture_text("smallnet_grad")))
    theirs = T.InferType()(fromtext(fixture_text("smallnet_grad_legalized")))
    for name in ("tile", "nn.conv2d", "sum", "transpose", "strided_slice", "reshape"):
        assert count(got, name) == count(theirs, name), name


# ---- every problem -------------------------------------------------------------------------------


@st.composite
def problems(draw: Callable[..., Any]) -> relay.IRModule:
    """One weight gradient, in any layouts."""

    def some(values: Any) -> Any:
        return draw(st.sampled_from(values))

    groups = some([1, 2, 3])
    n, c, k = some([1, 2]), groups * some([1, 2, 3]), groups * some([1, 2])
    size, kernel = (some([5, 6]), some([4, 7])), (some([1, 2, 3]), some([1, 3]))
    strides, dilation = (some([1, 2, 3]), some([1, 2])), (some([1, 2]), some([1, 1, 2]))
    padding = tuple(some([0, 1, 2]) for _ in range(some([2, 4])))
    pads = padding * (4 // len(padding))
    pixels = [
        out_size(size[i], pads[i] + pads[i + 2], kernel[i], strides[i], dilation[i])
        for i in range(2)
    ]
    if min(pixels) < 1:
        return draw(problems())
    layouts = {
        "grad_layout": some(["NCHW", "NHWC", "WNHC"]),
        "data_layout": some(["NCHW", "NHWC", "CHWN"]),
        "kernel_layout": some(["OIHW", "OHWI", "HWIO"]),
    }
    grad = dict(zip("NCHW", (n, k, *pixels), strict=True))
    data = dict(zip("NCHW", (n, c, *size), strict=True))
    args = [
        relay.var(name, shape=[sizes[letter] for letter in layouts[f"{name}_layout"]],
                  dtype="float64")
        for name, sizes in (("grad", grad), ("data", data))
    ]  # fmt: skip
    out = relay.nn.conv2d_backward_weight(
        *args, strides=strides, padding=padding, dilation=dilation, groups=groups, channels=k,
        kernel_size=kernel, **layouts,
    )  # fmt: skip
    return T.InferType()(relay.IRModule.from_expr(relay.Function(args, out)))


@given(problems())
@settings(max_examples=50, deadline=None)
def test_the_composite_is_the_gradient(mod: relay.IRModule) -> None:
    """Exactly, in whole numbers: for every number of groups, which Relay's own was not."""
    rng = np.random.default_rng(0)
    inputs = {
        p.name: rng.integers(-9, 10, p.type_annotation.shape).astype("float64")
        for p in mod["main"].params
    }
    got = T.Legalize()(mod)
    assert count(got, WGRAD) == 0
    assert got["main"].checked_type == mod["main"].checked_type
    np.testing.assert_array_equal(
        evaluate(got["main"], inputs), evaluate(mod["main"], inputs), strict=True
    )


def weight_gradient(groups: int, batch: Any = 2) -> relay.IRModule:
    grad = relay.var("grad", shape=(batch, 8, 5, 5))
    data = relay.var("data", shape=(batch, 8, 5, 5))
    out = relay.nn.conv2d_backward_weight(
        grad, data, padding=1, groups=groups, channels=8, kernel_size=3
    )
    return T.InferType()(relay.IRModule.from_expr(relay.Function([grad, data], out)))


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.usefixtures("registered")
def test_groups_run(groups: int) -> None:
    mod = weight_gradient(groups)
    got = T.Legalize()(mod)
    # Relay's own form has three.
    assert count(got, "reshape") == (3 if groups in (1, 8) else 5)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.integers(-4, 5, (2, 8, 5, 5)).astype("float32") for name in ("grad", "data")
    }
    wide = {name: array.astype("float64") for name, array in inputs.items()}
    np.testing.assert_array_equal(outputs(got, inputs)[0], evaluate(mod["main"], wide))


def test_unknown_sizes() -> None:
    with pytest.raises(ValueError, match=r"backward_weight: its composite needs all sizes.*\?, 8"):
        T.Legalize()(weight_gradient(1, relay.Any()))


# ---- what users register -------------------------------------------------------------------------


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    names: list[str] = []

    def add(name: str, function: Any, level: int = 10) -> None:
        names.append(name)
        relay.op.register_legalize(name, function, level)

    yield add
    for name in names:
        relay.op.get(name).reset_attr("FTVMLegalize")


def test_a_users_form(register: Callable[..., None]) -> None:
    seen = []

    def form(attrs: Any, inputs: Any, types: Any) -> Any:
        seen.append((dict(attrs), [str(t) for t in types], inputs[0].checked_type))
        return relay.maximum(inputs[0], relay.const(0.0, "float32"))

    register("nn.relu", form)
    before = "let %a = nn.relu(nn.relu(%x)); add(%a, nn.leaky_relu(%y))"
    after = "let %a = maximum(maximum(%x, 0f), 0f); add(%a, nn.leaky_relu(%y))"
    assert equal(T.Legalize()(typed(of_vectors(before))), of_vectors(after))
    tensor = relay.TensorType((3,), "float32")
    # The second one's operand is the first one's new form, with its type.
    assert seen == [({}, [VECTOR] * 2, tensor)] * 2


def test_the_attributes_are_complete(register: Callable[..., None]) -> None:
    register("nn.leaky_relu", lambda attrs, inputs, types: relay.multiply(
        inputs[0], relay.const(attrs.alpha + attrs["alpha"], "float32")))  # fmt: skip
    assert equal(
        T.Legalize()(typed(of_vectors("nn.leaky_relu(%x)"))), of_vectors("multiply(%x, 0.5f)")
    )


def test_none_leaves_a_call_and_a_form_is_not_legalized_again(register: Any) -> None:
    register("exp", lambda attrs, inputs, types: None)
    register("log", lambda attrs, inputs, types: relay.log(relay.copy(inputs[0])))
    got = T.Legalize()(typed(of_vectors("exp(log(%x))")))
    assert equal(got, of_vectors("exp(log(copy(%x)))"))


def test_a_form_may_be_an_operand_and_take_operands_apart(register: Callable[..., None]) -> None:
    register("negative", lambda attrs, inputs, types: inputs[0].args[0])
    register("copy", lambda attrs, inputs, types: inputs[0])
    assert equal(T.Legalize()(typed(of_vectors("negative(copy(exp(%x)))"))), of_vectors("%x"))


def test_functions_within_and_kernels(register: Callable[..., None]) -> None:
    register("exp", lambda attrs, inputs, types: relay.log(inputs[0]))
    text = "let %f = fn (%p: {0}{1}) {{ {2}(%p) }}; %f({3}(%x))"
    for attrs, name in (("", "log"), (", Primitive=1", "exp"), (', Compiler="mine"', "exp")):
        got = T.Legalize()(typed(of_vectors(text.format(VECTOR, attrs, "exp", "exp"))))
        assert equal(got, of_vectors(text.format(VECTOR, attrs, name, "log")))


def test_another_attribute() -> None:
    op = relay.op.get("exp")
    op.set_attr("MyLegalize", lambda attrs, inputs, types: relay.log(inputs[0]))
    try:
        mod = typed(of_vectors("exp(%x)"))
        assert equal(T.Legalize("MyLegalize")(mod), of_vectors("log(%x)"))
        assert relay.structural_equal(T.Legalize()(mod), mod)
        assert relay.structural_equal(T.Legalize("Nobodys")(weight_gradient(1)), weight_gradient(1))
    finally:
        op.reset_attr("MyLegalize")
    with pytest.raises(TypeError, match="Legalize: expected an attribute's name, got 3"):
        T.Legalize(3)


def test_the_packages_own_comes_back(register: Callable[..., None]) -> None:
    own = relay.op.get(WGRAD).get_attr("FTVMLegalize")
    register(WGRAD, lambda attrs, inputs, types: None)
    mod = weight_gradient(1)
    assert relay.structural_equal(T.Legalize()(mod), mod)
    relay.op.get(WGRAD).reset_attr("FTVMLegalize")
    assert relay.op.get(WGRAD).get_attr("FTVMLegalize") is own


@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        (lambda x: 3, TypeError, r"exp: FTVMLegalize must be a Relay expression, got 3"),
        (lambda x: relay.sum(x), ValueError, r"exp: FTVMLegalize must give .*\(3\).*got float32"),
        (lambda x: relay.nn.dense(x, x), ValueError, r"exp: FTVMLegalize: nn\.dense"),
    ],
)
def test_wrong_forms(register: Any, form: Any, error: type[Exception], message: str) -> None:
    register("exp", lambda attrs, inputs, types: form(inputs[0]))
    with pytest.raises(error, match=message):
        T.Legalize()(typed(of_vectors("exp(%x)")))


def test_info_and_depth() -> None:
    assert T.Legalize().info == T.PassInfo("Legalize", 1, ("InferType",))
    mod = T.InferType()(fromtext(call_chain(3000).replace("%x)", f"%x: {VECTOR})", 1)))
    assert relay.structural_equal(T.Legalize()(mod), mod)
