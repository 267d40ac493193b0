"""ConvertLayout: Relay's own conversions, what follows a convolution, scopes, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.layout_rules.convert import ROLES
from relay_wgrad.relay.layout_rules.rules import MAKERS, RULES
from relay_wgrad.relay.records import REGISTRY
from relay_wgrad.relay.text import astext, fromtext
from tests.fixtures.relay.inputs import load
from tests.support.relay.evaluate import evaluate
from tests.support.relay.layout_bodies import (
    NEW,
    OLD,
    X,
    back,
    equal,
    flat,
    module,
    unchanged_numbers,
)
from tests.support.relay.layout_fixtures import ALL, CONV, Conversion, conversions, count, table
from tests.support.relay.modules import outputs
from tests.support.relay.texts import fixture_text
from tests.support.timing import seconds

DOC = Path(__file__).parents[4] / "docs" / "reference" / "relay_layouts.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"


# ---- Relay's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", conversions(), ids=lambda c: c.result)
def test_relays_own_conversions(case: Conversion) -> None:
    """The same program, or one with fewer changes of layout."""
    ours, theirs = case.converted(), case.theirs()
    fewer = count(ours, "layout_transform") < count(theirs, "layout_transform")
    assert fewer or relay.structural_equal(ours, theirs), astext(ours)
    assert fewer == ("wgrad" not in case.result)


def test_the_document_has_the_table(request: pytest.FixtureRequest) -> None:
    text = DOC.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    old, _, after = rest.partition(END)
    if request.config.getoption("--update-golden"):
        DOC.write_text(f"{before}{START}{table()}{END}{after}", encoding="utf-8")
        old = table()
    assert old == table(), "docs/reference/relay_layouts.md differs (--update-golden)"


RUN = [c for c in conversions() if not c.result.startswith("resnet8")]


@pytest.mark.share(4)
@pytest.mark.parametrize("case", RUN, ids=lambda c: c.result)
@pytest.mark.usefixtures("registered")
def test_converted_programs_run(case: Conversion) -> None:
    inputs, expected, _ = load(case.run)
    for ours, theirs in zip(outputs(case.converted(), inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-4)


@pytest.mark.longer("whole networks; smaller ones stay")
@pytest.mark.usefixtures("registered")
def test_a_converted_network_runs() -> None:
    """The gradients of this one are zero but for rounding; the next test has others."""
    (case,) = [c for c in conversions() if c.result.startswith("resnet8")]
    inputs, expected, _ = load(case.run)
    for ours, theirs in zip(outputs(case.converted(), inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-6)


def test_the_gradient_of_a_residual_network() -> None:
    """In float64, where two layouts differ by less than anything else would."""
    mod, _ = relay.testing.resnet.get_workload(
        batch_size=2, num_classes=10, num_layers=8, image_shape=(3, 14, 14), dtype="float64"
    )
    function = T.SimplifyInference()(mod)["main"]
    # The logits: a sum of probabilities has no slope.
    function = relay.Function(function.params, function.body.args[0])
    mod = T.FirstOrderGradient()(T.InferType()(relay.IRModule.from_expr(function)))
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.random(p.type_annotation.shape) for p in mod["main"].params}
    want = flat(evaluate(mod["main"], inputs))
    # The first normalization has scale=False, so one gradient is zero.
    assert sorted(np.abs(w).max() for w in want)[1] > 1e-4
    for before in (mod, T.ToGraphNormalForm()(mod)):
        after = T.ConvertLayout(ALL)(before)
        assert count(after, "layout_transform") == 20
        for ours, theirs in zip(flat(evaluate(after["main"], inputs)), want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


FORWARD = ["convt_groups", "convt_k3s2op1", "convt_keras2x2", "dcgan_fwd", "smallnet_fwd"]


@pytest.mark.share(3)
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.usefixtures("registered")
def test_forward_programs_run(name: str) -> None:
    inputs, expected, text = load(name)
    converted = T.ConvertLayout(ALL)(fromtext(text))
    # One for each weight, one before the first convolution, one after the last.
    convolutions = sum(count(converted, f"nn.{n}") for n in ("conv2d", "conv2d_transpose"))
    assert count(converted, "layout_transform") == convolutions + 2
    for ours, theirs in zip(outputs(converted, inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("desired", [{"nn.conv2d": ["NHWC", "HWIO"]}, CONV], ids=["HWIO", "OHWI"])
def test_a_network_in_nhwc_to_nchw_and_back(desired: dict[str, Any]) -> None:
    before = T.InferType()(fromtext(fixture_text("mobilenet_fwd")))
    there = T.ConvertLayout(desired)(before)
    again = T.ConvertLayout({"nn.conv2d": ["NCHW", "OIHW"]})(there)
    assert relay.structural_equal(again, before)


# ---- what follows --------------------------------------------------------------------------------

# (before, after), with a convolution as @
FOLLOWS = [
    ("nn.relu(@)", back("nn.relu(@)")),
    ("nn.bias_add(@, %b)", back("nn.bias_add(@, %b, axis=3)")),
    ("nn.softmax(@, axis=-3)", back("nn.softmax(@, axis=3)")),
    ("add(%c, @)", back("add(reshape(%c, newshape=[1, 1, 1, 4]), @)")),
    ("add(@, 1f)", back("add(@, 1f)")),
    ("sum(@, axis=[1])", "sum(@, axis=[3])"),
    ("sum(@, axis=[0], exclude=True)", "sum(@, axis=[0], exclude=True)"),
    ("max(@, axis=[2, 3], keepdims=True)", back("max(@, axis=[1, 2], keepdims=True)")),
    ("nn.global_avg_pool2d(@)", back('nn.global_avg_pool2d(@, layout="NHWC")')),
    ("nn.batch_norm(@, %b, %b, %b, %b).0", back("nn.batch_norm(@, %b, %b, %b, %b, axis=3).0")),
    ("nn.batch_norm(@, %b, %b, %b, %b).1", "nn.batch_norm(@, %b, %b, %b, %b, axis=3).1"),
    ("split(@, indices_or_sections=2, axis=1).1",
     back("split(@, indices_or_sections=2, axis=3).1")),
    ("nn.pad(@, 0f, pad_width=[[0, 0], [0, 1], [2, 3], [4, 5]])",
     back("nn.pad(@, 0f, pad_width=[[0, 0], [2, 3], [4, 5], [0, 1]])")),
    ("strided_slice(@, begin=[0, 1], end=[2, 3], strides=[1], axes=None)",
     back("strided_slice(@, begin=[0, 1], end=[2, 3], strides=[1, 1], axes=[0, 3])")),
    ("%0 = @; where(less(%0, zeros_like(%0)), zeros_like(%0), %0)",
     "%0 = @; " + back("where(less(%0, zeros_like(%0)), zeros_like(%0), %0)")),
    ('add(@, zeros(shape=[2, 4, 6, 8], dtype="float32"))',
     back('add(@, zeros(shape=[2, 6, 8, 4], dtype="float32"))')),
    # A change of layout that undoes another is gone, a transposition too.
    ('layout_transform(@, src_layout="NCHW", dst_layout="NHWC")', "@"),
    ("nn.relu(transpose(@, axes=[0, 2, 3, 1]))", "nn.relu(@)"),
    ("transpose(@, axes=[1, 0, 2, 3])", "transpose(@, axes=[3, 0, 1, 2])"),
    # What nothing more will convert goes back before it meets what was never converted.
    ("add(@, tanh(%x))", f"add({back('@')}, tanh(%x))"),
    ("(@, %b).0", back("@")),
    ("let %y = @; let %z = nn.relu(%y); nn.relu(%z)",
     f"let %y = @; let %z = nn.relu(%y); {back('nn.relu(%z)')}"),
    ("let %y = (let %q = @; nn.relu(%q)); tanh(%y)",
     f"let %y = (let %q = @; nn.relu(%q)); {back('tanh(%y)')}"),
    ("let %y = split(@, indices_or_sections=2, axis=1); nn.relu(%y.0)",
     f"let %y = split(@, indices_or_sections=2, axis=3); {back('nn.relu(%y.0)')}"),
    # What has no rule has the old layout.
    ("nn.batch_flatten(nn.relu(@))", f"nn.batch_flatten({back('nn.relu(@)')})"),
    ("argmax(@)", f"argmax({back('@')})"),
    ("argmax(@, axis=[1])", "argmax(@, axis=[3])"),
    ("if (True) { nn.relu(@) } else { %x }", f"if (True) {{ {back('nn.relu(@)')} }} else {{ %x }}"),
    (f"let %f = fn (%p: {X}) {{ nn.relu(%p) }}; %f(@)",
     f"let %f = fn (%p: {X}) {{ nn.relu(%p) }}; %f({back('@')})"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), FOLLOWS, ids=[a for a, _ in FOLLOWS])
def test_what_follows_a_convolution(before: str, after: str) -> None:
    mod = module(before.replace("@", OLD))
    got = T.ConvertLayout(CONV)(mod)
    assert equal(got, after.replace("@", NEW)), astext(got)
    assert relay.structural_equal(T.ConvertLayout(CONV)(got), got), "not idempotent"
    if "if " not in before and "fn " not in before:
        unchanged_numbers(mod, got)


def test_programs_without_such_operators_stay() -> None:
    for name in ("smallnet_grad", "mlp_grad", "resnet8_cifar_grad_gnf", "wgrad_basic_legalized"):
        mod = T.InferType()(fromtext(fixture_text(name)))
        got = T.ConvertLayout({"nn.avg_pool2d": ["NHWC"]})(mod)
        assert got["main"] is mod["main"] or relay.structural_equal(got, mod)
    odd = module("%0 = transpose(%x, axes=[0, 1, 2, 3]); (zeros_like(%0), %0, (%x, %b).0)")
    assert relay.structural_equal(T.ConvertLayout(CONV)(odd), odd)


def test_functions_within_and_kernels() -> None:
    conv = "nn.conv2d(%p, %q, padding=[1, 1, 1, 1])"
    weights = "Tensor[(4, 4, 3, 3), float32]"
    new = NEW.replace("%x", "%p").replace("%w", "%q")
    for attrs, body in (("", back(new)), (", Primitive=1", conv), (', Compiler="cudnn"', conv)):
        text = "let %f = fn (%p: {0}, %q: {1}{2}) {{ {3} }}; nn.relu(%f(%x, %w))"
        got = T.ConvertLayout(CONV)(module(text.format(X, weights, attrs, conv)))
        assert equal(got, text.format(X, weights, attrs, body)), astext(got)


def test_a_variable_that_a_function_sees_stays_as_it_is() -> None:
    x, w = relay.var("x", shape=(1, 4, 5, 5)), relay.var("w", shape=(4, 4, 1, 1))
    y, f = relay.var("y"), relay.var("f")
    inner = relay.Function((), relay.nn.relu(y))
    body = relay.Let(y, relay.nn.conv2d(x, w), relay.Let(f, inner, relay.add(y, relay.Call(f, ()))))
    got = T.ConvertLayout(CONV)(relay.IRModule.from_expr(relay.Function([x, w], body)))
    let = got["main"].body
    assert let.value.op == relay.Op("layout_transform")
    assert let.body.value.body.args[0] is let.var


def test_one_change_for_each_value_and_layout() -> None:
    mod = module(f"%0 = {OLD}; %1 = {OLD}; (%0, %0, nn.relu(%0), add(%1, %0), tanh(%1))")
    got = T.ConvertLayout(CONV)(mod)
    # x, w; five results, of which two are one.
    assert count(got, "layout_transform") == 2 + 4
    assert equal(fromtext(astext(got)), "%x") is False
    assert relay.structural_equal(T.InferType()(fromtext(astext(got))), got)


@pytest.mark.parametrize("name", ["smallnet_grad", "resnet8_cifar_grad"])
def test_let_bound_programs_print_and_parse(name: str) -> None:
    got = T.ConvertLayout(ALL)(fromtext(fixture_text(name)))
    again = T.InferType()(fromtext(astext(got)))
    assert count(again, "layout_transform") == count(got, "layout_transform") in (7, 20)
    assert count(got, "nn.conv2d") == count(again, "nn.conv2d")


def test_default_kernel_layouts() -> None:
    def kernel(groups: int, op: str, layout: str) -> str:
        x, w = relay.var("x", shape=(1, 4, 5, 5)), relay.var("w", shape=(4, 4 // groups, 3, 3))
        made = getattr(relay.nn, op)(x, w, groups=groups)
        mod = relay.IRModule.from_expr(relay.Function([x, w], made))
        got = T.ConvertLayout({f"nn.{op}": [layout, "default"]})(mod)["main"].body
        node = got if layout == "NCHW" else got.args[0]
        return str(node.attrs.kernel_layout)

    assert kernel(1, "conv2d", "NCHW") == "OIHW"
    assert [kernel(g, "conv2d", "NHWC") for g in (1, 2, 4)] == ["HWIO", "HWIO", "HWOI"]
    assert kernel(1, "conv2d", "HWNC") == "HWOI"
    assert kernel(1, "conv2d_transpose", "NHWC") == "HWIO"


def test_a_weight_gradient_has_its_weights_default() -> None:
    for groups, layout in ((1, "HWIO"), (4, "HWOI")):
        g, x = relay.var("g", shape=(1, 4, 5, 5)), relay.var("x", shape=(1, 4, 5, 5))
        made = relay.nn.conv2d_backward_weight(
            g, x, padding=1, groups=groups, channels=4, kernel_size=3
        )
        mod = relay.IRModule.from_expr(relay.Function([g, x], made))
        got = T.ConvertLayout({"nn.conv2d_backward_weight": ["NHWC", "default"]})(mod)
        assert got["main"].body.args[0].attrs.out_layout == layout


def test_an_explicit_out_layout_stays() -> None:
    mod = module('nn.conv2d(%x, %w, padding=[1, 1, 1, 1], out_layout="NCHW")')
    got = T.ConvertLayout(CONV)(mod)
    assert got["main"].body.attrs.out_layout == "NCHW"
    unchanged_numbers(mod, got)


# ---- errors --------------------------------------------------------------------------------------

WRONG: list[tuple[Any, type[Exception], str]] = [
    ({"nn.conv": ["NHWC", "OHWI"]}, ValueError, r"unknown Relay operator 'nn.conv'.*nn.conv2d"),
    ({"nn.dense": ["NC"]}, ValueError, r"nn\.dense has no layout conversion.*there are nn\.conv2d"),
    ({"nn.conv2d": ["NHWC"]}, ValueError, r"nn\.conv2d takes 2 desired layouts, got \['NHWC'\]"),
    ({"nn.max_pool2d": ["NHWC", "NHWC"]}, ValueError, r"nn\.max_pool2d takes 1 desired layouts"),
    (
        {"nn.conv2d": ["NHWX", "OHWI"]},
        ValueError,
        r"nn\.conv2d: layout 'NHWX' must have .*NCHW",
    ),
    ({"nn.conv2d": ["NHWC", "IHWW"]}, ValueError, r"nn\.conv2d: layout 'IHWW' must have .*OIHW"),
    ({"nn.conv2d_transpose": ["NCHW8c", "IOHW"]}, ValueError, r"'NCHW8c'.*it takes no blocks"),
    (
        {"nn.conv2d": ["default", "OHWI"]},
        ValueError,
        r"nn\.conv2d: .*first .*can't be 'default'",
    ),
    (
        {"nn.conv2d": ["NWHC", "default"]},
        ValueError,
        r"'default' for data in NCHW.*got NWHC",
    ),
    ({"nn.conv2d": "NHWC"}, TypeError, r"nn\.conv2d: .*must be a list of strings, got 'NHWC'"),
    ({"nn.conv2d": [1, 2]}, TypeError, r"nn\.conv2d: .*must be strings, got \[1, 2\]"),
    (["nn.conv2d"], TypeError, r"expected a mapping of operators to layouts, got \['nn.conv2d'\]"),
]


@pytest.mark.parametrize(("desired", "error", "message"), WRONG, ids=[str(w[0]) for w in WRONG])
def test_wrong_layouts(desired: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        T.ConvertLayout(desired)


# ---- the tables, and time ------------------------------------------------------------------------


def test_the_tables_name_operators() -> None:
    assert set(RULES) | set(ROLES) | set(MAKERS) <= set(REGISTRY)
    assert set(RULES) >= MAKERS


def test_info() -> None:
    assert T.ConvertLayout(CONV).info == T.PassInfo("ConvertLayout", 3, ("InferType",))


def _chain(count: int, lets: bool) -> relay.IRModule:
    x, w = relay.var("x", shape=(1, 2, 3, 3)), relay.var("w", shape=(2, 2, 1, 1))
    bound, body = [], relay.nn.conv2d(x, w)
    for _ in range(count):
        if lets:
            bound.append((relay.var("v"), body))
            body = bound[-1][0]
        body = relay.nn.relu(relay.add(body, body))
    for name, value in reversed(bound):
        body = relay.Let(name, value, body)
    return T.InferType()(relay.IRModule.from_expr(relay.Function([x, w], body)))


@pytest.mark.longer("programs long enough to tell linear time")
@pytest.mark.parametrize("lets", [False, True])
def test_time_is_linear_and_depth_costs_no_stack(lets: bool) -> None:
    convert = T.ConvertLayout(CONV)
    spent = []
    for size in (500, 5000):
        mod = _chain(size, lets)
        assert count(convert(mod), "layout_transform") == 3
        spent.append(seconds(lambda mod=mod: convert(mod), 2))
    assert spent[1] < 40 * spent[0] + 1
