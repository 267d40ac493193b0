"""`relay.transform.RaiseConvBackward`: composites in Relay become operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_wgrad import relay
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.ast import post_order
from relay_wgrad.relay.rewrite import rewrite
from relay_wgrad.relay.text import astext, fromtext
from relay_wgrad.relay.transform.normal_forms import without_lets
from tests.support.fast import FAST
from tests.support.problems import random_problem, relative_error
from tests.support.relay.fixtures import load
from tests.support.relay.raise_programs import (
    BASES,
    GRAPH,
    LEGALIZED,
    LETS,
    WGRAD,
    G,
    W,
    X,
    checked,
    fixture,
    lets,
    operator,
    ops,
    program,
    raised,
)
from tests.support.relay.texts import HEADER, fixture_text

pytestmark = pytest.mark.usefixtures("registered")

# ---- Relay's programs ----------------------------------------------------------------------------


def test_all_fixtures_are_there() -> None:
    assert len(LEGALIZED) == 10


@pytest.mark.parametrize("name", LEGALIZED)
def test_fixture(name: str) -> None:
    """The program before Relay's Legalize, node for node, ConvertLayout after it or not.

    The operands are the parameters themselves: the changes of layout at the composite's borders
    are gone with it, so the program after ConvertLayout is the one in NCHW too.
    """
    base = name.partition("_legalized")[0]
    out, report = checked(fromtext(fixture_text(name)))
    assert str(report) == "raised 1 wgrad; 0 left"
    assert relay.structural_equal(out, fixture(base)), astext(out)
    runs_as_recorded(out, base)


def runs_as_recorded(mod: relay.IRModule, name: str) -> None:
    """What `relay.build` makes of a program gives what Relay 0.19 recorded of another."""
    inputs, outputs, _ = load(name)
    library = relay.build(mod, FAST)
    module = relay.graph_executor.GraphModule(library["default"](tvm.cpu()))
    module.run(**inputs)
    for i, want in enumerate(outputs):
        assert relative_error(want, module.get_output(i).numpy()) < 1e-5


def test_the_call_has_its_nodes_place() -> None:
    mod = fixture("wgrad_basic_legalized_nhwc")
    out, _ = raised(mod)
    assert out["main"].body.span == mod["main"].body.span
    assert out["main"].body.span is not None
    assert out["main"].body.args == (mod["main"].params[1], mod["main"].params[0])


def test_within_a_network() -> None:
    mod = fixture("smallnet_grad_legalized")
    out, report = raised(mod)
    assert str(report) == "raised 2 wgrad; 0 left"
    runs_as_recorded(out, "smallnet_grad_gnf")
    assert relay.structural_equal(out, fixture("smallnet_grad_gnf"))
    assert out.metadata == mod.metadata
    assert {e.node for e in report.entries} == {"transpose", "strided_slice"}
    # What the composites are not part of is the very same node.
    old, new = set(post_order(mod["main"])), set(post_order(out["main"]))
    assert ops(out).count("nn.conv2d") == 2
    changed = [n for n in new - old if isinstance(n, relay.Call)]
    assert {n.op.name for n in changed} == {WGRAD}


@pytest.mark.parametrize(
    "name",
    [*(base.removesuffix("_legalized") for base in BASES), "smallnet_grad_gnf",
     "resnet8_cifar_grad_gnf", "smallnet_grad", "resnet8_cifar_grad"],
)  # fmt: skip
def test_legalize_and_back(name: str) -> None:
    mod = fixture(name)
    legalized = T.Legalize()(mod)
    assert WGRAD not in ops(legalized)
    out, report = raised(legalized)
    assert len(report.raised) == ops(mod).count(WGRAD)
    assert not report.left
    assert relay.structural_equal(out, mod)


@pytest.mark.parametrize("base", BASES)
def test_legalize_and_back_in_another_layout(base: str) -> None:
    """The composite of an NHWC gradient begins and ends with changes to NCHW: they go with it."""
    name = base.removesuffix("_legalized")
    out, report = checked(T.Legalize()(fixture(f"{name}_nhwc")))
    assert len(report.raised) == 1
    assert relay.structural_equal(out, fixture(name))


def weight_gradient(p: ConvProblem) -> relay.IRModule:
    grad, data = (relay.var(r, shape=p.shape(r), dtype=p.dtype(r)) for r in ("grad", "data"))
    body = relay.nn.conv2d_backward_weight(
        grad, data, strides=p.strides, padding=p.padding, dilation=p.dilation, groups=p.groups,
        channels=p.k, kernel_size=(p.r, p.s), grad_layout=p.grad_layout,
        data_layout=p.data_layout, kernel_layout=p.kernel_layout,
    )  # fmt: skip
    return T.InferType()(relay.IRModule.from_expr(relay.Function([grad, data], body)))


@given(st.integers(0, 10**9))
@settings(max_examples=15, deadline=None)
def test_any_problem(seed: int) -> None:
    """Any strides, padding, dilation, groups and layouts; also for 1 < groups < channels."""
    rng = np.random.default_rng(seed)
    p = random_problem(rng, ConvKind.WGRAD, max_flop=1e5, dtypes=["float32"], mixed=False)
    mod = weight_gradient(p)
    out, report = checked(T.Legalize()(mod))
    if p.n == 1 and p.c == p.groups:
        # Sums over nothing: may be told from no forward convolution (docs/explanation/raising.md).
        return
    assert len(report.raised) == 1, report.reasons()
    assert "nn.conv2d" not in ops(out)
    if min(p.n, p.c // p.groups, p.k // p.groups, p.h, p.w, p.r, p.s, p.p, p.q) > 1:
        assert relay.structural_equal(out, mod)  # axes of size 1 may change letters


# ---- how a program is written --------------------------------------------------------------------

# A form, and what it becomes.
FORMS = {
    "lets": (f"{LETS} %w", f"let %w = {operator()}; %w"),
    "graph": (f"{GRAPH} add(%5, exp(%5))", f"%0 = {operator()}; add(%0, exp(%0))"),
    "another name": (
        f"{LETS} let %v = %w; add(%v, %w)", f"let %w = {operator()}; let %v = %w; add(%v, %w)"
    ),
    "in a tuple": (
        f"{LETS} let %t = (%w, %data); exp(%t.0)",
        f"let %w = {operator()}; let %t = (%w, %data); exp(%t.0)",
    ),
    "an operator that does nothing": (
        f"{LETS} strided_slice(%w, begin=[0], end=[6], strides=[1])", operator()
    ),
    "operands in a tuple": (
        f"let %g = negative(%grad); let %t = (%g, %data); {lets('%t.0', '%t.1')} %w",
        f"let %g = negative(%grad); let %w = {operator('%g')}; %w",
    ),
    "operands are bound": (
        f"let %g = negative(%grad); let %h = %g; {lets('%h')} (%w, %g)",
        f"let %g = negative(%grad); let %w = {operator('%g')}; (%w, %g)",
    ),
    "operands are bound after they are used": (
        f"%0 = negative(%grad); {lets('%0')} let %late = %0; (%w, %late)",
        f"%0 = negative(%grad); let %w = {operator('%0')}; let %late = %0; (%w, %late)",
    ),
    "a dead let keeps what it needs": (
        f"{LETS} let %dead = negative(%b); %w",
        (f"let %a = tile(%grad, reps=[1, 4, 1, 1]); let %b = reshape(%a, newshape=[-1, 1, 0, 0]);"
         f" let %w = {operator()}; let %dead = negative(%b); %w"),
    ),
    "a dead let": (
        f"let %dead = exp(%data); {LETS} %w", f"let %dead = exp(%data); let %w = {operator()}; %w"
    ),
    "a let within a let": (
        f"let %z = ({LETS} negative(%w)); exp(%z)",
        f"let %z = (let %w = {operator()}; negative(%w)); exp(%z)",
    ),
    "a let as an operand": (
        f"%0 = ({LETS} %w); add(%0, %0)", f"%0 = (let %w = {operator()}; %w); add(%0, %0)",
    ),
    "branches": (
        f"if (less(sum(%data), 0f)) {{ {LETS} exp(%w) }} else {{ {GRAPH} %5 }}",
        f"if (less(sum(%data), 0f)) {{ let %w = {operator()}; exp(%w) }} else {{ {operator()} }}",
    ),
    "branches of what is shared": (
        (f"%9 = exp(%data); if (less(sum(%9), 0f)) {{ {lets(data='%9')} exp(%w) }}"
         f" else {{ {lets(data='%9')} %w }}"),
        (f"%9 = exp(%data); if (less(sum(%9), 0f)) {{ let %w = {operator(data='%9')}; exp(%w) }}"
         f" else {{ let %w = {operator(data='%9')}; %w }}"),
    ),
    "a function that is a value": (
        f"let %f = fn (%data: {X}, %grad: {G}) {{ {LETS} exp(%w) }}; %f(negative(%data), %grad)",
        (f"let %f = fn (%data: {X}, %grad: {G}) {{ let %w = {operator()}; exp(%w) }};"
         " %f(negative(%data), %grad)"),
    ),
    "before and behind a call": (
        (f"let %f = fn (%p: {X}) {{ exp(%p) }}; let %x = %f(%data); {lets(data='%x')}"
         f" let %r = fn (%q: {W}) {{ exp(%q) }}; %r(%w)"),
        (f"let %f = fn (%p: {X}) {{ exp(%p) }}; let %x = %f(%data);"
         f" let %w = {operator(data='%x')}; let %r = fn (%q: {W}) {{ exp(%q) }}; %r(%w)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    before, after = map(program, FORMS[name])
    out, report = raised(before)
    assert not report.left
    assert relay.structural_equal(out, after), astext(out)


def test_a_function_over_what_is_around_it() -> None:
    """The operand is a variable outside; the text has no such functions."""
    mod = program(f"{LETS} %w")
    data, grad = mod["main"].params
    outer = relay.Var("g", grad.type_annotation)
    body = rewrite(mod["main"].body, lambda old, node: node, {grad: outer})
    inner = relay.Function((), body)
    whole = relay.Function((data, grad), relay.Let(outer, relay.exp(grad), relay.Call(inner, ())))
    out = T.RaiseConvBackward()(relay.IRModule({"main": whole}))
    let = out["main"].body
    assert ops(out) == ["exp", WGRAD]
    assert let.body.op.body.value.args == (let.var, out["main"].params[0])


def test_constants() -> None:
    """A constant operand is the node that it was."""
    mod = program(f"{LETS} %w")
    data, grad = mod["main"].params
    values = relay.const(np.ones((4, 6, 5, 5), "float32"))
    body = rewrite(mod["main"].body, lambda old, node: node, {grad: values})
    out, _ = raised(relay.IRModule({"main": relay.Function((data,), body)}))
    assert np.array_equal(out["main"].body.value.args[0].data, values.data)


def test_normal_forms() -> None:
    """A let for each value, raised, is a let for each value of the raised program."""
    legalized = fixture("smallnet_grad_legalized")
    out, report = raised(T.ToANormalForm()(legalized))
    assert str(report) == "raised 2 wgrad; 0 left"
    assert relay.structural_equal(T.ToGraphNormalForm()(out), fixture("smallnet_grad_gnf"))
    assert relay.structural_equal(T.ToANormalForm()(out), out)


@given(st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_any_mixture_of_lets_and_shared_nodes(random: Any) -> None:
    bound = T.ToANormalForm()(fixture("smallnet_grad_legalized"))
    some = without_lets(bound["main"], lambda var: random.random() < 0.5)
    out, report = raised(T.InferType()(relay.IRModule({"main": some}, metadata=bound.metadata)))
    assert len(report.raised) == 2
    assert relay.structural_equal(T.ToGraphNormalForm()(out), fixture("smallnet_grad_gnf"))


def test_called_functions() -> None:
    head = f"def @wgrad(%data: {X}, %grad: {G}) -> {W} "
    body = "add(@wgrad(%data, %grad), @wgrad(negative(%data), %grad))"
    mod = program(body, rest=f"{head}{{ {LETS} %w }}")
    out, report = raised(mod)
    assert [(e.function, e.node) for e in report.raised] == [("wgrad", "w")]
    want = program(body, rest=f"{head}{{ let %w = {operator()}; %w }}")
    assert relay.structural_equal(out, want)
    assert out["main"] is mod["main"]
    before, after = (relay.lower(m)["main"] for m in (want, out))
    tvm.ir.assert_structural_equal(before, after)


def test_functions_are_followed_each_for_itself() -> None:
    body = LETS.replace("sum(%e, axis=[0])", "@total(%e)") + "%w"
    total = "def @total(%e: Tensor[(4, 4, 6, 3, 3), float32]) { sum(%e, axis=[0]) }"
    _, report = raised(program(body, rest=total))
    (entry,) = report.left
    assert (entry.node, entry.function) == ("d", "main")
    assert entry.reason.endswith("%e is used by %f")


def test_functions_of_others_stay() -> None:
    mod = program(f"{LETS} %w")
    for key in ("Compiler", "Primitive", "Composite"):
        taken = relay.IRModule({"main": mod["main"].with_attr(key, "other")})
        out, report = raised(taken)
        assert report.entries == ()
        assert out["main"] is taken["main"]
    inner = f'fn (%data: {X}, %grad: {G}, Composite="other") {{ {LETS} %w }}'
    _, report = raised(program(f"let %f = {inner}; %f(%data, %grad)"))
    assert report.entries == ()


def test_attributes_of_functions_and_the_module_stay() -> None:
    mod = program(f"{LETS} %w")
    function = mod["main"].with_attr("mine", "kept")
    out = T.RaiseConvBackward()(relay.IRModule({"main": function}, attrs={"its": 1}))
    assert out["main"].attrs == function.attrs
    assert dict(out.attrs) == {"its": 1}


def test_nothing_to_do_is_the_same_program() -> None:
    for name in ("smallnet_grad", "mobilenet_fwd", "dcgan_fwd"):
        mod = fixture(name)
        out, report = raised(mod)
        assert report.entries == ()
        assert all(out[key] is mod[key] for key in mod.functions)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes(dtype: str) -> None:
    text = f"{HEADER}def @main(%data: {X}, %grad: {G}) {{ {LETS} %w }}".replace("float32", dtype)
    out, _ = raised(T.InferType()(fromtext(text)))
    assert "out_dtype" not in out["main"].body.value.attrs
    wide = text.replace("groups=16", 'groups=16, out_dtype="float32"')
    out, _ = raised(T.InferType()(fromtext(wide)))
    assert out["main"].body.value.attrs["out_dtype"] == "float32"


def test_unknown_batch() -> None:
    """As Relax writes it, which needs no number of images; two unknown ones may differ."""
    params = "%data: Tensor[({}, 4, 5, 5), float32], %grad: Tensor[({}, 6, 5, 5), float32]"
    conv = (
        'nn.conv2d({}, {}, padding=[1, 1, 1, 1], data_layout="CNHW", kernel_layout="IOHW",'
        ' out_layout="CNHW")'
    )
    out, report = raised(program(conv.format("%data", "%grad"), params.format(2, 2)))
    assert ops(out) == [WGRAD]
    _, report = raised(program(conv.format("%data", "%grad"), params.format("?", "?")))
    assert report.raised == ()
    one = "%data: Tensor[(?, 6, 5, 5), float32]"
    out, report = raised(program(conv.format("%data", "exp(%data)"), one))
    assert ops(out) == ["exp", WGRAD], report.reasons()
